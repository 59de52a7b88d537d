"""Writes what HTML means as Markdown, or as plain text, while its tokens pass by."""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from gatepost.packs.web.stack import BLOCKS, CELLS, Stack
from gatepost.packs.web.table import Table

CHARACTERS = 3_000_000
"""Of one page; links and indentation make more of it than was read."""
URL_CHARACTERS = 2_000
NESTED = 12
"""Lists and quotations within one another; deeper ones are written at the same depth."""

SPACES = re.compile(r"[ \t\r\n\f]+")
LINES = re.compile(r" ?\n ?")
TICKS = re.compile(r"`+")
ANCHORS = frozenset("§¶#") | {"🔗"}
MARKS = {"b": "**", "strong": "**", "i": "*", "em": "*", "code": "`", "kbd": "`", "samp": "`"} | {
    "del": "~~",
    "s": "~~",
}


class Mark(NamedTuple):
    """An open element that is written around its text."""

    name: str
    start: int
    """Where in the line it began."""
    target: str = ""


class Block(NamedTuple):
    """A paragraph, a heading, a line of a list…, as it is written."""

    text: str
    tight: bool
    """Whether the next one that is tight too follows without an empty line."""


class Writer:
    """
    Takes text and tags one by one; `written` is the whole.

    *base* is what links are relative to, *here* where the page is. *marks* is false for plain text.
    """

    def __init__(self, base: str, *, marks: bool, here: str = "") -> None:
        self._base, self._with_marks = base, marks
        self._here = here.partition("#")[0]
        self.stack = Stack()
        self._blocks: list[Block] = []
        self._size = 0
        self._line: list[str] = []
        self._marks: list[Mark] = []
        self._counts: list[int | None] = []
        self._prefixes: list[str] = []
        self._bullet = ""
        self._tables: list[Table] = []
        self._language = ""
        self._pre = 0  # how many of them are open

    @property
    def full(self) -> bool:
        """Whether nothing more is taken."""
        return self._size > CHARACTERS

    def text(self, text: str) -> None:
        """Take text; line ends count in `pre` only."""
        if not self._pre:
            text = SPACES.sub(" ", text)
            if text.startswith(" ") and (not self._line or self._line[-1].endswith((" ", "\n"))):
                text = text[1:]
        if text:
            self._line.append(text)

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Take a start tag."""
        for closed in self.stack.implied(name):
            self._closed(closed)
        if name in BLOCKS or name in CELLS:
            self._break()
        if name == "br":
            self._line.append("\n")
        elif name == "hr":
            self._add("---", tight=False)
        elif name == "img":
            self._image(attributes)
        if self.stack.open(name):
            self._opened(name, attributes)

    def end(self, name: str) -> None:
        """Take an end tag."""
        for closed in self.stack.ended(name):
            self._closed(closed)

    def written(self) -> str:
        """All of it, the open elements closed."""
        for closed in self.stack.down_to(0):
            self._closed(closed)
        self._flush()
        pieces: list[str] = []
        for block, before in zip(self._blocks, [None, *self._blocks], strict=False):
            if before is not None:
                pieces.append("\n" if block.tight and before.tight else "\n\n")
            pieces.append(block.text)
        return "".join(pieces)

    def _opened(self, name: str, attributes: Mapping[str, str]) -> None:
        if name in {"ul", "menu", "ol"}:
            first = attributes.get("start", "1")
            ordered = int(first) if first.isascii() and first.isdigit() and len(first) < 7 else 1
            self._counts.append(ordered if name == "ol" else None)
        elif name == "li":
            self._item()
        elif name == "blockquote":
            self._prefixes.append("> ")
        elif name in {"table", "tr", "td", "th"}:
            self._grid(name)
        elif name == "pre":
            self._language, self._pre = language(attributes), self._pre + 1
        elif name == "code" and self._pre:
            self._language = self._language or language(attributes)
        elif self._with_marks and not self._pre:
            self._mark(name, attributes)

    def _grid(self, name: str) -> None:
        if name == "table":
            if self._tables:
                self._spread(self._tables[-1])
            self._tables.append(Table())
        elif self._tables:
            begin = self._tables[-1].row if name == "tr" else self._tables[-1].cell
            begin()

    def _mark(self, name: str, attributes: Mapping[str, str]) -> None:
        same = {mark.name for mark in self._marks}
        if name == "a":
            # Within another there is none in Markdown, and a page may open hundreds.
            target = "" if name in same else self.absolute(attributes.get("href", ""))
            if not target:
                return
            here = target.partition("#")[0] == self._here
            self._marks.append(Mark(name, len(self._line), "" if here else target))
        elif name in MARKS and MARKS[name] not in {MARKS.get(other) for other in same}:
            self._marks.append(Mark(name, len(self._line)))

    def _closed(self, name: str) -> None:
        if self._marks and self._marks[-1].name == name:
            self._wrap(self._marks.pop())
        elif name == "pre":
            self._pre -= 1
            self._code()
        elif name in BLOCKS or name in CELLS:
            self._break(heading=int(name[1]) if re.fullmatch("h[1-6]", name) else 0)
        if name in {"ul", "menu", "ol"} and self._counts:
            self._counts.pop()
        elif name in {"li", "blockquote"} and self._prefixes:
            self._prefixes.pop()
            self._bullet = ""
        elif name == "table" and self._tables:
            self._finish(self._tables.pop())

    def _item(self) -> None:
        count = self._counts[-1] if self._counts else None
        self._bullet = "- " if count is None else f"{count}. "
        if count is not None:
            self._counts[-1] = count + 1
        self._prefixes.append(" " * len(self._bullet))

    def _wrap(self, mark: Mark) -> None:
        """Write a mark around what came since it began, spaces outside."""
        inner = "".join(self._line[mark.start :])
        text = inner.strip()
        if not text:
            return
        if mark.name == "a" and not mark.target:
            # A place in the same page, which nobody can fetch; headings have one to point at them.
            if text in ANCHORS:
                del self._line[mark.start :]
            return
        before, after = inner[: inner.index(text)], inner[inner.index(text) + len(text) :]
        if mark.name == "a":
            text = text.replace("\n", " ").replace("]", "\\]")
            marked = f"[{text}]({mark.target})"
        elif MARKS[mark.name] == "`":
            ticks = "`" * (1 + max(map(len, TICKS.findall(text)), default=0))
            marked = f"{ticks}{text}{ticks}"
        else:
            marked = f"{MARKS[mark.name]}{text}{MARKS[mark.name]}"
        self._line[mark.start :] = [piece for piece in (before, marked, after) if piece]

    def _break(self, *, heading: int = 0) -> None:
        """End the paragraph; in code, the line."""
        if not self._pre:
            self._flush(heading=heading)
        elif self._line and not self._line[-1].endswith("\n"):
            self._line.append("\n")

    def _flush(self, *, heading: int = 0) -> None:
        """End the paragraph; marks that are open go on in the next one."""
        if not self._line:
            return
        for mark in reversed(self._marks):
            self._wrap(mark)
        text = "".join(self._line)
        text = LINES.sub("\n", text).strip()
        self._line.clear()
        self._marks = [mark._replace(start=0) for mark in self._marks]
        if not text:
            return
        if self._tables and self._tables[-1].takes(text):
            return
        if heading and self._with_marks:
            text = f"{'#' * heading} {SPACES.sub(' ', text)}"
        self._add(text, tight=bool(self._counts))

    def _code(self) -> None:
        text = "".join(self._line).strip("\n").replace("\r", "")
        self._line.clear()
        if not text.strip():
            return
        if self._with_marks:
            fence = "`" * max(3, 1 + max(map(len, TICKS.findall(text)), default=0))
            text = f"{fence}{self._language}\n{text}\n{fence}"
        if not (self._tables and self._tables[-1].takes(text)):
            self._add(text, tight=False)

    def _add(self, text: str, *, tight: bool) -> None:
        if self.full:
            return
        rest = "".join(self._prefixes[:NESTED])
        first = rest
        if self._bullet:
            first = rest[: -len(self._bullet)] + self._bullet if rest else self._bullet
            self._bullet = ""
        text = first + text.replace("\n", f"\n{rest}")
        self._size += len(text)
        self._blocks.append(Block(text, tight))

    def _image(self, attributes: Mapping[str, str]) -> None:
        said = SPACES.sub(" ", attributes.get("alt", "")).strip().replace("]", "\\]")
        source = self.absolute(attributes.get("src", ""))
        if said and self._with_marks:
            self._line.append(f"![{said}]({source})" if source else said)
        elif said:
            self._line.append(said)

    def _spread(self, table: Table) -> None:
        """A table that lays out others is none: what it holds follows one after the other."""
        for text in table.spread():
            self._add(text, tight=False)

    def _finish(self, table: Table) -> None:
        if (text := table.written(marks=self._with_marks)) is None:
            self._spread(table)
        elif text and not (self._tables and self._tables[-1].takes(text)):
            self._add(text, tight=False)

    def absolute(self, link: str) -> str:
        """Where *link* leads, fit to stand in parentheses; empty when it leads to no page."""
        link = link.strip()
        if not link or len(link) > URL_CHARACTERS:
            return ""
        try:
            target = urljoin(self._base, link)
            scheme = urlsplit(target).scheme
        except ValueError:
            return ""
        if scheme not in {"http", "https", "mailto"} or len(target) > URL_CHARACTERS:
            return ""
        # Counted as it comes: a thousand links may stand in one line.
        self._size += len(target)
        return re.sub(r"[\s()<>]", lambda found: f"%{ord(found[0]):02X}", target)


def language(attributes: Mapping[str, str]) -> str:
    """The language of code, by the class that highlighters look for."""
    found = re.search(r"\blang(?:uage)?-([a-zA-Z0-9+#-]{1,20})", attributes.get("class", ""))
    return found[1] if found else ""
