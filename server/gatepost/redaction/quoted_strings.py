"""
Join the quoted strings of a text in each order in which a reader may join them.

The module uses operations of `bytes` on all strings at once, because a text may contain thousands
of them, and a loop in Python takes a microsecond for each.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick

from gatepost.redaction.matching import ends_of
from gatepost.redaction.screen import has_pattern
from gatepost.redaction.secret_search import portions

STRINGS_AT_ONCE = 20_000
"""The number of strings that are split at once, while no other thread runs."""

HEAD_BYTES = 512
"""The size of the beginning of a text that shows whether letters are between its strings."""

SEPARATOR = b"\0"
"""A byte that occurs in no token and no secret."""
_UNSIGNED = re.compile(rb"([0-9][0-9.eE+-]*)")
"""A number without its sign; a pattern with the sign would take three times as long."""
MINUS, COLON = b"-:"
MINUS_REPLACEMENT = b"\1"
"""Replaces the minus of a number, so that it differs from other ones."""
_BLANKS = b" \t\n\r\f\v"
_DIGITS, _SIGNS = b"0123456789", b".eE+"
_KINDS = bytes(
    (b"0" if byte in _DIGITS else b"e" if byte in _SIGNS else b"-" if byte == MINUS else b"x")[0]
    for byte in range(256)
)
_NO_DIGITS, _NO_NUMBERS, _NO_MARKS = (
    {quote: bytes(set(range(256)) - set(kept_bytes + quote)) for quote in (b'"', b"'")}
    for kept_bytes in (_DIGITS, _DIGITS + _SIGNS + b"-", SEPARATOR + MINUS_REPLACEMENT)
)
"""
The characters to delete so that quotation marks remain, and digits, characters of numbers, or
separators.
"""
_spaced_colons = BytesAhoCorasick([bytes((blank,)) + b":" for blank in _BLANKS])
_no_numbers = BytesAhoCorasick([b"xe", b"x-e", b"x--", b"x-x"])
"""The result of `_KINDS` for characters of numbers that begin no number."""


class QuotedLeaf(NamedTuple):
    """A string or a number of a text, and the place of its content."""

    start: int
    end: int
    is_name: bool
    is_number: bool


def joined_strings(text: bytes, quote: bytes, edge: int = 0) -> list[bytes]:
    """
    Return the strings of a text joined: without names, with names, and with numbers but not names.

    An order that equals the first is left out. *edge*: how much of each end of a long string is
    kept, for what reaches over the end of a string; 0 keeps all.
    """
    texts: list[bytes] = []
    with_names: list[bytes] = []
    with_numbers: list[bytes] = []
    has_spaces = COLON in text and has_pattern(_spaced_colons, text)
    for strings, gaps in _portions(text, quote):
        if edge and len(text) > 2 * edge * len(strings):
            strings = [ends_of(string, edge, SEPARATOR) or b"" for string in strings]
        following = gaps[1:]
        if has_spaces:
            following = [*map(bytes.lstrip, following)]
        values = [
            string if gap[:1] != b":" else b""
            for string, gap in zip(strings, following, strict=True)
        ]
        texts += values
        with_names += strings
        numbers = _numbers(gaps, quote)
        if numbers is None:
            with_numbers += values
            continue
        mixed = [b""] * (len(strings) + len(gaps))
        mixed[::2], mixed[1::2] = numbers, values
        with_numbers += mixed
    views = [b"".join(texts)]
    for view in (b"".join(with_names), b"".join(with_numbers)):
        if len(view) > len(views[0]):
            views.append(view)
    return views


def own_strings(text: bytes, quote: bytes, strings: frozenset[bytes]) -> set[bytes]:
    """Return those of *strings* that are strings of a text without escaped quotation marks."""
    strings_found = set[bytes]()
    for portion, _ in _portions(text, quote):
        strings_found |= strings.intersection(portion)
    return strings_found


def masked_escapes(text: bytes, quote: bytes) -> bytes:
    """
    Return a text without separators so that each of its quotation marks begins or ends a string.
    """
    return text.replace(b"\\\\", b"\0b").replace(b"\\" + quote, b"\0q")


def unmasked_escapes(text: bytes, quote: bytes) -> bytes:
    """Return the text from which `masked_escapes` made this one."""
    return text.replace(b"\0q", b"\\" + quote).replace(b"\0b", b"\\\\")


def _portions(text: bytes, quote: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield strings and the text before, between and after them."""
    while True:
        pieces = text.split(quote, 2 * STRINGS_AT_ONCE)
        if len(pieces) <= 2 * STRINGS_AT_ONCE:
            break
        text = pieces.pop()
        # The text after the last string only decides whether that string is a name.
        is_name = text.lstrip()[:1] == b":"
        yield pieces[1::2], [*pieces[::2], b":" if is_name else b""]
    strings, gaps = pieces[1::2], pieces[::2]
    if len(gaps) == len(strings):
        # The last quotation mark begins no string; the byte that replaces it is no blank.
        gaps[-1] += SEPARATOR + strings.pop()
    yield strings, gaps


def _numbers(gaps: list[bytes], quote: bytes) -> list[bytes] | None:
    """Return the numbers in each of these parts of a text, joined; None if there are none."""
    gaps_text = quote.join([b"", *gaps, b""])
    if len(gaps_text.translate(None, _NO_DIGITS[quote])) <= len(gaps) + 1:
        return None  # only the quotation marks
    # If the text is not JSON, the head alone usually shows it.
    if not has_pattern(_no_numbers, _without_literals(gaps_text[:HEAD_BYTES]).translate(_KINDS)):
        remaining_text = _without_literals(gaps_text)
        if not has_pattern(_no_numbers, remaining_text.translate(_KINDS)):
            return remaining_text.translate(None, _NO_NUMBERS[quote]).split(quote)[1:-1]
    number_texts: list[bytes] = []
    remaining_text = gaps_text.replace(SEPARATOR, b"x").replace(MINUS_REPLACEMENT, b"x")
    for pieces in portions(_UNSIGNED, remaining_text):
        # Only the quotation marks between the numbers stay, and a minus right before a number.
        numbers_text = SEPARATOR.join([*pieces[::2], b""]).replace(
            b"-" + SEPARATOR, MINUS_REPLACEMENT + SEPARATOR
        )
        unmarked = numbers_text.translate(None, _NO_MARKS[quote]).replace(MINUS_REPLACEMENT, b"-")
        pieces[::2] = unmarked.split(SEPARATOR)[:-1]
        number_texts += pieces
    return b"".join(number_texts).split(quote)[1:-1]


def _without_literals(text: bytes) -> bytes:
    """Return the text with another letter for the words of JSON that end like a number."""
    return text.replace(b"true", b"x").replace(b"false", b"x")
