"""Find out with a few searches of a JSON document as a whole that it has no secrets."""

import msgspec

from gatepost.redaction.json_document import JsonDocument, bare
from gatepost.redaction.redactor import Redactor
from gatepost.redaction.secret_search import BACKSLASH

_CONTROLS = ((b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"))
"""The white space of JSON that no string may have, and how strings write it."""
_LAST_BACKSLASHES = (b'\\u005c"', b'\\u005C"')
_text = msgspec.json.Decoder(str).decode


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
