"""Base64url as JOSE writes it: no padding, no other alphabet, one spelling per value."""

import binascii

# `+`, `/` and `=` are what the ordinary decoder would take too: they are mapped to a byte it
# refuses, so that a token has exactly one spelling and a cache keyed by its text cannot be dodged.
TO_STANDARD = bytes.maketrans(b"-_+/=", b"+/\0\0\0")
PADDING = (b"", b"\0", b"==", b"=")
# Bits of the last character that no byte uses must be zero (RFC 4648 section 3.5).
LAST = (
    None,
    None,
    frozenset(b"AQgw"),
    frozenset(b"AEIMQUYcgkosw048"),
)


def decode(segment: bytes) -> bytes:
    """
    The bytes that *segment* spells; the empty segment is the empty string.

    ValueError: another alphabet, padding, white space, an impossible length, or a tail with
    stray bits (RFC 7515 section 2, RFC 4648 sections 3 and 5).
    """
    rest = len(segment) & 3
    last = LAST[rest]
    if last is not None and segment[-1] not in last:
        raise ValueError("stray bits")
    return binascii.a2b_base64(segment.translate(TO_STANDARD) + PADDING[rest], strict_mode=True)
