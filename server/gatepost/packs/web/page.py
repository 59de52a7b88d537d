"""What a page says: its title and its main content, without what stands around it."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from gatepost.packs.web.markdown import SPACES, URL_CHARACTERS, Writer
from gatepost.packs.web.stack import Stack
from gatepost.packs.web.tokens import TOKENS, End, Start, Token, tokens

TITLE_CHARACTERS = 300
LITTLE = 250
"""Characters; a part of a page with fewer is not its main content."""

CLAIMS = 50
"""Elements within one another that say they are the main content."""

NO_TEXT = frozenset(
    {"audio", "button", "canvas", "datalist", "embed", "iframe", "math", "noembed", "noframes"}
    | {"noscript", "object", "script", "select", "style", "svg", "template", "textarea", "title"}
    | {"video", "xmp"}
)
AROUND = frozenset({"aside", "dialog", "footer", "nav"})
ROLES_AROUND = frozenset(
    {"banner", "complementary", "contentinfo", "dialog", "menu", "navigation", "search"}
)
UNSEEN = re.compile(r"(?:\A|[;\s])(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)


class Page(NamedTuple):
    """A page as it is shown."""

    title: str
    text: str
    cut: bool
    """Whether it was longer than anybody reads."""


class Part(NamedTuple):
    """Tokens that may be the main content."""

    name: str
    first: int
    last: int
    characters: int
    """Of text; those before it until its end is known."""


def readable(source: str, url: str, *, marks: bool) -> Page:
    """The title and main content of the page at *url*, as Markdown or (no *marks*) as text."""
    found = list(tokens(source))
    base = _base(found, url)
    first, last = main(found)
    writer = written(found[first:last], Writer(base, marks=marks, here=url), around=False)
    text = writer.written()
    if len(text) < LITTLE:
        # Somebody wrote it all into what usually stands around; more is better than nothing.
        everything = written(found, Writer(base, marks=marks, here=url), around=True)
        longer = everything.written()
        if len(longer) > 2 * len(text):
            writer, text = everything, longer
    return Page(_title(found), text, writer.full or len(found) >= TOKENS)


def main(found: list[Token]) -> tuple[int, int]:
    """
    Where the main content begins and ends: the longest `main`, else the `article` that has most of
    the text, else all of it.
    """
    if not any(isinstance(token, Start) and _claims(token) for token in found):
        return 0, len(found)
    total, parts = 0, list[Part]()
    begun: list[tuple[Part, int]] = []
    stack = Stack()
    for at, token in enumerate(found):
        if isinstance(token, str):
            total += 0 if stack.holds("script", "style") else len(token.strip())
        elif isinstance(token, End):
            stack.ended(token.name)
        else:
            stack.implied(token.name)
            if stack.open(token.name) and (name := _claims(token)) and len(begun) < CLAIMS:
                begun.append((Part(name, at, len(found), total), len(stack)))
        while begun and len(stack) < begun[-1][1]:
            part, _ = begun.pop()
            parts.append(part._replace(last=at + 1, characters=total - part.characters))
    parts += [part._replace(characters=total - part.characters) for part, _ in begun]
    mains = [part for part in parts if part.name == "main" and part.characters >= LITTLE]
    articles = [part for part in parts if part.name == "article" and 2 * part.characters > total]
    whole = Part("", 0, len(found), total)
    best = max(mains or articles, key=lambda part: part.characters, default=whole)
    return best.first, best.last


def _claims(token: Start) -> str:
    """Which kind of main content an element says that it is; empty when it is none."""
    if token.name == "main" or token.attributes.get("role") == "main":
        return "main"
    return "article" if token.name == "article" else ""


def written(found: list[Token], writer: Writer, *, around: bool) -> Writer:
    """The writer, which took the tokens; what only stands *around* the content if it is wanted."""
    silent = 0  # how deep the element is of which nothing is shown; 0: everything is
    for token in found:
        if writer.full:
            break
        if isinstance(token, str):
            if not silent:
                writer.text(token)
        elif isinstance(token, End):
            writer.end(token.name)
            silent = 0 if len(writer.stack) < silent else silent
        else:
            writer.start(token.name, {} if silent else token.attributes)
            silent = 0 if len(writer.stack) < silent else silent
            if not silent and writer.stack.top == token.name and _hidden(token, writer, around):
                silent = len(writer.stack)
    return writer


def _hidden(token: Start, writer: Writer, around: bool) -> bool:
    name, attributes = token
    if name in NO_TEXT or "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    if UNSEEN.search(attributes.get("style", "")):
        # What a reader of the page does not see is not what the page says to him.
        return True
    if around:
        return False
    if name == "header":
        return not writer.stack.holds("main", "article", "section")
    return name in AROUND or attributes.get("role", "").lower() in ROLES_AROUND


def _title(found: list[Token]) -> str:
    for wanted in ("title", "h1"):
        pieces: list[str] = []
        inside = False
        for token in found:
            if isinstance(token, str):
                pieces += [token] * inside
            elif token.name == wanted:
                inside = isinstance(token, Start)
                if not inside and "".join(pieces).strip():
                    break
                pieces.clear()
        if title := SPACES.sub(" ", "".join(pieces)).strip():
            return title[:TITLE_CHARACTERS]
    return ""


def _base(found: list[Token], url: str) -> str:
    for token in found:
        if isinstance(token, Start) and token.name == "base" and "href" in token.attributes:
            return _joined(url, token.attributes)
    return url


def _joined(url: str, attributes: Mapping[str, str]) -> str:
    base = Writer(url, marks=False).absolute(attributes["href"])
    return base if len(base) <= URL_CHARACTERS and base.startswith("http") else url
