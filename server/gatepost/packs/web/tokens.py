"""
HTML taken apart in one pass, as browsers do it (HTML standard, section 13.2.5), in linear time.

Neither parser at hand does: Python's own was quadratic in several ways until patch releases of
2025, and libxml2 compares each attribute of an element with all others, so that one megabyte of
them keeps a thread busy for minutes, and drops everything below 256 elements of depth.
"""

import html
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Start(NamedTuple):
    """A start tag; names in lower case."""

    name: str
    attributes: Mapping[str, str]


class End(NamedTuple):
    """An end tag."""

    name: str


Token = str | Start | End
"""Text, with its references resolved, or a tag."""

TOKENS = 150_000
ATTRIBUTES = 40
"""Of one element that are kept."""

TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
ATTRIBUTE = re.compile(
    r"[\s/]*([^\s/>][^\s/>=]*)(?:\s*=\s*(\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z)|[^\s>]*))?"
)
CLOSE = re.compile(r"[\s/]*>?")
HUGE_REFERENCE = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{7,});?")
CONTROLS = re.compile("[\0-\x08\x0b\x0e-\x1f\x7f-\x9f\U000e0000-\U000e007f]")
"""What no reader sees: controls, and the tag characters that hide text in plain sight."""

UNPARSED = frozenset(
    {"iframe", "noembed", "noframes", "plaintext", "script", "style", "textarea", "title", "xmp"}
)
"""Elements whose content is text up to their own end tag."""
ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in UNPARSED}


def tokens(source: str) -> Iterator[Token]:
    """The tokens of a page; at most so many that a reader has time for them."""
    at = 0
    for _ in range(TOKENS):
        found = source.find("<", at)
        if found < 0:
            yield from _text(source[at:])
            return
        yield from _text(source[at:found])
        tag = TAG.match(source, found)
        if tag is None:
            at, text = _no_tag(source, found)
            yield from _text(text)
            continue
        name, ends = tag[2].lower(), bool(tag[1])
        attributes, at = _attributes(source, tag.end())
        if ends:
            yield End(name)
            continue
        yield Start(name, attributes)
        if name in UNPARSED:
            last = ENDS[name].search(source, at)
            end = last.start() if last else len(source)
            yield from _text(source[at:end])
            at = end
            yield End(name)


def _text(source: str) -> Iterator[str]:
    if source:
        # Python refuses to read a number of many digits.
        text = html.unescape(HUGE_REFERENCE.sub("\ufffd", source)) if "&" in source else source
        yield CONTROLS.sub("", text)


def _no_tag(source: str, at: int) -> tuple[int, str]:
    """Where what begins with ``<`` and is no tag ends, and the text that it is."""
    if source.startswith("<!--", at):
        end = source.find("-->", at + 2)  # `<!-->` is a whole comment
        return (len(source) if end < 0 else end + 3), ""
    if source[at + 1 : at + 2] in {"!", "?", "/"}:
        end = source.find(">", at)
        return (len(source) if end < 0 else end + 1), ""
    return at + 1, "<"


def _attributes(source: str, at: int) -> tuple[dict[str, str], int]:
    """The attributes that begin at *at*, the first of each name, and where the tag ends."""
    attributes: dict[str, str] = {}
    while (match := ATTRIBUTE.match(source, at)) is not None:
        at = match.end()
        name, value = match[1].lower(), match[2] or ""
        if len(attributes) < ATTRIBUTES and name not in attributes:
            if value[:1] in {'"', "'"}:
                value = value[1:].removesuffix(value[0])
            attributes[name] = "".join(_text(value))
    close = CLOSE.match(source, at)
    return attributes, close.end() if close else at
