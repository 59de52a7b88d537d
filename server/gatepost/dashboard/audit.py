"""The audit pages: search, and single records with their proof."""

import time
from collections.abc import Sequence
from typing import Literal, get_args
from urllib.parse import urlencode

import msgspec

from gatepost.audit.chain import START, commitment, hash_of
from gatepost.audit.checkpoints import last_numbers
from gatepost.audit.record import (
    AuditRecord,
    RecordKind,
    decode_numbered,
    decode_side,
    read,
    search,
)
from gatepost.dashboard import argument_tree
from gatepost.dashboard.page import NotShown, PageRequest, PageResponse
from gatepost.dashboard.templating import Templates
from gatepost.storage.audit import (
    FIRST_WRITER,
    AuditQuery,
    AuditRow,
    AuditStore,
    Checkpoint,
    Position,
    record_id,
)

PAGE_SIZE = 50
MAX_TEXT = 200
SEARCHED_SEGMENTS, READ_SEGMENTS = 10_000, 2_500
"""
Segments that one search looks through: by what they count, or reading their records, for a text or
a person. Each takes about 50 ms.
"""
RECORD_KINDS: tuple[str, ...] = get_args(RecordKind)
AGES = {"": "Any time", "3600": "Last hour", "86400": "Last 24 hours", "604800": "Last 7 days"}


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The search form's fields; empty matches everything."""

    text: str = ""
    kind: str = ""
    tool: str = ""
    outcome: str = ""
    subject: str = ""
    age: str = ""

    def audit_query(self, now: float, before: Position | None) -> AuditQuery:
        """Return the fields as a query for the store."""
        return AuditQuery(
            text=self.text or None,
            kind=self.kind or None,
            tool=self.tool or None,
            outcome=self.outcome or None,
            subject=self.subject or None,
            since=int((now - int(self.age)) * 1000) if self.age else None,
            before=before,
            limit=PAGE_SIZE + 1,
        )

    def query(self, **changes: str) -> str:
        """Return the fields as a URL query."""
        values = msgspec.structs.asdict(self) | changes
        return urlencode({name: value for name, value in values.items() if value})


ChainState = Literal["good", "bad", "unknown"]


class RecordProof(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a record is unchanged, judged by the record and its predecessor."""

    state: ChainState
    sentence: str
    previous: str
    checkpoint: str
    """The last record of its chain that the first checkpoint over it covers; empty: none does."""


class AuditPages:
    """Render the pages of the audit log."""

    def __init__(self, view: Templates, audit_store: AuditStore) -> None:
        self._view, self._audit_store = view, audit_store

    async def search(self, page_request: PageRequest) -> PageResponse:
        """Show the newest matching records, page by page."""
        filter_, before = sought_of(page_request), _position(page_request.query.get("before", ""))
        audit_query = filter_.audit_query(time.time(), before)
        results = await search_back(self._audit_store, page_request.tenant, audit_query)
        next_before = results.next_before(PAGE_SIZE)
        older = (
            f"/audit?{filter_.query(before='-'.join(map(str, next_before)))}" if next_before else ""
        )
        return await self._view.page(
            "audit.html",
            page_request,
            tab="/audit",
            records=results.records[:PAGE_SIZE],
            looked_since=None if results.looked_since is None else results.looked_since / 1000,
            sought=filter_,
            kinds=RECORD_KINDS,
            ages=AGES,
            older=older,
            is_first=before is None,
        )

    async def show(self, page_request: PageRequest) -> PageResponse:
        """Show one record with its proof."""
        writer, number = _record_key(page_request.path["record"])
        tenant_log = self._audit_store.tenant_log(page_request.tenant)
        chain = tenant_log.chain(writer)
        rows = await chain.rows(max(number - 2, 0), 2)
        row = next((candidate for candidate in rows if candidate.number == number), None)
        if row is None:
            raise NotShown
        record = read(row)
        arguments = record.private.get("arguments")
        tree = None
        if arguments:
            tree = await self._view.compute(page_request, argument_tree.read, arguments.encode())
        proof = proof_of(number, rows, await tenant_log.checkpoints())
        return await self._view.page(
            "record.html",
            page_request,
            tab="/audit",
            record=record,
            proof=proof,
            arguments=tree,
            before=record_id(writer, number - 1) if number > 1 else "",
            after=record_id(writer, number + 1) if await chain.rows(number, 1) else "",
        )


class FoundRecords(msgspec.Struct, frozen=True):
    """The newest records that match a query."""

    records: list[AuditRecord]
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


async def search_back(audit_store: AuditStore, tenant: str, query: AuditQuery) -> FoundRecords:
    """
    Return the newest matching records, of a part of all where the search would read very many.

    Raises StoreUnavailable.
    """
    since = None
    if max_segments := looked_through(query):
        before = None if query.before is None else query.before[0]
        horizon = await audit_store.tenant_log(tenant).horizon(before, max_segments)
        if horizon is not None and horizon >= (query.since or 0):
            since = horizon + 1
    # If all of them ended in one millisecond, a bound would lead back to the same page.
    if since is not None and query.before is not None and since >= query.before[0]:
        since = None
    bounded = query if since is None else msgspec.structs.replace(query, since=since)
    results = await search(audit_store, tenant, bounded)
    return FoundRecords(results, None if len(results) >= query.limit else since)


def looked_through(query: AuditQuery) -> int:
    """Return how many segments one search looks through; 0: as many as its records need."""
    if query.text is not None or query.subject is not None:
        return READ_SEGMENTS
    counted = (query.kind, query.tool, query.outcome)
    return SEARCHED_SEGMENTS if any(value is not None for value in counted) else 0


def sought_of(page_request: PageRequest) -> AuditFilter:
    """Return the form's fields; fields with unknown values are empty."""
    values = {
        name: page_request.query.get(name, "")[:MAX_TEXT].strip()
        for name in AuditFilter.__struct_fields__
    }
    if values["kind"] not in RECORD_KINDS:
        values["kind"] = ""
    if values["age"] not in AGES:
        values["age"] = ""
    return AuditFilter(**values)


def proof_of(
    number: int, rows: Sequence[AuditRow], checkpoints: Sequence[Checkpoint]
) -> RecordProof:
    """
    Return what proves the record with this number.

    *rows* has the record and, if kept, its predecessor. Only `gatepost audit verify` checks the
    whole chain and the signatures.
    """
    by_number = {row.number: row for row in rows}
    row, before = by_number[number], by_number.get(number - 1)
    writer = by_number[number].writer
    ends = (last_numbers(checkpoint).get(writer, 0) for checkpoint in checkpoints)
    covering = next((record_id(writer, end) for end in ends if end >= number), "")
    state, sentence = _judged(row, before)
    previous = "" if before is None else before.hash.hex()
    return RecordProof(state=state, sentence=sentence, previous=previous, checkpoint=covering)


def _judged(row: AuditRow, before: AuditRow | None) -> tuple[ChainState, str]:
    if before is None and row.number > 1:
        return "unknown", "The previous record is past its retention time and was deleted."
    previous = START if before is None else before.hash
    if row.hash != hash_of(previous, row.body.encode()):
        return "bad", "The hash does not match the text and the previous record."
    try:
        body = decode_numbered(row.body)
        side = decode_side(row.side) if row.side is not None else {}
        changed = [
            field
            for field, (salt, value) in side.items()
            if body.commitments.get(field) != commitment(salt, value)
        ]
    except (msgspec.DecodeError, ValueError):
        return "bad", "The record cannot be read."
    if changed:
        return "bad", f"These details differ from the recorded ones: {', '.join(changed)}."
    return "good", "The hash matches the text, the details and the previous record."


def _record_key(text: str) -> tuple[int, int]:
    """Return the writer and the number of a record's id (`record_id`); 0: it is none."""
    writer, _, number = text.rpartition("-")
    return (_number(writer) if writer else FIRST_WRITER), _number(number)


def _position(text: str) -> Position | None:
    parts = [_number(part) for part in text.split("-")]
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 and all(parts) else None


def _number(text: str) -> int:
    """Return a number of an address; 0: it is none, or too large for a database."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
