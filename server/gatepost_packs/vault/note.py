"""Parse one note: its title, tags, aliases and links, ignoring code."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gatepost_packs.vault.front_matter import FrontMatter, split
from gatepost_packs.vault.note_names import of_markdown, stem

MAX_LINKS = 2_000
MAX_TAGS = 500
MAX_READ = 500_000
"""
The characters of a text in which headings, tags and links are searched for. Hostile text of that
length takes tenths of a second.
"""
STEP = 16_384
"""The characters that are searched at once, while no other thread runs."""
LONGEST = 10_000
"""The longest tag and link: the patterns below limit each part."""

FENCE_START = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}|~{3,})(.*)")
FENCE_END = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t]*")
INDENTED = re.compile(r"(?: {4}| {0,3}\t)[ \t]*\S")
LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
TICKS = re.compile(r"`(?<!\\`)`*")
HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t\r]|\Z)")
# Each pattern begins with a fixed character, which is found faster than the text that may precede
# it.
WIKI = re.compile(r"\[\[([^\[\]|\n]{1,500})(?:\|([^\[\]\n]{0,500}))?\]\]")
MARKDOWN = re.compile(
    r"\[(?<!\\\[)((?:[^\[\]\\\n]|\\.){0,500}+)\]\([ \t]{0,9}"
    r"(<[^<>\n]{0,1000}>|[^\s()<>]{0,1000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,1000}){0,5})"
    r"(?:[ \t]{1,9}(?:\"[^\"\n]{0,500}\"|'[^'\n]{0,500}'))?[ \t]{0,9}\)"
)
DEFINED = re.compile(r"^ {0,3}\[(?!\^)[^\[\]\n]{1,200}\]:[ \t]{0,9}(\S{1,1000})", re.MULTILINE)
# Obsidian accepts every character in a tag except blanks and punctuation.
TAG = re.compile(
    r"#(?<!\S#)([^\u2000-\u206f\u2e00-\u2e7f'!\"#$%&()*+,.:;<=>?@^`{|}~\[\]\\\s]{1,200})"
)


class NoteLink(msgspec.Struct, frozen=True):
    """A link from a note to another, or to a file."""

    target: str
    """The target as it is written, without the heading."""
    heading: str = ""
    text: str = ""
    """The shown text, if the link has one."""
    embed: bool = False
    relative: bool = False
    """Whether it is a Markdown link, which is relative to the note."""


class Note(msgspec.Struct, frozen=True):
    """The parsed contents of a note."""

    title: str
    front_matter: FrontMatter
    tags: tuple[str, ...]
    """As first written, without `#`."""
    aliases: tuple[str, ...]
    links: tuple[NoteLink, ...]


def read_note(path: str, text: str) -> Note:
    """Return the note of that path and text; never fails."""
    front_matter = split(text)
    values: Mapping[str, Any] = front_matter.values or {}
    lines, heading = _prose(front_matter.body[:MAX_READ])
    prose = _without_spans("\n".join(lines))
    title = values.get("title")
    return Note(
        title=_line(title) if isinstance(title, str) and title.strip() else heading or stem(path),
        front_matter=front_matter,
        tags=_distinct([*_listed(values, "tags", "tag"), *_tags(prose)]),
        aliases=tuple(dict.fromkeys(_listed(values, "aliases", "alias"))),
        links=_links(prose),
    )


def section(body: str, heading: str) -> str | None:
    """
    Return the text below a heading, up to the next heading of its level; None if it is missing.
    """
    title = heading.rpartition("#")[2].strip().casefold()
    section_lines: list[str] = []
    level = 0
    lines = body.split("\n")
    for line, prose_line in zip(lines, _prose(body)[0], strict=True):
        depth, text = _heading(prose_line)
        if level and 0 < depth <= level:
            break
        if depth and not level and text.casefold() == title:
            level = depth
        if level:
            section_lines.append(line)
    return "\n".join(section_lines) if level else None


def _prose(body: str) -> tuple[list[str], str]:
    """Return the lines without code, and the text of the first heading of level 1."""
    prose: list[str] = []
    title = fence = ""
    blank, listed = True, False
    for line in body.split("\n"):
        if fence:
            closed = FENCE_END.fullmatch(line.rstrip("\r"))
            if closed and closed[1].startswith(fence):
                fence = ""
            prose.append("")
            continue
        opened = FENCE_START.match(line)
        if opened and not (opened[1][0] == "`" and "`" in opened[2]):
            fence, blank = opened[1], False
            prose.append("")
            continue
        listed = bool(LIST_ITEM.match(line)) or (listed and (not line.strip() or line[0] in " \t"))
        is_code = blank and not listed and bool(INDENTED.match(line))
        prose.append("" if is_code else line)
        blank = is_code or not line.strip()
        if not title and not is_code:
            depth, text = _heading(line)
            title = text if depth == 1 else ""
    return prose, title


def _heading(line: str) -> tuple[int, str]:
    """Return level and text of a heading; level 0 for any other line."""
    match = HEADING.match(line)
    if match is None:
        return 0, ""
    text = line[match.end() :].strip()
    bare = text.rstrip("#")
    if not bare or bare[-1] in " \t":
        text = bare.strip()
    return len(match[1]), _line(text)


def _without_spans(prose: str) -> str:
    """Return the text without code spans, paragraph by paragraph."""
    if "`" not in prose:
        return prose
    return "\n\n".join(_without_ticks(part) for part in re.split(r"\n[ \t\r]*\n", prose))


def _without_ticks(text: str) -> str:
    runs = [(match.start(), match.end()) for match in TICKS.finditer(text)]
    # Each run is closed by the next one of its length. Searching from the end finds them in one
    # pass.
    closing: dict[int, int] = {}
    following: list[int | None] = [None] * len(runs)
    for at in range(len(runs) - 1, -1, -1):
        length = runs[at][1] - runs[at][0]
        following[at] = closing.get(length)
        closing[length] = at
    parts: list[str] = []
    position = at = 0
    while at < len(runs):
        end = following[at]
        if end is None:
            at += 1
            continue
        parts += [text[position : runs[at][0]], " "]
        position, at = runs[end][1], end + 1
    return "".join([*parts, text[position:]])


def _tags(prose: str) -> Iterator[str]:
    for match in _matches(TAG, prose):
        tag = match[1].strip("/")
        if tag and not tag.replace("/", "").isdecimal():
            yield tag


def _listed(values: Mapping[str, Any], *names: str) -> list[str]:
    """
    Return the values of a name in the front matter: a list, or one text with commas (tags: or
    blanks).
    """
    found_names: list[str] = []
    for name in names:
        value = values.get(name)
        if isinstance(value, str):
            pattern = r"[,\s]+" if name.startswith("tag") else r","
            found_names += re.split(pattern, value)
        elif isinstance(value, list):
            found_names += [str(item) for item in value if isinstance(item, str | int)]
        elif isinstance(value, int) and not isinstance(value, bool):
            found_names.append(str(value))
    lines = (_line(name).lstrip("#").strip("/") for name in found_names)
    return [line for line in lines if line][:MAX_TAGS]


def _distinct(tags: list[str]) -> tuple[str, ...]:
    first: dict[str, str] = {}
    for tag in tags:
        first.setdefault(tag.casefold(), tag)
    return tuple(first.values())[:MAX_TAGS]


def _links(prose: str) -> tuple[NoteLink, ...]:
    links = [*_wiki_links(prose), *_markdown_links(prose)]
    return tuple(link for _, link in sorted(dict.fromkeys(links), key=lambda item: item[0]))[
        :MAX_LINKS
    ]


def _wiki_links(prose: str) -> Iterator[tuple[int, NoteLink]]:
    for match in _matches(WIKI, prose):
        # In a table the bar before the alias is written `\|`.
        target, _, heading = match[1].rstrip("\\").partition("#")
        if target.strip():
            link = NoteLink(
                target.strip(),
                heading.strip(),
                (match[2] or "").strip(),
                embed=_embeds(prose, match.start()),
            )
            yield match.start(), link


def _markdown_links(prose: str) -> Iterator[tuple[int, NoteLink]]:
    for match in _matches(MARKDOWN, prose):
        embed = _embeds(prose, match.start())
        yield from _markdown_link(match.start(), match[2], match[1], embed=embed)
    for match in _matches(DEFINED, prose):
        yield from _markdown_link(match.start(), match[1], "", embed=False)


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield what `pattern.finditer` yields, in steps: one search lets no other thread run."""
    start = 0
    while start < len(text):
        end, last_end = start + STEP, start
        for match in pattern.finditer(text, start, end + LONGEST):
            if match.start() >= end:
                break
            yield match
            last_end = match.end()
        start = max(end, last_end)


def _embeds(prose: str, at: int) -> bool:
    return at > 0 and prose[at - 1] == "!"


def _markdown_link(at: int, raw: str, text: str, *, embed: bool) -> Iterator[tuple[int, NoteLink]]:
    address = raw.removeprefix("<").removesuffix(">")
    target = of_markdown(address)
    if target is not None:
        heading = address.partition("#")[2]
        yield at, NoteLink(target, heading, text.strip(), embed=embed, relative=True)


def _line(text: str) -> str:
    return " ".join(text.split())[:500]
