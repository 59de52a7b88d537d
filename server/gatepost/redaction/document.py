"""Encoded JSON without secrets: in strings, names and numbers, and split over several strings."""

import base64
import binascii
import re
from bisect import bisect_right
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, compress, count

import msgspec

from gatepost.redaction.automaton import Redactor, marker, merged, replaced
from gatepost.redaction.mark import Span

BINARY = frozenset({b"blob", b"data"})
"""Members of MCP's blocks whose value is base64."""
PROTOCOL = frozenset(
    {
        *(b"type", b"text", b"image", b"audio", b"resource", b"resource_link", b"uri", b"mimeType"),
        *(b"blob", b"data", b"name", b"title", b"description", b"role", b"user", b"assistant"),
        *(b"content", b"annotations", b"_meta"),
    }
)
"""Words that content blocks are made of: taken out, they would leave no block."""
LEAST_SPLIT = 8
"""How many bytes a secret has at least that is looked for across strings."""

_encode = msgspec.json.encode
_text = msgspec.json.Decoder(str).decode


_SEPARATOR, _ESCAPED_SEPARATOR = b"\0", b"\\u0000"
"""In no token, and in no secret."""
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")


def cleaned(
    encoded: bytes,
    redactor: Redactor,
    *,
    blocks: bool = False,
    names: frozenset[bytes] = frozenset(),
) -> bytes | None:
    """
    The JSON document without secrets, or None where it holds none.

    What is not taken out stays byte for byte, but for how quotation marks and backslashes are
    written. *blocks*: it is a list of MCP's content blocks, whose own words stay and whose binary
    members are looked into. *names* of members stay as well: a schema has told them to everybody.
    """
    document = _Document(encoded, blocks=blocks, names=names)
    found = document.spans(redactor)
    binary = document.without(redactor)
    numbers = document.numbers(redactor)
    return document.changed(found, binary, numbers) if found or binary or numbers else None


class _Document:
    """JSON as its strings, and what stands between them."""

    def __init__(self, encoded: bytes, *, blocks: bool, names: frozenset[bytes]) -> None:
        if b"\\" in encoded:
            # So that each quotation mark is the beginning or the end of a string.
            encoded = encoded.replace(b"\\\\", b"\\u005c").replace(b'\\"', b"\\u0022")
        self._escaped = b"\\" in encoded
        pieces = encoded.split(b'"')
        if len(pieces) % 2 == 0:
            pieces.append(b"")  # no JSON: its last string has no end
        self._between, self._strings = pieces[::2], pieces[1::2]
        self._blocks, self._names = blocks, names

    @cached_property
    def _texts(self) -> list[bytes]:
        """The strings as they are read; made where something is found in one."""
        return [*map(_plain, self._strings)] if self._escaped else self._strings

    def spans(self, redactor: Redactor) -> dict[int, list[Span]]:
        """What is to be taken out of which string."""
        found: dict[int, list[Span]] = {}
        alone = redactor.spans(self._joined(self._strings, _SEPARATOR, _ESCAPED_SEPARATOR))
        if alone:
            self._place(alone, [*range(len(self._strings))], 1, found)
        values = self._values()
        strings = [*compress(self._strings, values)]
        if len(strings) > 1:
            split = redactor.spans(self._joined(strings, b"", b""))
            split = [one for one in split if one.secret and one.end - one.start >= LEAST_SPLIT]
            if split:
                self._place(split, [*compress(count(), values)], 0, found)
        return {index: merged(spans) for index, spans in found.items() if not self._stays(index)}

    def _stays(self, index: int) -> bool:
        if self._blocks and self._texts[index] in PROTOCOL:
            return True
        return self._texts[index] in self._names and self._is_name(index)

    def without(self, redactor: Redactor) -> dict[int, bytes]:
        """The binary members that hold something, as they are without it."""
        found: dict[int, bytes] = {}
        if not self._blocks or BINARY.isdisjoint(self._strings):
            return found
        for index, name in enumerate(self._strings[:-1]):
            if name in BINARY and self._is_name(index):
                data = _binary(self._strings[index + 1])
                if spans := redactor.spans(data):
                    found[index + 1] = base64.b64encode(replaced(data, spans))
        return found

    def numbers(self, redactor: Redactor) -> list[Span]:
        """Secrets that stand as numbers, in what is between the strings."""
        between = _SEPARATOR.join(self._between)
        if redactor.plain or not any(digit in between for digit in b"0123456789"):
            return []
        return [one for one in redactor.spans(between) if one.secret]

    def changed(
        self, found: dict[int, list[Span]], binary: dict[int, bytes], numbers: list[Span]
    ) -> bytes:
        """The document with markers."""
        strings, between = [*self._strings], self._between
        for index, spans in found.items():
            plain = replaced(self._texts[index], spans).decode(errors="replace")
            strings[index] = _encode(plain)[1:-1]
        for index, data in binary.items():
            strings[index] = data
        if numbers:
            between = _without_numbers(_SEPARATOR.join(between), numbers).split(_SEPARATOR)
        pieces = [b""] * (len(between) + len(strings))
        pieces[::2], pieces[1::2] = between, strings
        return b'"'.join(pieces)

    def _is_name(self, index: int) -> bool:
        return self._between[index + 1].lstrip()[:1] == b":"

    def _joined(self, strings: list[bytes], separator: bytes, escaped: bytes) -> bytes:
        """These strings as they are read, one after another."""
        if self._escaped:
            whole = escaped.join(strings)
            with suppress(msgspec.DecodeError):  # half a surrogate pair
                return _text(b'"%s"' % whole).encode() if b"\\" in whole else whole
            return separator.join(map(_plain, strings))
        return separator.join(strings)

    def _values(self) -> list[bool]:
        """Which strings are values and may hold anything."""
        values = [behind[:1] != b":" for behind in self._between[1:]]
        if self._blocks:
            words = map(PROTOCOL.__contains__, self._strings)
            values = [value and not word for value, word in zip(values, words, strict=True)]
        return values

    def _place(
        self, spans: list[Span], joined: list[int], apart: int, found: dict[int, list[Span]]
    ) -> None:
        """Spans of strings that were joined, *apart* bytes between them, as spans of each."""
        lengths = [len(self._texts[each]) + apart for each in joined]
        starts = [0, *accumulate(lengths)]
        for span in spans:
            place = bisect_right(starts, span.start) - 1
            while place < len(joined) and starts[place] < span.end:
                index, start = joined[place], starts[place]
                length = len(self._texts[index])
                first, last = max(span.start - start, 0), min(span.end - start, length)
                if first < last:
                    one = Span(first, last, span.name, span.secret)
                    found.setdefault(index, []).append(one)
                place += 1


def _plain(string: bytes) -> bytes:
    if b"\\" not in string:
        return string
    try:
        return _text(b'"%s"' % string).encode()
    except msgspec.DecodeError:
        return string  # half a surrogate pair: read as it is, escapes are undone later


def _binary(string: bytes) -> bytes:
    try:
        return base64.b64decode(string)
    except binascii.Error:
        return b""


def _without_numbers(between: bytes, spans: list[Span]) -> bytes:
    """A number that holds a secret becomes a string that says so."""
    pieces: list[bytes] = []
    position = 0
    for number in _NUMBER.finditer(between):
        inside = [one for one in spans if one.start < number.end() and number.start() < one.end]
        if inside:
            pieces += between[position : number.start()], b'"%s"' % marker(inside[0].name)
            position = number.end()
    return b"".join([*pieces, between[position:]])
