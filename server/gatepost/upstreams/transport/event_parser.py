"""Parse server-sent events from bytes as they arrive; pure, and bounded."""

import re

import msgspec

MAX_LINES = 100_000
"""
Maximum number of lines of one stream before its next event ends; comments and unknown fields count
too.
"""
MAX_RETRY_MS = 3_600_000

_LINE_END = re.compile(rb"\r\n|\n|\r")
_DIGITS = re.compile(rb"[0-9]{1,9}")
_BOM = b"\xef\xbb\xbf"


class StreamTooLarge(ValueError):
    """An event is too large to be read; the message is the rest of a sentence about the server."""


class ReceivedEvent(msgspec.Struct, frozen=True):
    """One event of a stream (HTML Living Standard, section 9.2)."""

    type: str
    data: bytes
    id: str
    """The last event id of the stream, empty if it has none."""


class EventParser:
    """
    Splits a stream into events, whatever parts it arrives in.

    An event of more than *max_bytes* is refused as soon as this is certain. *last_id* is that of
    the event after which the stream is continued.
    """

    def __init__(self, max_bytes: int, *, max_lines: int = MAX_LINES, last_id: str = "") -> None:
        self.last_id = last_id
        self.retry_ms: int | None = None
        """How long the server asks to wait before the stream is continued."""
        self._most_bytes, self._most_lines = max_bytes, max_lines
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
        self._type = b""
        self._size = self._lines = 0
        self._after_return = False
        self._has_begun = False

    def receive(self, piece: bytes) -> list[ReceivedEvent]:
        """Return the events that end in *piece*; raises StreamTooLarge."""
        if self._after_return and piece:
            piece = piece.removeprefix(b"\n")
            self._after_return = False
        if not piece:
            return []
        self._after_return = piece.endswith(b"\r")
        *lines, remainder = _LINE_END.split(piece)
        events: list[ReceivedEvent] = []
        for line in lines:
            self._add_part(line)
            full = b"".join(self._partial)
            self._partial.clear()
            if (event := self._line(full)) is not None:
                events.append(event)
        self._add_part(remainder)
        return events

    def _add_part(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._most_bytes:
            raise StreamTooLarge("sent a message that is larger than is read")
        if part:
            self._partial.append(part)

    def _line(self, line: bytes) -> ReceivedEvent | None:
        if not self._has_begun:
            line, self._has_begun = line.removeprefix(_BOM), True
        self._lines += 1
        if self._lines > self._most_lines:
            raise StreamTooLarge("sent a stream of more lines than are read")
        if not line:
            return self._dispatched()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            return None
        # Only data is kept, so other fields do not count against the size of the event.
        self._size -= len(line)
        if name == b"event":
            self._type = value[:100]
        elif name == b"id" and b"\0" not in value and len(value) <= 1024:
            self.last_id = value.decode(errors="replace")
        elif name == b"retry" and _DIGITS.fullmatch(value):
            self.retry_ms = min(int(value), MAX_RETRY_MS)
        return None

    def _dispatched(self) -> ReceivedEvent | None:
        data, kind = self._data, self._type
        self._data, self._type, self._size = [], b"", 0
        event_data = b"\n".join(data)
        if not event_data.strip():
            return None  # it only carries an id, from which the stream can be continued
        self._lines = 0
        return ReceivedEvent(kind.decode(errors="replace") or "message", event_data, self.last_id)
