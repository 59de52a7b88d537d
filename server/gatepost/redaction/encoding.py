"""List the searched encodings of a secret, except plain escapes (see docs/redaction.md)."""

import base64
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import msgspec

from gatepost.redaction.matching import Hex, KnownMatch, Literal, base64_core
from gatepost.redaction.secret_search import decoded_forms

MIN_BYTES = 4
"""The minimum length of a value; shorter ones occur in every text."""
LINE_BYTES = 16
"""The minimum length of a line that is searched for separately."""

_NAMEABLE = re.compile(r"[^A-Za-z0-9_-]")
_KEPT = re.compile(r"([a-z][a-z0-9_]*)_[0-9a-f]{32}")
_SCHEME = re.compile(r"(?:bearer|basic|token|apikey|api-key) +(\S.*)", re.IGNORECASE | re.DOTALL)
_HEX_WINDOW_BYTES = 4


def marks_of(name: str, value: str) -> Iterator[KnownMatch]:
    """Return the patterns of one secret, or none if the value is too short."""
    value = value.strip()  # files end in a line break that is not part of the value
    value_bytes = value.encode(errors="surrogatepass")
    if len(value_bytes) < MIN_BYTES:
        return
    name = displayed_name(name)
    written = dict.fromkeys([value_bytes, *_spelt(value_bytes), *_lines(value_bytes)])
    for encoded in written:
        if len(encoded) >= MIN_BYTES:
            yield Literal(name, encoded)
    wide = value.encode("utf-16-le", errors="surrogatepass")
    yield Literal(name, wide.removesuffix(b"\0"))
    yield from _hex(name, value_bytes)
    for form in dict.fromkeys([value_bytes, *_inside(value_bytes, value), wide, _swapped(wide)]):
        yield from _base64(name, form)
    for lead in range(3):
        # Base64 within base64: `kubectl get secret` prints a registry's password like this.
        yield from _base64(name, base64_core(value_bytes, lead)[0])


def meant_by(value: str) -> list[str]:
    """Return a value and the secret part of values like `Bearer xyz` or `Basic xyz`."""
    match = _SCHEME.fullmatch(value)
    if match is None:
        return [value]
    meanings = [value, match[1]]
    try:
        user, _, password = base64.b64decode(match[1], validate=True).decode().partition(":")
    except ValueError:
        return meanings
    return [*meanings, password] if user and password else meanings


def displayed_name(name: str) -> str:
    """
    Return a secret's name as shown in redacted texts.

    What follows a point tells apart values that a secret had one after another, and the digits
    behind what a pack keeps those of several calls: neither says anything to a reader.
    """
    name = name.partition(".")[0]
    if match := _KEPT.fullmatch(name):
        name = match[1].upper()
    return _NAMEABLE.sub("_", name)[:64] or "SECRET"


def _spelt(value: bytes) -> Iterator[bytes]:
    """Return the encodings that unescaping does not decode."""
    yield value.replace(b" ", b"+")
    yield from decoded_forms(value)


def _lines(value: bytes) -> Iterator[bytes]:
    """Return parts that are searched for separately: lines of keys, members of JSON credentials."""
    if value[:1] in (b"{", b"["):
        with suppress(ValueError, RecursionError):
            # An object becomes the tuple of its members, several of one name included.
            document = json.loads(value, object_pairs_hook=tuple)
            yield from (text for text in _texts(document) if len(text) >= LINE_BYTES)
    for line in map(bytes.strip, value.splitlines()):
        if len(line) >= LINE_BYTES and not line.startswith(b"-----"):
            yield line


def _texts(value: Any) -> Iterator[bytes]:
    if isinstance(value, tuple):
        value = [inner for _, inner in value]
    if isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value.encode(errors="surrogatepass")


def _inside(encoded: bytes, value: str) -> Iterator[bytes]:
    """Return the encodings in documents and URLs, which base64 may contain."""
    try:
        in_json = msgspec.json.encode(value)[1:-1]
    except UnicodeEncodeError:
        return
    yield in_json
    yield in_json.replace(b"/", b"\\/")
    yield json.dumps(value)[1:-1].encode()
    yield quote(encoded, safe="").encode()


def _swapped(wide: bytes) -> bytes:
    swapped = bytearray(wide)
    swapped[::2], swapped[1::2] = wide[1::2], wide[::2]
    return bytes(swapped)


def _base64(name: str, value: bytes) -> Iterator[KnownMatch]:
    for lead in range(3):
        core, left, right = base64_core(value, lead)
        if len(core) < MIN_BYTES:
            continue
        yield Literal(name, core, left=left, right=right)
        safe = core.translate(bytes.maketrans(b"+/", b"-_"))
        if safe != core:
            yield Literal(name, safe, left=left, right=right)


def _hex(name: str, value: bytes) -> Iterator[KnownMatch]:
    for separator in ("", ":", " "):
        hex_digits = value.hex(separator) if separator else value.hex()
        tail = value[-_HEX_WINDOW_BYTES:]
        last = tail.hex(separator) if separator else tail.hex()
        for digits in itertools.product(*[{digit, digit.upper()} for digit in last]):
            window = "".join(digits).encode()
            yield Hex(name, hex_digits.encode(), len(hex_digits) - len(last), window)
