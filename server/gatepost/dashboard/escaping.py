"""Make untrusted text safe to show: invisible and reordering characters become escapes."""

import re
import unicodedata
from typing import Literal

import msgspec

PieceKind = Literal["plain", "escape", "secret"]

_UNUSUAL = re.compile(r"\[REDACTED:[^\[\]\n]{1,128}\]|[^\x20-\x7e\n\t]")
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufffc\U00016fe4\U0001d159")
"""Characters that are printable by their category but draw nothing."""
_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Variation selectors: they carry data that a model reads and a person does not see."""
_OVERLAYS = frozenset(
    "\u0334\u0335\u0336\u0337\u0338\u20d2\u20d3\u20d8\u20d9\u20da\u20e5\u20e6\u20ea\u20eb"
)
"""Marks that strike out or enclose the character before them (category Me), which still runs."""
MAX_MARKS = 4
"""Maximum number of combining marks on one character; more could cover the lines around it."""
_SHORT = {"\r": "\\r", "\0": "\\0", "\x1b": "\\e", "\x07": "\\a", "\x08": "\\b"}


class Piece(msgspec.Struct, frozen=True):
    """A part of a text; *title* describes an escape."""

    text: str
    kind: PieceKind = "plain"
    title: str = ""


def pieces(text: str) -> list[Piece]:
    """
    Return the text in pieces that show every character.

    Bidirectional marks would let a command read other than it runs ("Trojan Source",
    CVE-2021-42574), and tag characters carry instructions to a model past the person who approves.
    """
    found_pieces: list[Piece] = []
    plain_from = 0
    for match in _UNUSUAL.finditer(text):
        piece = _piece(match)
        if piece is None:
            continue
        if match.start() > plain_from:
            found_pieces.append(Piece(text[plain_from : match.start()]))
        found_pieces.append(piece)
        plain_from = match.end()
    if plain_from < len(text):
        found_pieces.append(Piece(text[plain_from:]))
    return found_pieces


def plain_text(text: str) -> str:
    """Return the escaped text as plain text, for titles and other places without markup."""
    return "".join(piece.text for piece in pieces(text))


def oneline(text: str, max_chars: int = 160) -> str:
    """Return the beginning of a text on one line."""
    head = text[: max_chars + 1].replace("\n", " ↵ ").replace("\t", " ")
    return head[:max_chars] + "…" if len(text) > max_chars else head


def spelt(encoded: str) -> str:
    """Return equivalent JSON with hidden characters escaped, for a field that a user edits."""
    return _UNUSUAL.sub(_spelt, encoded)


def hidden(text: str) -> int:
    """Return how many characters of the text are shown as escapes."""
    return sum(1 for piece in pieces(text) if piece.kind == "escape")


def _piece(match: re.Match[str]) -> Piece | None:
    text = match.group()
    if len(text) > 1:
        return Piece(text, "secret", "A secret, which is never shown.")
    unseen = not text.isprintable() or text in _BLANK or _selects(text)
    if not unseen and not _overlays(match.string, match.start()):
        return None
    code = ord(text)
    form = f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    name = unicodedata.name(text, "") or _category(text)
    return Piece(_SHORT.get(text, form), "escape", f"U+{code:04X} {name}".strip())


def _spelt(match: re.Match[str]) -> str:
    text, piece = match.group(), _piece(match)
    if piece is None or piece.kind == "secret":
        return text
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _overlays(text: str, at: int) -> bool:
    marks = unicodedata.category(text[at])
    if marks == "Me" or text[at] in _OVERLAYS:
        return True
    stack = text[max(at - MAX_MARKS, 0) : at]
    return marks == "Mn" and len(stack) == MAX_MARKS and all(map(unicodedata.combining, stack))


def _selects(char: str) -> bool:
    return any(ord(char) in block for block in _SELECTORS)


def _category(char: str) -> str:
    return "control character" if unicodedata.category(char) == "Cc" else "unassigned character"
