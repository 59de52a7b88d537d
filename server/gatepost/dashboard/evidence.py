"""The audit trail: searched, and each record with what proves it."""

from collections.abc import Sequence
from typing import Literal, get_args
from urllib.parse import urlencode

import msgspec

from gatepost.audit.chain import START, hash_of
from gatepost.audit.record import Kind, commitment, decode_numbered, decode_side
from gatepost.audit.trail import Trail
from gatepost.dashboard import reading
from gatepost.dashboard.sheet import Sheet
from gatepost.dashboard.visit import Answer, NotShown, Visit
from gatepost.stores.api import Records
from gatepost.stores.audit import Checkpoint, Question, Row

PAGE = 50
MOST_TEXT = 200
KINDS: tuple[str, ...] = get_args(Kind)
AGES = {"": "Any time", "3600": "Last hour", "86400": "Last 24 hours", "604800": "Last 7 days"}


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """What the form asks for; empty is any."""

    text: str = ""
    kind: str = ""
    tool: str = ""
    outcome: str = ""
    subject: str = ""
    age: str = ""

    def question(self, now: float, before: int | None) -> Question:
        """The same as the store takes it."""
        return Question(
            text=self.text or None,
            kind=self.kind or None,
            tool=self.tool or None,
            outcome=self.outcome or None,
            subject=self.subject or None,
            since=int((now - int(self.age)) * 1000) if self.age else None,
            before=before,
            limit=PAGE + 1,
        )

    def query(self, **more: str) -> str:
        """The same in a link."""
        given = msgspec.structs.asdict(self) | more
        return urlencode({name: value for name, value in given.items() if value})


State = Literal["good", "bad", "unknown"]


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a record is as it was written, as far as it and its neighbour tell."""

    state: State
    sentence: str
    previous: str
    checkpoint: int | None
    """The first signed checkpoint that covers it."""


class Evidence:
    """The pages of the audit trail."""

    def __init__(self, sheet: Sheet, trail: Trail, records: Records) -> None:
        self._sheet, self._trail, self._records = sheet, trail, records

    async def search(self, visit: Visit) -> Answer:
        """The newest records that fit, page by page."""
        sought, before = sought_of(visit), _number(visit.query.get("before", ""))
        found = await self._trail.search(visit.tenant, sought.question(self._sheet.clock(), before))
        older = (
            f"/audit?{sought.query(before=str(found[PAGE - 1].number))}"
            if len(found) > PAGE
            else ""
        )
        return self._sheet.page(
            "audit.html",
            visit,
            here="/audit",
            records=found[:PAGE],
            sought=sought,
            kinds=KINDS,
            ages=AGES,
            older=older,
            is_first=before is None,
        )

    async def show(self, visit: Visit) -> Answer:
        """One record and what proves it."""
        number = _number(visit.path["number"])
        record = await self._trail.get(visit.tenant, number) if number else None
        if record is None or number is None:
            raise NotShown
        trail = self._records.of(visit.tenant).trail
        rows = await trail.rows(max(number - 2, 0), 2)
        proof = proof_of(number, rows, await trail.checkpoints())
        return self._sheet.page(
            "record.html",
            visit,
            here="/audit",
            record=record,
            proof=proof,
            arguments=reading.read(record.arguments.encode()) if record.arguments else None,
            has_next=bool(await trail.rows(number, 1)),
        )


def sought_of(visit: Visit) -> Sought:
    """The form's fields, as far as they make sense."""
    given = {
        name: visit.query.get(name, "")[:MOST_TEXT].strip() for name in Sought.__struct_fields__
    }
    if given["kind"] not in KINDS:
        given["kind"] = ""
    if given["age"] not in AGES:
        given["age"] = ""
    return Sought(**given)


def proof_of(number: int, rows: Sequence[Row], checkpoints: Sequence[Checkpoint]) -> Proof:
    """
    What the record of that number proves by itself; *rows* has it and the one before, if kept.

    Only `gatepost audit verify` examines the whole chain and the signatures.
    """
    by_number = {row.number: row for row in rows}
    row, before = by_number[number], by_number.get(number - 1)
    covering = min((one.number for one in checkpoints if one.number >= number), default=None)
    state, sentence = _judged(row, before)
    previous = "" if before is None else before.hash.hex()
    return Proof(state=state, sentence=sentence, previous=previous, checkpoint=covering)


def _judged(row: Row, before: Row | None) -> tuple[State, str]:
    if before is None and row.number > 1:
        return "unknown", "The record before it is gone, as its time was over."
    previous = START if before is None else before.hash
    if row.hash != hash_of(previous, row.body.encode()):
        return "bad", "Its hash is not that of its text behind the record before it."
    try:
        body = decode_numbered(row.body)
        side = decode_side(row.side) if row.side is not None else {}
        changed = [
            field
            for field, (salt, value) in side.items()
            if body.commitments.get(field) != commitment(salt, value)
        ]
    except (msgspec.DecodeError, ValueError):
        return "bad", "It cannot be read."
    if changed:
        return "bad", f"What stands beside it is not what was recorded: {', '.join(changed)}."
    return "good", "Its text, its details and the record before it fit its hash."


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None
