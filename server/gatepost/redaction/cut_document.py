"""Decide whether the shown beginning of a cut JSON document is free of secrets."""

import re

from gatepost.redaction.json_document import JsonDocument, bare, plain_string
from gatepost.redaction.quoted_strings import (
    SEPARATOR,
    joined_strings,
    masked_escapes,
    unmasked_escapes,
)
from gatepost.redaction.redactor import Redactor, is_unquoted
from gatepost.redaction.secret_search import DEEPEST, LONGEST, layers

HALF_ESCAPE = 5
"""Maximum number of bytes of an incomplete escape in JSON."""
NEAR_BYTES, MIDDLE_BYTES, FAR_BYTES = 1_024, 2_048, 4_096
NEAR_VALUES, FAR_VALUES = 8, 12
"""
How far behind a cut known values are searched: so many bytes, and times the longest value. Each of
its bytes may take several bytes, escaped twice, and bytes are added for line breaks and, further
behind, for the marks between quoted strings.
"""
LONGEST_ESCAPE = 12
BEGUN_BYTES = 2 * (DEEPEST + 1) * LONGEST
"""
The difference in length of two decodings of a text, if one begins within an escape or within a row
of backslashes: an escape before and one after, for each level of nesting.
"""

_FIRST_OF_PAIR = re.compile(rb"\\u[dD][89abAB]")
_BLANKS = b" \t\r\n\x0b\f"
_BEFORE_VALUES = (b":", b"[")
"""The characters before a string that is certainly no name."""


def is_clear_before(encoded: bytes, cut_at: int, redactor: Redactor) -> bool:
    """
    Return True only if nothing to redact begins before *cut_at* in a long JSON document.

    A token is recognised by its beginning. A known value lies within the bytes behind the cut if
    these hold as many in which it can go on; blanks, line breaks and names count for none, because
    a caller could hide the rest of a secret behind any number of them.
    """
    longest = redactor.longest
    near_bytes = max(NEAR_BYTES, NEAR_VALUES * longest)
    far_bytes = [size + FAR_VALUES * longest for size in (MIDDLE_BYTES, FAR_BYTES)]
    for size in (near_bytes, *far_bytes):
        head = cut_whole(encoded, cut_at + size)
        document = JsonDocument(head)
        if len(head) == len(encoded) or not redactor.has_no_beginning(document.text):
            return False
        if redactor.is_empty:
            return True
        if size == near_bytes and not is_unquoted(document.text):
            continue
        if _searched_size(head, cut_at, document.text) >= longest:
            split = document.split(redactor)
            return not (split.strings or split.numbers or document.numbers(redactor, split))
    return False


def _searched_size(head: bytes, cut_at: int, strings: bytes) -> int:
    """
    Return how many bytes of a known value that begins before *cut_at* certainly stand behind it.

    It may go on in the string that is cut, in the values behind that string, or in the quoted
    strings within it. What counts is the decoding that leaves least of it, without blanks.
    *strings* are those of the document, decoded.
    """
    is_plain = is_unquoted(strings)  # as in most texts, each mark begins or ends a string
    before = head[:cut_at] if is_plain else bare(head[:cut_at])
    remainder = head[cut_at:] if is_plain else bare(head)[len(before) :]
    is_begun = before.count(b'"') % 2 == 1
    if b'"' in remainder or not is_begun:
        views = _views(remainder.partition(b'"')[2] if is_begun else remainder, b'"')
        decodings = [decoding for view in views for decoding in _decodings(view)]
    elif before[: before.rfind(b'"')].rstrip()[-1:] not in _BEFORE_VALUES:
        return 0  # the string may be a name
    elif is_plain:
        # Each backslash is counted as the longest escape of one byte.
        return len(remainder.translate(None, _BLANKS)) - LONGEST_ESCAPE * remainder.count(b"\\")
    else:
        decoded = decodings = _decodings(remainder)
        # If the text after the cut cannot be decoded, the string stays as it is written, without
        # any `"`.
        written = layers(remainder) if b"\\" in remainder else []
        for quote, other_forms in ((b'"', written[1:]), (b"'", written)):
            if any(quote in layer for layer in layers(strings)):
                decodings = [*decodings, *_quoted_values({*decoded, *other_forms}, quote)]
    return min(len(decoding.translate(None, _BLANKS)) for decoding in decodings) - BEGUN_BYTES


def _quoted_values(texts: set[bytes], quote: bytes) -> list[bytes]:
    """Return the values in quotation marks, joined, whether the first mark begins or ends one."""
    if any(SEPARATOR in text for text in texts):
        return [b""]
    # Blanks stay. Without them, other marks would look escaped, and numbers would change.
    masked = [masked_escapes(text, quote) for text in texts]
    views = [
        _views(variant, quote)
        for masked_text in masked
        for variant in (masked_text, masked_text.partition(quote)[2])
    ]
    joined = {unmasked_escapes(view, quote) for text_views in views for view in text_views}
    return [layer for text in joined for layer in layers(text)]


def _decodings(string: bytes) -> list[bytes]:
    """Return each decoding of a string of JSON; nothing is left of one that cannot be decoded."""
    decoded = plain_string(string)
    return [b""] if decoded is string and b"\\" in string else layers(decoded)


def _views(text: bytes, quote: bytes) -> list[bytes]:
    """
    Return the strings of a text joined in each order, without one that is not whole.

    Each order has its own decodings: a name or a number may begin an escape that a value ends. What
    stands behind the last string is not known, which may be a name.
    """
    return joined_strings(text.rpartition(quote)[0] + quote + b":", quote)


def cut_whole(encoded: bytes, size: int) -> bytes:
    """
    Return the first *size* bytes of a long document without half a character or half an escape.

    With these at its end, its last string could not be decoded at once, and what is nested deepest
    in it would not be found. Half a character is also the first escape of a pair.
    """
    if len(encoded) <= size:
        return encoded
    shortened = encoded[:size].decode(errors="ignore").encode()
    at = shortened.rfind(b"\\", max(len(shortened) - HALF_ESCAPE, 0))
    tail = shortened[at + 1 :]
    is_whole = tail and not (tail[:1] == b"u" and len(tail) < HALF_ESCAPE)
    if at >= 0 and not is_whole and _begins_escape(shortened, at):
        shortened = shortened[:at]
    at = len(shortened) - HALF_ESCAPE - 1
    return (
        shortened[:at]
        if _FIRST_OF_PAIR.match(shortened, at) and _begins_escape(shortened, at)
        else shortened
    )


def _begins_escape(text: bytes, at: int) -> bool:
    """Return whether the backslash at *at* is none that another one escapes."""
    return (at + 1 - len(text[: at + 1].rstrip(b"\\"))) % 2 == 1
