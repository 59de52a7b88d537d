"""
Segments: audit records that were written together, stored as one JSON array.

Each element is ``{"record":…,"side":…,"hash":"…"}``: the body, the details behind its commitments
(if any) and the hash in hexadecimal. The hash is of the body's bytes, so bodies and details are
never encoded again. A table with one row for each record takes five times as long to write.
"""

from binascii import hexlify
from collections.abc import Iterable, Sequence, Set
from itertools import pairwise

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.storage.audit import (
    FIRST_WRITER,
    AuditRow,
    ChainHead,
    ChainKey,
    Segment,
    Sort,
)
from gatepost.storage.audit_counts import (
    Counts,
    counts_of,
    joined_counts,
    read_counts,
    usual_counts,
)
from gatepost.storage.errors import StoreUnavailable

MAX_BYTES = 262_144
"""Maximum number of bytes of a segment, so that a few of them fit into memory."""

HOUR_MS = 3_600_000

BEGIN, HASH = '{"record":', ',"hash":"'
_BETWEEN = f",{BEGIN}"
"""
The bytes between two elements. They occur nowhere else: a quote in a text is escaped, and no body
or details contain an array of objects.
"""


class Damaged(StoreUnavailable):
    """Raised for a segment that cannot be read because the database was changed."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"the record cannot be read from {number} on: `gatepost audit verify` tells more"
        )


class _Element(msgspec.Struct):
    record: Raw
    hash: str
    side: Raw | UnsetType = UNSET


class _RecordTexts(msgspec.Struct):
    at: int
    kind: str
    tool: str = ""
    outcome: str = ""
    writer: int = FIRST_WRITER
    limit: str = ""
    times: int = 1


class _Side(msgspec.Struct):
    caller: tuple[str, str] | None = None


class _RecordCaller(msgspec.Struct):
    subject: str


_elements = msgspec.json.Decoder(list[_Element]).decode
_element = msgspec.json.Decoder(_Element).decode
_members = msgspec.json.Decoder(_RecordTexts).decode
_side = msgspec.json.Decoder(_Side).decode
_caller = msgspec.json.Decoder(_RecordCaller).decode
_UNREADABLE = (msgspec.DecodeError, ValueError, TypeError, RecursionError)


def element(body: bytes, side: bytes | None, digest: bytes) -> bytes:
    """Encode a record as an element of a segment."""
    if side is None:
        return b"".join((b'{"record":', body, b',"hash":"', hexlify(digest), b'"}'))
    return b"".join((b'{"record":', body, b',"side":', side, b',"hash":"', hexlify(digest), b'"}'))


def segments(
    writer: int,
    first: int,
    elements: Sequence[bytes],
    times: Sequence[int],
    sorts: Sequence[Sort],
) -> list[Segment]:
    """
    Join elements, with their times and sorts, to as few segments as possible.

    The records of a segment ended within one hour, by which they are counted.
    """
    if len(elements) == 1:
        at, records = times[0], (b"[%b]" % elements[0]).decode()
        return [Segment(writer, first, first, at, at, usual_counts(sorts[0], 1), records)]
    cuts = [0]
    if sum(map(len, elements)) > MAX_BYTES or len({at // HOUR_MS for at in times}) > 1:
        size = 0
        for at, element in enumerate(elements):
            size += len(element)
            other_hour = times[at] // HOUR_MS != times[at - 1] // HOUR_MS
            if (size > MAX_BYTES or other_hour) and at > cuts[-1]:
                cuts.append(at)
                size = len(element)
    return [
        Segment(
            writer,
            first + begin,
            first + end - 1,
            min(times[begin:end]),
            max(times[begin:end]),
            counts_of(sorts[begin:end]),
            (b"[%b]" % b",".join(elements[begin:end])).decode(),
        )
        for begin, end in pairwise([*cuts, len(elements)])
        if begin < end
    ]


def joined(segments: Sequence[Segment]) -> list[Segment]:
    """
    Join consecutive segments of a chain to a few, of one hour and up to `MAX_BYTES` each.

    Raises Damaged if the counts of one cannot be read.
    """
    if len(segments) < 2:
        return [*segments]
    if sum([len(segment.records) for segment in segments]) <= MAX_BYTES and _continues(segments):
        return [_together(segments)]  # true for nearly all segments
    middle = len(segments) // 2
    return [*joined(segments[:middle]), *joined(segments[middle:])]


def _continues(segments: Sequence[Segment]) -> bool:
    """Return whether each segment follows the one before, in the same hour."""
    following = [segment.last + 1 for segment in segments[:-1]] == [
        segment.first for segment in segments[1:]
    ]
    return following and len({segment.since // HOUR_MS for segment in segments}) == 1


def _together(group: Sequence[Segment]) -> Segment:
    first, last = group[0], group[-1]
    try:
        counts = joined_counts(tuple([segment.counts for segment in group]))
    except _UNREADABLE:
        raise Damaged(first.first) from None
    return Segment(
        first.writer,
        first.first,
        last.last,
        min([segment.since for segment in group]),
        max([segment.until for segment in group]),
        counts,
        f"[{','.join([segment.records[1:-1] for segment in group])}]",
    )


def pieces(segment: Segment) -> list[str]:
    """Split a segment into its elements without reading them; raises Damaged."""
    text: object = segment.records
    # SQLite accepts any value in any column.
    if not isinstance(text, str) or text[:1] != "[" or text[-1:] != "]":
        raise Damaged(segment.first)
    first, *remaining = text[1:-1].split(_BETWEEN)
    return [first, *(BEGIN + part for part in remaining)]


def row_of(number: int, piece: str) -> AuditRow:
    """Read an element; raises Damaged unless it is encoded exactly as `element` does it."""
    try:
        row = _row(number, _element(piece))
    except _UNREADABLE:
        raise Damaged(number) from None
    if _written(row).decode() != piece:
        raise Damaged(number)
    return row


def rows_of(segment: Segment) -> list[AuditRow]:
    """Read the records of a segment without verifying them; raises Damaged."""
    try:
        elements = _elements(segment.records)
        return [_row(number, element) for number, element in enumerate(elements, segment.first)]
    except _UNREADABLE:
        raise Damaged(segment.first) from None


def _row(number: int, element: _Element) -> AuditRow:
    body = bytes(element.record)
    members = _members(body)
    side = subject = None
    if element.side is not UNSET:
        data = bytes(element.side)
        caller = _side(data).caller
        subject = None if caller is None else _caller(caller[1]).subject
        side = data.decode()
    return AuditRow(
        number,
        members.at,
        members.kind,
        members.tool,
        members.outcome,
        subject,
        body.decode(),
        side,
        bytes.fromhex(element.hash),
        members.writer,
        members.limit,
        members.times,
    )


def _written(row: AuditRow) -> bytes:
    return element(row.body.encode(), None if row.side is None else row.side.encode(), row.hash)


def rows_after(segments: Iterable[Segment], after: int) -> list[AuditRow]:
    """Return the records after a number."""
    return [row for segment in segments for row in rows_of(segment) if row.number > after]


def erased(segment: Segment, numbers: Set[int]) -> Segment:
    """Return a segment without the details of these records, or the same object."""
    if not any(segment.first <= number <= segment.last for number in numbers):
        return segment
    rows = [
        msgspec.structs.replace(row, side=None) if row.number in numbers else row
        for row in rows_of(segment)
    ]
    records = b"[%b]" % b",".join(map(_written, rows))
    return msgspec.structs.replace(segment, records=records.decode())


def end_of(chain: ChainKey, head: ChainHead | None, newest: Segment) -> ChainHead:
    """
    Return the end of a chain whose newest segment stands after its head, without a proof.

    The hash is zero if the segment cannot be read.
    """
    try:
        digest = rows_of(newest)[-1].hash
    except (Damaged, IndexError):
        digest = bytes(32)
    numbers: tuple[object, ...] = (newest.first, newest.last)
    number = max(value for value in numbers if isinstance(value, int))
    return ChainHead(*chain, number, digest, 0 if head is None else head.pruned, "")


def intact(unchecked: Iterable[Segment]) -> list[Segment]:
    """Return these segments; raises Damaged if a column of one has a value of another type."""
    segments = list(unchecked)
    for segment in segments:
        numbers: tuple[object, ...] = (segment.first, segment.last, segment.since, segment.until)
        if not all(isinstance(number, int) for number in numbers):
            raise Damaged(segment.first)
    return segments


def remainder(segment: Segment, through: int) -> list[Segment]:
    """Return what remains of a segment without the records up to a number."""
    if segment.first > through:
        return [segment]
    rows = rows_after([segment], through) if segment.last > through else []
    return compacted(segment.writer, through + 1, rows)


def compacted(writer: int, first: int, rows: Sequence[AuditRow]) -> list[Segment]:
    """Join records to as few segments as possible."""
    times, sorts = [row.at for row in rows], [row.sort for row in rows]
    return segments(writer, first, [*map(_written, rows)], times, sorts)


def counted(segment: Segment) -> Counts:
    """Return what `read_counts` returns for a segment; raises Damaged."""
    try:
        return read_counts(segment.counts)
    except _UNREADABLE:
        raise Damaged(segment.first) from None
