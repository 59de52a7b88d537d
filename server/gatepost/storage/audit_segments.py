"""
Segments: audit records that were written together, stored as one JSON array.

Each element is ``{"record":…,"side":…,"hash":"…"}``: the body, the details behind its commitments
(if any) and the hash in hexadecimal. The hash is of the body's bytes, so bodies and details are
never encoded again. A table with one row for each record takes five times as long to write.
"""

from binascii import hexlify
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from functools import lru_cache
from itertools import pairwise

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.storage.audit import (
    FIRST_WRITER,
    AuditQuery,
    AuditRow,
    ChainHead,
    ChainKey,
    Segment,
    Sort,
)
from gatepost.storage.errors import StoreUnavailable

MAX_BYTES = 262_144
"""Maximum number of bytes of a segment, so that a few of them fit into memory."""

HOUR_MS = 3_600_000

MAX_COUNTS = 1_000
"""
The number of values of the column `counts` that are cached: most segments have a few records of one
sort.
"""

_BEGIN, _HASH = '{"record":', ',"hash":"'
_BETWEEN = f",{_BEGIN}"
"""
The bytes between two elements. They occur nowhere else: a quote in a text is escaped, and no body
or details contain an array of objects.
"""


MAX_COUNTED = 1 << 40
"""The number of records above which a segment is damaged: a database cannot add larger numbers."""

Counts = tuple[tuple[tuple[str, str, str, str], int], ...]
"""Kind, tool, outcome and limit, and their number."""


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


_encode = msgspec.json.encode
_elements = msgspec.json.Decoder(list[_Element]).decode
_element = msgspec.json.Decoder(_Element).decode
_members = msgspec.json.Decoder(_RecordTexts).decode
_side = msgspec.json.Decoder(_Side).decode
_caller = msgspec.json.Decoder(_RecordCaller).decode
_counts = msgspec.json.Decoder(list[tuple[str | int, ...]]).decode
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
        return [Segment(writer, first, first, at, at, _usual_counts(sorts[0], 1), records)]
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


def counts_of(sorts: Sequence[Sort]) -> str:
    """Return the column `counts` of a segment with records of these sorts."""
    if len({*sorts}) == 1:
        return _usual_counts(sorts[0], len(sorts))  # true for nearly all segments
    return _counts_of(sorts)


@lru_cache(MAX_COUNTS)
def _usual_counts(sort: Sort, number: int) -> str:
    return _counts_of([sort] * number)


def _counts_of(sorts: Sequence[Sort]) -> str:
    counted: Counter[tuple[str, ...]] = Counter()
    for sort, number in Counter(sorts).items():
        if len(sort) == 3:
            counted[sort] += number
        else:
            *fields, times = sort
            counted[(*fields,)] += number * times
    return _encode([(*sort, number) for sort, number in sorted(counted.items())]).decode()


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
        counts = _added(tuple([segment.counts for segment in group]))
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


@lru_cache(MAX_COUNTS)
def _added(counts: tuple[str, ...]) -> str:
    """Return the column `counts` of several segments from that of each."""
    sums: Counter[tuple[str | int, ...]] = Counter()
    for text in counts:
        for *sort, number in _counts(text):
            sums[(*sort,)] += int(number)
    return _encode([(*sort, number) for sort, number in sorted(sums.items())]).decode()


def pieces(segment: Segment) -> list[str]:
    """Split a segment into its elements without reading them; raises Damaged."""
    text: object = segment.records
    # SQLite accepts any value in any column.
    if not isinstance(text, str) or text[:1] != "[" or text[-1:] != "]":
        raise Damaged(segment.first)
    first, *remaining = text[1:-1].split(_BETWEEN)
    return [first, *(_BEGIN + part for part in remaining)]


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


def answers(segments: Iterable[Segment], query: AuditQuery) -> list[AuditRow]:
    """Return all records of these segments that match a query."""
    text = None if query.text is None else quoted(query.text).lower()
    rows: list[AuditRow] = []
    for segment in segments:
        candidates = rows_of(segment) if text is None else _may_contain(text, segment)
        rows += [row for row in candidates if _answers(row, query, text)]
    return rows


def newest(rows: Iterable[AuditRow], limit: int) -> list[AuditRow]:
    """Return the newest records, the newest first."""
    return sorted(rows, key=lambda row: row.position, reverse=True)[:limit]


def _may_contain(text: str, segment: Segment) -> list[AuditRow]:
    """Return the records that may contain the text; a fifth of the cost of reading all."""
    return [
        row_of(number, piece)
        for number, piece in enumerate(pieces(segment), segment.first)
        if text in piece[len(_BEGIN) : piece.rfind(_HASH)].lower()
    ]


def _answers(row: AuditRow, query: AuditQuery, text: str | None) -> bool:
    return (
        query.tool in (None, row.tool)
        and query.subject in (None, row.subject)
        and query.outcome in (None, row.outcome)
        and query.kind in (None, row.kind)
        and (query.since is None or row.at >= query.since)
        and (query.until is None or row.at < query.until)
        and (query.before is None or row.position < query.before)
        and (text is None or text in row.body.lower() or text in (row.side or "").lower())
    )


def quoted(text: str) -> str:
    """Return a text as JSON without the quotes; lone surrogates as records encode them."""
    return _encode(text.encode("utf-8", "backslashreplace").decode())[1:-1].decode()


def counted(segment: Segment) -> Counts:
    """Return what `read_counts` returns for a segment; raises Damaged."""
    try:
        return read_counts(segment.counts)
    except _UNREADABLE:
        raise Damaged(segment.first) from None


@lru_cache(MAX_COUNTS)
def read_counts(counts: str) -> Counts:
    """
    Return the number of records of each kind, tool, outcome and limit of the column `counts`.

    Refusals by a limit count as many calls as they stand for. Raises ValueError.
    """
    parsed_counts = []
    for entry in _counts(counts):
        match entry:
            case (str(kind), str(tool), str(outcome), int(number)) if number <= MAX_COUNTED:
                parsed_counts.append(((kind, tool, outcome, ""), number))
            case (str(kind), str(tool), str(outcome), str(limit), int(number)) if (
                number <= MAX_COUNTED
            ):
                parsed_counts.append(((kind, tool, outcome, limit), number))
            case _:
                raise ValueError(f"no sort of records has {len(entry)} fields like these")
    return (*parsed_counts,)
