"""Redact encoded JSON: strings, names and numbers, and secrets split over members."""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

import msgspec

from gatepost.redaction.matching import SecretSpan
from gatepost.redaction.quoted_strings import SEPARATOR, joined_strings
from gatepost.redaction.redactor import (
    MIN_SPLIT,
    Redactor,
    is_unquoted,
    quoted,
)
from gatepost.redaction.spans import marker, merged, placed, replaced

BINARY = frozenset({b"blob", b"data"})
"""The members of MCP's content blocks whose value is base64."""
PROTOCOL = frozenset(
    {
        *(b"type", b"text", b"image", b"audio", b"resource", b"resource_link", b"uri", b"mimeType"),
        *(b"blob", b"data", b"name", b"title", b"description", b"role", b"user", b"assistant"),
        *(b"content", b"annotations", b"_meta"),
    }
)
"""The words of the protocol in content blocks, which are not redacted."""

FEW_STRINGS = 32
"""The number of elements up to which a loop takes no longer than joining them in each order."""

_encode = msgspec.json.encode
_text = msgspec.json.Decoder(str).decode

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""The errors for half a surrogate pair, and for a document that was cut within a character."""
_ESCAPED_SEPARATOR = b"\\u0000"
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")
_QUOTES = (b"u0022", b"'", b"%22", b"%27", b"&quot", b"&apos", b"&#", b"x22", b"x27")
"""The encoded quotation marks within a string."""


def cleaned(
    encoded: bytes,
    redactor: Redactor,
    *,
    blocks: bool = False,
    names: frozenset[bytes] = frozenset(),
) -> bytes | None:
    """
    Return the redacted JSON document, or None if it contains no secrets.

    The rest stays byte for byte, but for how quotation marks and backslashes are
    written. *blocks*: it is a list of MCP's content blocks, whose own words stay and whose binary
    members are looked into. *names* of members stay as well, because a schema publishes them.
    """
    document = JsonDocument(encoded, blocks=blocks, names=names)
    split = document.split(redactor)
    spans = document.spans(redactor, split)
    binary = document.redacted_binaries(redactor)
    numbers = document.numbers(redactor, split)
    return document.changed(spans, binary, numbers) if spans or binary or numbers else None


class DocumentLeaf(NamedTuple):
    """A string with its index, or a number with its place after the indexes of all strings."""

    at: int
    raw: bytes


class Split(NamedTuple):
    """The parts of split secrets in each leaf."""

    strings: dict[int, list[SecretSpan]]
    numbers: list[SecretSpan]


class JsonDocument:
    """A JSON document as its strings and the text between them."""

    def __init__(
        self, encoded: bytes, *, blocks: bool = False, names: frozenset[bytes] = frozenset()
    ) -> None:
        if b"\\" in encoded:
            # Removed, so that each quotation mark is the beginning or the end of a string.
            encoded = bare(encoded)
        if encoded.count(b'"') % 2 == 1:
            encoded += b'"'  # no JSON, because its last string has no end
        self._encoded, self._escaped = encoded, b"\\" in encoded
        pieces = encoded.split(b'"')
        self._between, self._strings = pieces[::2], pieces[1::2]
        self._blocks, self._names = blocks, names

    @cached_property
    def _texts(self) -> list[bytes]:
        """Return the decoded strings; created when something is found in one."""
        return [*map(plain_string, self._strings)] if self._escaped else self._strings

    def spans(self, redactor: Redactor, split: Split) -> dict[int, list[SecretSpan]]:
        """Return the spans to redact in each string."""
        spans_by_string = split.strings
        joined_spans = redactor.spans(self.text)
        if joined_spans:
            for pieces in placed(joined_spans, [*map(len, self._texts)], 1):
                for index, piece in pieces:
                    spans_by_string.setdefault(index, []).append(piece)
        return {
            index: merged(spans)
            for index, spans in spans_by_string.items()
            if not self._stays(index)
        }

    @cached_property
    def text(self) -> bytes:
        """Return the decoded strings with a separator between them."""
        return self._joined(self._strings, SEPARATOR, _ESCAPED_SEPARATOR)

    def split(self, redactor: Redactor) -> Split:
        """Return the secrets that are split over consecutive leaves in one of the views."""
        split = Split({}, [])
        if redactor.is_empty:
            return split
        for index in self._quoting(redactor.shortest // 2):
            if quoted_spans := quoted(self._texts[index], redactor):
                split.strings[index] = quoted_spans
        if not self._may_be_split(redactor):
            return split
        for view in self._views():
            quoted_spans = redactor.values(self._joined([raw for _, raw in view], b"", b""))
            quoted_spans = [piece for piece in quoted_spans if piece.end - piece.start >= MIN_SPLIT]
            if not quoted_spans:
                continue
            texts = [self._texts[at] if at < len(self._strings) else raw for at, raw in view]
            for pieces in placed(quoted_spans, [*map(len, texts)]):
                self._take(split, [(view[nth].at, piece) for nth, piece in pieces])
        return split

    def _may_be_split(self, redactor: Redactor) -> bool:
        """Decide the usual case of a document of many members, without a loop over them."""
        if self._blocks or len(self._strings) <= FEW_STRINGS:
            return True
        # With a backslash at its end, a string would seem to escape the quotation mark.
        is_marked = b"\\" + SEPARATOR in self.text or self.text.endswith(b"\\")
        if not is_marked and self.text.count(SEPARATOR) == len(self._strings) - 1:
            # The screen finds a value in whatever order the strings are joined, and needs nothing
            # of what is between them. In the decoded strings are quotation marks as well.
            quoted_texts = b'"%b"' % self.text.replace(SEPARATOR, b'""')
            if redactor.is_unsplit(quoted_texts, is_paired=False):
                return False
        return any(
            redactor.values(self._joined([view], b"", b""))
            for view in joined_strings(self._encoded, b'"')
        )

    def _quoting(self, min_bytes: int) -> Iterator[int]:
        """Yield the strings of that size that may hold another document."""
        if is_unquoted(self.text):
            return  # faster than a search for each mark
        for index, string in enumerate(self._strings):
            if len(string) < min_bytes or is_unquoted(string):
                continue
            if any(mark in string for mark in _QUOTES):
                yield index

    def _take(self, split: Split, pieces: Sequence[tuple[int, SecretSpan]]) -> None:
        """Record the spans of one secret."""
        strings = len(self._strings)
        if all(index >= strings for index, _ in pieces):
            return  # adjacent numbers are not one value
        for index, piece in pieces:
            if index < strings:
                split.strings.setdefault(index, []).append(piece)
            else:
                start = index - strings
                split.numbers.append(SecretSpan(start, start + 1, piece.name))

    def _views(self) -> Iterator[list[DocumentLeaf]]:
        """
        Yield the orders in which a reader may join the leaves.

        These are all values, the values with the numbers between them, and names with their values;
        in blocks the texts alone, whatever else each of them says of itself.
        """
        following = self._between[1:]
        leaves = [DocumentLeaf(*item) for item in enumerate(self._strings)]
        values = [
            leaf for leaf, text in zip(leaves, following, strict=True) if text.lstrip()[:1] != b":"
        ]
        has_names = len(values) < len(leaves)
        if self._blocks:
            values, every = self._unworded(values), self._unworded(leaves)
            has_names = len(values) < len(every)
            leaves, texts = every, self._members(b"text")
            if 1 < len(texts) < len(values):
                yield texts
        if len(values) > 1:
            yield values
        if has_names:
            yield leaves
        if values and (numbers := self._numbers()):
            leaves_by_index = {leaf.at: leaf for leaf in values}
            in_order: list[DocumentLeaf] = []
            for index, gap_numbers in enumerate(numbers):
                in_order += gap_numbers
                if index in leaves_by_index:
                    in_order.append(leaves_by_index[index])
            yield in_order

    def _unworded(self, leaves: list[DocumentLeaf]) -> list[DocumentLeaf]:
        return [leaf for leaf in leaves if leaf.raw not in PROTOCOL]

    def _members(self, name: bytes) -> list[DocumentLeaf]:
        """Return the values of all members with that name."""
        strings = self._strings
        return [
            DocumentLeaf(index, strings[index])
            for index in range(1, len(strings))
            if strings[index - 1] == name and self._is_name(index - 1)
        ]

    def _numbers(self) -> list[list[DocumentLeaf]]:
        """Return the numbers before each string and after the last one."""
        by_gap: list[list[DocumentLeaf]] = []
        start, found_any = len(self._strings), False
        for gap in self._between:
            by_gap.append([DocumentLeaf(start + n.start(), n[0]) for n in _NUMBER.finditer(gap)])
            found_any = found_any or bool(by_gap[-1])
            start += len(gap) + len(SEPARATOR)
        return by_gap if found_any else []

    def _stays(self, index: int) -> bool:
        if self._blocks and self._texts[index] in PROTOCOL:
            return True
        return self._texts[index] in self._names and self._is_name(index)

    def redacted_binaries(self, redactor: Redactor) -> dict[int, bytes]:
        """Return the redacted binary members that contain secrets."""
        replacements: dict[int, bytes] = {}
        if not self._blocks or BINARY.isdisjoint(self._strings):
            return replacements
        for index, name in enumerate(self._strings[:-1]):
            if name in BINARY and self._is_name(index):
                data = _binary(self._strings[index + 1])
                if spans := redactor.spans(data):
                    replacements[index + 1] = base64.b64encode(replaced(data, spans))
        return replacements

    def numbers(self, redactor: Redactor, split: Split) -> list[SecretSpan]:
        """Return the secrets in numbers between the strings."""
        gaps_text = SEPARATOR.join(self._between)
        if redactor.is_empty or not any(digit in gaps_text for digit in b"0123456789"):
            return []
        return redactor.values(gaps_text) + split.numbers

    def changed(
        self,
        spans_by_string: dict[int, list[SecretSpan]],
        binary: dict[int, bytes],
        numbers: list[SecretSpan],
    ) -> bytes:
        """Return the document with markers."""
        strings, gaps = [*self._strings], self._between
        for index, spans in spans_by_string.items():
            redacted_text = replaced(self._texts[index], spans).decode(errors="replace")
            strings[index] = _encode(redacted_text)[1:-1]
        for index, data in binary.items():
            strings[index] = data
        if numbers:
            gaps = _without_numbers(SEPARATOR.join(gaps), numbers).split(SEPARATOR)
        pieces = [b""] * (len(gaps) + len(strings))
        pieces[::2], pieces[1::2] = gaps, strings
        return b'"'.join(pieces)

    def _is_name(self, index: int) -> bool:
        return self._between[index + 1].lstrip()[:1] == b":"

    def _joined(self, strings: list[bytes], separator: bytes, escaped: bytes) -> bytes:
        """Return these decoded strings, joined."""
        if self._escaped:
            joined = escaped.join(strings)
            with suppress(*_UNREADABLE):
                return _text(b'"%s"' % joined).encode() if b"\\" in joined else joined
            return separator.join(map(plain_string, strings))
        return separator.join(strings)


def bare(encoded: bytes) -> bytes:
    """Write the quotation marks and backslashes in strings as escapes without either of them."""
    return encoded.replace(b"\\\\", b"\\u005c").replace(b'\\"', b"\\u0022")


def plain_string(string: bytes) -> bytes:
    """Return a string of JSON, without its quotation marks, decoded if it can be."""
    if b"\\" not in string:
        return string
    try:
        return _text(b'"%s"' % string).encode()
    except _UNREADABLE:
        return string  # read unchanged; escapes are decoded later


def _binary(string: bytes) -> bytes:
    try:
        return base64.b64decode(string)
    except binascii.Error:
        return b""


def _without_numbers(gaps_text: bytes, spans: list[SecretSpan]) -> bytes:
    """Replace numbers that contain a secret with strings."""
    pieces: list[bytes] = []
    position = 0
    for number in _NUMBER.finditer(gaps_text):
        overlapping = [
            span for span in spans if span.start < number.end() and number.start() < span.end
        ]
        if overlapping:
            pieces += gaps_text[position : number.start()], b'"%s"' % marker(overlapping[0].name)
            position = number.end()
    return b"".join([*pieces, gaps_text[position:]])
