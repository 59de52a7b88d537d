"""Writes characters that act on a terminal, end a line or reorder text as escapes."""

import re

UNSEEN = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""
Characters that JSON does not escape: C1 controls, direction marks, line separators and invisible
characters. Terminals read logs, and so do programs that have their own line separators.
"""


def in_json(text: str) -> str:
    """Return the JSON text with such characters as `\\uXXXX`; its values do not change."""
    if text.isascii() and "\x7f" not in text:
        return text
    return UNSEEN.sub(_escape, text)


def in_line(text: str) -> str:
    """Return the text on one line, with unprintable characters except tabs as escapes."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def in_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, with such escapes in each line."""
    return "\n".join(in_line(line) for line in text.split("\n"))


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
