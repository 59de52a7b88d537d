"""Search and count audit records."""

from collections.abc import Mapping

import msgspec

from gatepost.audit.record import RecordedPerson, decode_numbered, decode_person, decode_side
from gatepost.storage.audit import AuditQuery, AuditRow, Count, Position, record_id
from gatepost.storage.records import Records

MOST_AT_ONCE = 500
LOOKED_AT, READ = 10_000, 2_500
"""
Segments that one search looks through: by what they count, or reading their records, for a text or
a person. Each takes about 50 ms.
"""


class FoundRecords(msgspec.Struct, frozen=True):
    """The newest records that match a query."""

    records: list["AuditRecord"]
    looked_since: int | None = None
    """
    The time (milliseconds) before which no record was searched, although fewer records were found
    than requested; None: every record was searched.
    """

    def next_before(self, page: int) -> Position | None:
        """Return where the next page begins if one has *page* records; None: there is no more."""
        if len(self.records) > page:
            return self.records[page - 1].position
        return None if self.looked_since is None else (self.looked_since, 1, 1)


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    A decoded record.

    Erased and absent values are empty. ``at`` is in seconds since the epoch.
    """

    writer: int
    number: int
    at: float
    kind: str
    tool: str
    offer: str
    outcome: str
    duration_ms: float
    request_id: str
    retry: str
    replayed: bool
    approval: str
    depth: int
    times: int
    first: float
    limit: str
    subject_kind: str
    shared_audience: bool
    details: Mapping[str, str]
    caller: RecordedPerson | None
    about: RecordedPerson | None
    arguments: str
    reason: str
    correlation: str
    private: Mapping[str, str]
    """All details, which can be erased, by field."""
    erased: bool
    """Whether it had details that were erased."""
    hash: str

    @property
    def id(self) -> str:
        """Return how it is named among the records of its tenant."""
        return record_id(self.writer, self.number)

    @property
    def position(self) -> Position:
        """Return where it is among the records of its tenant."""
        return round(self.at * 1000), self.writer, self.number


class AuditSearch:
    """Read audit records, for the dashboard."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def search(self, tenant: str, query: AuditQuery) -> list[AuditRecord]:
        """
        Return the newest records that match *query*, at most 500.

        The next page begins before the position of the last one (``before``). Raises
        StoreUnavailable.
        """
        if query.limit > MOST_AT_ONCE:
            query = msgspec.structs.replace(query, limit=MOST_AT_ONCE)
        return [read(row) for row in await self._records.of(tenant).trail.find(query)]

    async def search_back(self, tenant: str, query: AuditQuery) -> FoundRecords:
        """
        Return what `search` returns, of a part of the records where it would read very many.

        Raises StoreUnavailable.
        """
        since = None
        if most := looked_through(query):
            before = None if query.before is None else query.before[0]
            horizon = await self._records.of(tenant).trail.horizon(before, most)
            if horizon is not None and horizon >= (query.since or 0):
                since = horizon + 1
        # If all of them ended in one millisecond, a bound would lead back to the same page.
        if since is not None and query.before is not None and since >= query.before[0]:
            since = None
        bounded = query if since is None else msgspec.structs.replace(query, since=since)
        found = await self.search(tenant, bounded)
        return FoundRecords(found, None if len(found) >= query.limit else since)

    async def get(self, tenant: str, writer: int, number: int) -> AuditRecord | None:
        """Return the record of a writer with that number, or None."""
        found = await self._records.of(tenant).trail.chain(writer).rows(number - 1, 1)
        return read(found[0]) if found and found[0].number == number else None

    async def usage(self, tenant: str, *, since: float, bucket_s: int) -> list[Count]:
        """
        Return the number of calls, refusals and refused tokens per slice of *bucket_s* seconds.

        The slices begin at *since* (seconds since the epoch), and both are of full hours; empty
        slices are left out. Refusals by a limit count as many calls as they stand for.
        """
        return await self._records.of(tenant).trail.count(int(since * 1000), bucket_s * 1000)


def looked_through(query: AuditQuery) -> int:
    """Return how many segments one search looks through; 0: as many as its records need."""
    if query.text is not None or query.subject is not None:
        return READ
    counted = (query.kind, query.tool, query.outcome)
    return LOOKED_AT if any(one is not None for one in counted) else 0


def read(row: AuditRow) -> AuditRecord:
    """Decode a row without verifying it; `verify` does that."""
    body = decode_numbered(row.body)
    side = decode_side(row.side) if row.side is not None else {}
    private = {field: value for field, (_, value) in side.items()}
    return AuditRecord(
        writer=row.writer,
        number=row.number,
        at=body.at / 1000,
        kind=body.kind,
        tool=body.tool,
        offer=body.offer,
        outcome=body.outcome,
        duration_ms=body.duration_us / 1000,
        request_id=body.request_id,
        retry=body.retry,
        replayed=body.replayed,
        approval=body.approval,
        depth=body.depth,
        times=body.times,
        first=body.first / 1000,
        limit=body.limit,
        subject_kind=body.subject_kind,
        shared_audience=body.shared_audience,
        details=body.details,
        caller=_person(private, "caller"),
        about=_person(private, "about"),
        arguments=private.get("arguments", ""),
        reason=private.get("reason", ""),
        correlation=private.get("correlation", ""),
        private=private,
        erased=bool(body.commitments) and not side,
        hash=row.hash.hex(),
    )


def _person(private: Mapping[str, str], field: str) -> RecordedPerson | None:
    return decode_person(private[field]) if field in private else None
