"""Records as people read them: searched, counted."""

from collections.abc import Mapping

import msgspec

from gatepost.audit.record import Person, decode_numbered, decode_person, decode_side
from gatepost.stores.api import Records
from gatepost.stores.audit import Count, Question, Row

MOST_AT_ONCE = 500


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """
    One record, read.

    What was erased is empty, and so is what never was. ``at`` is in seconds since the epoch.
    """

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
    limit: str
    subject_kind: str
    shared_audience: bool
    details: Mapping[str, str]
    caller: Person | None
    about: Person | None
    arguments: str
    reason: str
    correlation: str
    private: Mapping[str, str]
    """All that can be erased, by field."""
    erased: bool
    """Whether it had details that were erased."""
    hash: str


class Trail:
    """The reading side, for the dashboard; each tenant's records are found through it alone."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def search(self, tenant: str, question: Question) -> list[Record]:
        """
        The newest records that *question* is about, at most 500; the next page is behind the number
        of the last one (``before``). Raises StoreUnavailable.
        """
        if question.limit > MOST_AT_ONCE:
            question = msgspec.structs.replace(question, limit=MOST_AT_ONCE)
        return [read(row) for row in await self._records.of(tenant).trail.find(question)]

    async def get(self, tenant: str, number: int) -> Record | None:
        """The record of that number."""
        found = await self._records.of(tenant).trail.rows(number - 1, 1)
        return read(found[0]) if found and found[0].number == number else None

    async def usage(self, tenant: str, *, since: float, bucket_s: int) -> list[Count]:
        """
        How many records of each kind, tool and outcome there are in each slice of so many seconds,
        from *since* (seconds since the epoch) to now, and of refusals by a limit how many calls
        they were; slices without any are left out.
        """
        return await self._records.of(tenant).trail.count(int(since * 1000), bucket_s * 1000)


def read(row: Row) -> Record:
    """A row as a record; what it says is believed, see `verify`."""
    body = decode_numbered(row.body)
    side = decode_side(row.side) if row.side is not None else {}
    private = {field: value for field, (_, value) in side.items()}
    return Record(
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


def _person(private: Mapping[str, str], field: str) -> Person | None:
    return decode_person(private[field]) if field in private else None
