"""Find out with a few searches of a JSON document as a whole that it has no secrets."""

import msgspec

from gatepost.redaction.json_document import BINARY, JsonDocument, bare, cleaned
from gatepost.redaction.redactor import FEW_BYTES, Redactor, are_clear, has_layers
from gatepost.redaction.secret_search import AMPERSAND, BACKSLASH, PERCENT

_CONTROLS = ((b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"))
"""The white space of JSON that no string may have, and how strings write it."""
_LAST_BACKSLASHES = (b'\\u005c"', b'\\u005C"')
_BINARY_NAMES = tuple(b'"%b"' % name for name in sorted(BINARY))
_text = msgspec.json.Decoder(str).decode


def searched_and_cleaned(
    encoded: bytes,
    redactor: Redactor,
    *,
    blocks: bool = False,
    names: frozenset[bytes] = frozenset(),
) -> bytes | None:
    """
    Return what `cleaned` returns for a JSON document, which is not cut, at a fraction of the cost.

    Most documents hold nothing, which a search of the whole document shows.
    """
    if has_layers(encoded) or blocks:
        is_clear = _is_clear_in_any_order(encoded, redactor, blocks=blocks)
    else:
        is_clear = are_clear((encoded,), redactor)
    return None if is_clear else cleaned(encoded, redactor, blocks=blocks, names=names)


def _is_clear_in_any_order(encoded: bytes, redactor: Redactor, *, blocks: bool) -> bool:
    """
    Return True only if `cleaned` would find nothing in a document that has several decodings.

    The search finds a value in whatever order its strings are joined, and so in the orders of
    *blocks*, too. Only what is in their binary members does not stand in the document itself.
    """
    if len(encoded) <= FEW_BYTES or (blocks and any(name in encoded for name in _BINARY_NAMES)):
        return False
    if PERCENT in encoded or AMPERSAND in encoded:
        return False  # to find out takes as long as `cleaned`
    return is_surely_clear(encoded, redactor)


def is_surely_clear(encoded: bytes, redactor: Redactor, *, goes_on: bool = False) -> bool:
    """
    Return True only if `cleaned` would find nothing in a JSON document, which may be cut.

    Its strings are not taken apart, but decoded where they are. Then each quotation mark in them
    seems to begin or end a string as well, which only adds to what is searched. *goes_on*: where a
    token's form begins there is one, because the rest of it may be in the part that is missing.
    """
    if not (redactor.is_empty or redactor.is_unsplit(b"")):
        return False  # nothing shows it
    decoded = decoded_in_place(encoded)
    if decoded is None:
        return False
    if not redactor.has_no_beginning(decoded) and (
        # A value may stand in the numbers, too.
        goes_on or redactor.values(decoded) or redactor.spans(JsonDocument(encoded).text)
    ):
        return False
    # The quotation mark ends a string that was cut.
    decoded += b'"'
    if redactor.is_empty:
        return True
    has_inner_quotes = b'\\"' in encoded or b"\\u0022" in encoded
    return redactor.is_unsplit(decoded, is_paired=not has_inner_quotes)


def decoded_in_place(encoded: bytes) -> bytes | None:
    """
    Return a JSON document with its strings decoded; None if one cannot be decoded.

    None also if a string ends with a backslash, which would seem to escape its quotation mark.
    """
    if BACKSLASH not in encoded:
        return encoded
    encoded = bare(encoded)
    if any(end in encoded for end in _LAST_BACKSLASHES):
        return None
    encoded = encoded.replace(b'"', b'\\"')
    for control, escape in _CONTROLS:
        encoded = encoded.replace(control, escape)
    try:
        return _text(b'"%s"' % encoded).encode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
