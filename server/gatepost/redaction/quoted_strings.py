"""
Joins the quoted strings of a text in each order in which a reader may join them.

With operations of `bytes` on all strings at once: a text may hold thousands of them, and a loop in
Python takes a microsecond for each.
"""

import re
from collections.abc import Iterator

from ahocorasick_rs import BytesAhoCorasick

from gatepost.redaction.matching import ends_of
from gatepost.redaction.screen import holds
from gatepost.redaction.search import portions

STRINGS_AT_ONCE = 20_000
"""The strings that are split off at once, while no other thread runs."""

SEPARATOR = b"\0"
"""A byte that occurs in no token and no secret."""
_NUMBER = re.compile(rb"(-?[0-9][0-9.eE+-]*)")
MINUS = b"-"[0]
_BLANKS = b" \t\n\r\f\v"
_DIGITS, _SIGNS = b"0123456789", b".eE+"
_KINDS = bytes(
    (b"0" if one in _DIGITS else b"e" if one in _SIGNS else b"-" if one == MINUS else b"x")[0]
    for one in range(256)
)
_NO_DIGITS, _NO_NUMBERS, _NO_MARKS = (
    {quote: bytes(set(range(256)) - set(kept + quote)) for quote in (b'"', b"'")}
    for kept in (_DIGITS, _DIGITS + _SIGNS + b"-", SEPARATOR)
)
"""What is deleted to leave quotation marks, and digits, characters of numbers or separators."""
_spaced_colons = BytesAhoCorasick([bytes((blank,)) + b":" for blank in _BLANKS])
_no_numbers = BytesAhoCorasick([b"xe", b"x-e", b"x--", b"x-x"])
"""What `_KINDS` makes of the characters of numbers where these begin no number."""


def joined_strings(text: bytes, quote: bytes, edge: int = 0) -> list[bytes]:
    """
    Return the strings of a text joined: without names, with names, and with numbers but not names.

    An order that equals the first is left out. *edge*: how much of each end of a long string is
    kept, for what reaches over the end of a string; 0 keeps all.
    """
    texts: list[bytes] = []
    with_names: list[bytes] = []
    with_numbers: list[bytes] = []
    has_spaces = holds(_spaced_colons, text)
    for strings, gaps in _portions(text, quote):
        if edge and len(text) > 2 * edge * len(strings):
            strings = [ends_of(one, edge, SEPARATOR) or b"" for one in strings]
        behind = gaps[1:]
        if has_spaces:
            behind = [*map(bytes.lstrip, behind)]
        values = [
            string if gap[:1] != b":" else b"" for string, gap in zip(strings, behind, strict=True)
        ]
        texts += values
        with_names += strings
        mixed = [b""] * (len(strings) + len(gaps))
        mixed[::2], mixed[1::2] = _numbers(gaps, quote), values
        with_numbers += mixed
    views = [b"".join(texts)]
    for view in (b"".join(with_names), b"".join(with_numbers)):
        if len(view) > len(views[0]):
            views.append(view)
    return views


def _portions(text: bytes, quote: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield strings and what stands before, between and behind them."""
    while True:
        pieces = text.split(quote, 2 * STRINGS_AT_ONCE)
        if len(pieces) <= 2 * STRINGS_AT_ONCE:
            break
        text = pieces.pop()
        # Of what stands behind the last string, only whether it makes that a name.
        is_name = text.lstrip()[:1] == b":"
        yield pieces[1::2], [*pieces[::2], b":" if is_name else b""]
    strings, gaps = pieces[1::2], pieces[::2]
    if len(gaps) == len(strings):
        # The last quotation mark begins no string; the byte instead of it is no blank.
        gaps[-1] += SEPARATOR + strings.pop()
    yield strings, gaps


def _numbers(gaps: list[bytes], quote: bytes) -> list[bytes]:
    """Return the numbers in each of these parts of a text, joined."""
    whole = quote.join([b"", *gaps, b""])
    if len(whole.translate(None, _NO_DIGITS[quote])) <= len(gaps) + 1:
        return [b""] * len(gaps)  # nothing but the quotation marks
    plain = whole.replace(b"true", b"x").replace(b"false", b"x")
    if not holds(_no_numbers, plain.translate(_KINDS)):
        return plain.translate(None, _NO_NUMBERS[quote]).split(quote)[1:-1]
    found: list[bytes] = []
    for pieces in portions(_NUMBER, plain.replace(SEPARATOR, b"x")):
        # Between the numbers only the quotation marks stay.
        between = SEPARATOR.join(pieces[::2]).translate(None, _NO_MARKS[quote])
        pieces[::2] = between.split(SEPARATOR)
        found += pieces
    return b"".join(found).split(quote)[1:-1]
