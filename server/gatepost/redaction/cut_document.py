"""Decide whether the shown beginning of a cut JSON document is free of secrets."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from gatepost.redaction.clear_document import decoded_in_place, is_surely_clear
from gatepost.redaction.json_document import JsonDocument, bare, plain_string
from gatepost.redaction.quoted_strings import (
    SEPARATOR,
    joined_strings,
    masked_escapes,
    unmasked_escapes,
)
from gatepost.redaction.redactor import Redactor
from gatepost.redaction.secret_search import (
    AMPERSAND,
    BACKSLASH,
    DEEPEST,
    LONGEST,
    PERCENT,
    layers,
)
from gatepost.redaction.split_screen import separate_decodings

HALF_ESCAPE = 5
"""Maximum number of bytes of an incomplete escape in JSON."""
NEAR_BYTES, FAR_BYTES = 1_024, (2_048, 4_096, 16_384)
NEAR_VALUES, FAR_VALUES = 8, 12
"""
How far behind a cut known values are searched: so many bytes, and times the longest value. Each of
its bytes may take several bytes, escaped twice, and bytes are added for line breaks and, further
behind, for the marks between quoted strings.
"""
COUNTED_HEAD, SHORT_BYTES = 2, 24_576
"""
Where the part behind the cut has several decodings, counting takes so long that it is done in one
head only, and not before a whole document of up to so many bytes was searched.
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
_ESCAPED_APOSTROPHE = b"\\u0027"
"""An apostrophe only if the string can be decoded, which what is behind it decides as well."""


def is_clear_before(encoded: bytes, cut_at: int, redactor: Redactor) -> bool:
    """
    Return True only if nothing to redact begins before *cut_at* in a JSON document.

    A token is recognised by its beginning. A known value lies within the bytes behind the cut if
    these hold as many in which it can go on; blanks, line breaks and names count for none, because
    a caller could hide the rest of a secret behind any number of them.
    """
    if redactor.of_caller:
        return False  # as long as tokens and values are searched for one after another
    heads = partial(_heads, encoded, cut_at, redactor.longest)
    head = next((head for head in heads() if _suffices(head, cut_at, redactor, quickly=True)), None)
    is_short = head is None and len(encoded) <= SHORT_BYTES
    if is_short and is_surely_clear(encoded, redactor):
        return True
    if head is None:
        far_head = next(islice(heads(), COUNTED_HEAD, None), None)
        head = far_head if far_head and _suffices(far_head, cut_at, redactor) else None
    if head is not None and (
        is_surely_clear(head, redactor, goes_on=True) or _has_none(head, redactor)
    ):
        return True
    return not is_short and is_surely_clear(encoded, redactor)


def _heads(encoded: bytes, cut_at: int, longest: int) -> Iterator[bytes]:
    """Yield the beginnings of a longer document that may be enough to search."""
    near_bytes = max(NEAR_BYTES, NEAR_VALUES * longest)
    for size in (near_bytes, *(far_bytes + FAR_VALUES * longest for far_bytes in FAR_BYTES)):
        if cut_at + size < len(encoded):
            yield cut_whole(encoded, cut_at + size)


def _has_none(head: bytes, redactor: Redactor) -> bool:
    """Return whether the beginning of a document has no secret, and no beginning of a token."""
    document = JsonDocument(head)
    if not redactor.has_no_beginning(document.text):
        return False
    split = document.split(redactor)
    return not (split.strings or split.numbers or document.numbers(redactor, split))


def _suffices(head: bytes, cut_at: int, redactor: Redactor, *, quickly: bool = False) -> bool:
    """
    Return whether all of a known value that begins before *cut_at* certainly stands in *head*.

    It may go on in the string that is cut, in the values behind that string, or in the quoted
    strings within it. What counts is the decoding that leaves least of it, without blanks.
    *quickly*: only if there is a single decoding.
    """
    if redactor.is_empty:
        return True
    begin = cut_whole(head, cut_at + LONGEST_ESCAPE)
    before, remainder = bare(begin), bare(head[len(begin) :])
    is_begun = before.count(b'"') % 2 == 1
    needed = redactor.longest + BEGUN_BYTES
    if b'"' in remainder or not is_begun:
        following = remainder.partition(b'"')[2] if is_begun else remainder
        decoded = decoded_in_place(following)
        if decoded is not None and not _has_marks(decoded):
            return _shortest_size([plain_string(_whole_values(following, b'"'))]) >= needed
        return not quickly and _shortest_size(_value_decodings(following)) >= needed
    first = before.rfind(b'"')
    if before[:first].rstrip()[-1:] not in _BEFORE_VALUES:
        return False  # the string may be a name
    string, decoded = before[first + 1 :] + remainder, plain_string(remainder)
    if not _has_marks(decoded) and _ESCAPED_APOSTROPHE not in remainder:
        return _shortest_size(_inner_values(string, decoded)) >= needed
    return not quickly and _shortest_size(_inner_decodings(string, remainder)) >= needed


def _shortest_size(decodings: Sequence[bytes]) -> int:
    """Return the size of the shortest of some texts, without blanks."""
    return min(len(decoding.translate(None, _BLANKS)) for decoding in decodings)


def _has_marks(text: bytes) -> bool:
    """Return whether a text may have an escape."""
    return BACKSLASH in text or PERCENT in text or AMPERSAND in text


def _whole_values(text: bytes, quote: bytes) -> bytes:
    """Return the strings of a text that are certainly whole and no names, joined."""
    pieces = text.split(quote)
    # What stands behind the last string is not known.
    strings = zip(pieces[1::2], pieces[2:-1:2], strict=False)
    return b"".join([string for string, gap in strings if gap.lstrip()[:1] != b":"])


def _inner_values(string: bytes, remainder: bytes) -> list[bytes]:
    """
    Return what may stand at the end of a string, *remainder*, which has a single decoding.

    Then the values alone, without names and numbers, are the shortest of all orders.
    """
    values = [remainder]
    for quote in _quotes_in(string):
        # The first mark begins or ends a string.
        variants = remainder, remainder.partition(quote)[2]
        values += [_whole_values(variant, quote) for variant in variants]
    return values


def _quotes_in(string: bytes) -> list[bytes]:
    """Return the quotation marks that a decoding of a string of JSON has."""
    texts = [plain_string(string)]
    if _has_marks(texts[0]):
        texts = [*layers(texts[0]), *layers(string)]
    return [quote for quote in (b'"', b"'") if any(quote in text for text in texts)]


def _value_decodings(text: bytes) -> list[bytes]:
    """Return the strings of a part of a document, in each order and decoding."""
    decoded = decoded_in_place(text)
    is_separate = decoded is not None and _is_separate(decoded)
    return [layer for view in _views(text, b'"', is_separate) for layer in _decodings(view)]


def _inner_decodings(string: bytes, remainder: bytes) -> list[bytes]:
    """Return what may stand at the end of a string, *remainder*, in each order and decoding."""
    decodings = decoded = _decodings(remainder)
    # If the text after the cut cannot be decoded, the string stays as it is written, without any
    # `"`.
    written = layers(remainder) if BACKSLASH in remainder else []
    is_separate = _is_separate(decoded[0]) and _is_separate(remainder)
    for quote in _quotes_in(string):
        texts = {*decoded, *written[quote == b'"' :]}
        decodings = [*decodings, *_quoted_values(texts, quote, is_separate)]
    return decodings


def _is_separate(text: bytes) -> bool:
    """Return whether each string of a text can be decoded apart from those beside it."""
    return separate_decodings(text + b"\"'") is not None


def _quoted_values(texts: set[bytes], quote: bytes, is_separate: bool) -> list[bytes]:
    """Return the values in quotation marks, joined, whether the first mark begins or ends one."""
    if any(SEPARATOR in text for text in texts):
        return [b""]
    # Blanks stay. Without them, other marks would look escaped, and numbers would change.
    masked = [masked_escapes(text, quote) for text in texts]
    views = [
        _views(variant, quote, is_separate)
        for masked_text in masked
        for variant in (masked_text, masked_text.partition(quote)[2])
    ]
    joined = {unmasked_escapes(view, quote) for text_views in views for view in text_views}
    return [layer for text in joined for layer in layers(text)]


def _decodings(string: bytes) -> list[bytes]:
    """Return each decoding of a string of JSON; nothing is left of one that cannot be decoded."""
    decoded = plain_string(string)
    return [b""] if decoded is string and b"\\" in string else layers(decoded)


def _views(text: bytes, quote: bytes, is_separate: bool) -> list[bytes]:
    """
    Return the strings of a text joined in each order, without one that is not whole.

    Each order has its own decodings: a name or a number may begin an escape that a value ends. If
    none does, the values alone are the shortest. What stands behind the last string is not known,
    which may be a name.
    """
    if is_separate:
        return [_whole_values(text, quote)]
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
