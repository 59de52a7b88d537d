"""One task that runs in this process: its work, its lease, and what its client says to it."""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Raw

from gatepost.mcp import questions
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Refused
from gatepost.mcp.ledger import Edit, Ledger
from gatepost.mcp.project import task_result
from gatepost.mcp.questions import Keys
from gatepost.mcp.reply import UNANSWERED, as_refusal, without_answer
from gatepost.stores.api import StoreUnavailable, TaskRecord
from gatepost.tools.api import Outcome
from gatepost.tools.attend import DeadlinePassed, Within
from gatepost.tools.client import InputRequest, Unaccepted
from gatepost.tools.fit import UNENCODABLE
from gatepost.tools.registry import Unknown
from gatepost_authz.errors import AuthError

_log = logging.getLogger("gatepost.tasks")

Reason = Literal["cancelled", "revoked", "over", "lost", "handed over"]
"""
Why work is stopped: its client wants that, or may not have it any more; its time is over; another
server has it; or this one goes.
"""
AWAY = "The server's own storage did not answer."
UNFORESEEN = "Something unforeseen happened; the server's log tells more."
GONE = "The tool is not served any more."
REVOKED = "Its caller may not call any more."
OVER = "The time of the task was over before its work was."

CANCELLED = {"status": "cancelled", "status_message": "Cancelled by its client."}

LOOKS_PER_LEASE = 10
"""How often a record is looked at although nobody said that it changed."""

MESSAGE_CHARACTERS = 500
GOES_ON = "It was decided, and the call goes on."

_encode = msgspec.json.encode
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_replace = msgspec.structs.replace


class Job:
    """
    Runs until its work ends, looks at its record whenever somebody says so, and keeps the end.

    The record is ours while it names our ``runner`` word, which is new with every run: one that
    was taken over stops here and writes nothing more.
    """

    def __init__(
        self,
        ledger: Ledger,
        tenant: str,
        record: TaskRecord,
        work: asyncio.Task[Outcome],
        keys: Keys,
    ) -> None:
        self.tenant = tenant
        self.record = record
        self.work = work
        self.keys = keys
        self.reason: Reason | None = None
        self._runner = record.runner
        self._ledger = ledger
        self._look_s = ledger.terms.lease_s / LOOKS_PER_LEASE
        self._turn = asyncio.Event()
        self._news = asyncio.Event()
        self._message = record.status_message
        self._noted_at = 0.0
        self._waits = False
        self._rests = False
        """Whether its record says that it waits and that nothing of its call has begun."""
        self._leaving = False
        self._withdrawn: set[str] = set()
        work.add_done_callback(lambda _: self._turn.set())

    def nudge(self) -> None:
        """Look at the record soon: it has moved."""
        self._turn.set()

    def stop(self, reason: Reason) -> None:
        """End the work; it may still end by itself, which counts then."""
        if self.reason is None:
            self.reason = reason
            self.work.cancel()

    def leave(self) -> None:
        """Its server stops: what rests is handed over, now or when it comes to rest."""
        self._leaving = True
        if self._rests:
            self.stop("handed over")

    async def attend(self) -> None:
        """Look after the task until its end is kept, or somebody else has it."""
        while not self.work.done():
            with suppress(DeadlinePassed):
                await Within(self._look_s, self._turn.wait())
            self._turn.clear()
            if not self.work.done():
                await self._look()
        await self._conclude()

    async def note(self, message: str) -> None:
        """Say what the task is doing; the client gets to see it within a look or two."""
        self._message = message[:MESSAGE_CHARACTERS]
        # A tool that reports in a loop must not write in a loop.
        if self._ledger.clock() - self._noted_at >= self._ledger.terms.poll_interval_s:
            await self._change(self._up_to_date)

    async def wait(self, message: str, *, untouched: bool) -> None:
        """Keep that it waits for somebody's decision, and whether nothing of it has begun."""
        self._message = message[:MESSAGE_CHARACTERS]
        self._waits = True
        await self._own(lambda record: self._up_to_date(_touched(record, not untouched)))
        self._rests = untouched
        if self._leaving:
            self.leave()

    async def go_on(self) -> None:
        """
        Keep that it begins now.

        From here on it must not be run again just because its server is gone.
        """
        self._waits = self._rests = False
        self._message = GOES_ON
        await self._own(lambda record: self._up_to_date(_touched(record, True)))

    async def _own(self, edit: Edit) -> None:
        """Change the record; does not return when it is not ours any more."""
        await self._change(edit)
        if self.record.cancelled:
            # Its client was told so before the call had begun.
            self.stop("cancelled")
        if self.reason is not None or self.record.runner != self._runner:
            # The cancellation is under way, and reaches whoever waits.
            await asyncio.Event().wait()

    async def ask(self, requests: Mapping[str, InputRequest]) -> Mapping[str, Mapping[str, Any]]:
        """Put the questions into the record and wait until each is answered (K-11, K-12)."""
        posed: questions.Posed | None = None

        def pose(record: TaskRecord) -> TaskRecord:
            nonlocal posed
            posed = self.keys.pose(record, requests)
            return posed.record

        await self._change(pose)
        if posed is None:
            # Not ours any more; the cancellation is under way.
            await asyncio.Event().wait()
            raise AssertionError
        self.keys.keep(posed)
        try:
            while (answers := questions.answers_to(self.record, posed.keys)) is None:
                await self._news.wait()
        except asyncio.CancelledError:
            # The tool has given up asking, or is stopped: nobody waits for these any more.
            self._withdrawn.update(posed.keys.values())
            self._turn.set()
            raise
        return answers

    async def _look(self) -> None:
        try:
            record = await self._ledger.get(self.tenant, self.record.id)
        except StoreUnavailable:
            _log.warning("a task's record cannot be looked at")
            return
        if record is None:
            self.stop("over")
            return
        self._learn(record)
        if record.runner != self._runner:
            self.stop("lost")
        elif record.cancelled:
            self.stop("cancelled")
        elif self._up_to_date(record) is not record:
            await self._change(self._up_to_date)

    def _learn(self, record: TaskRecord) -> None:
        self.record = record
        self._news.set()
        self._news = asyncio.Event()

    def _up_to_date(self, record: TaskRecord) -> TaskRecord:
        """The record with what this process has to say."""
        terms, now = self._ledger.terms, self._ledger.clock()
        if self._withdrawn:
            record = questions.withdraw(record, self._withdrawn)
        if record.status_message != self._message:
            self._noted_at = now
            record = _replace(record, status_message=self._message)
        if record.leased_until < now + terms.lease_s / 2:
            record = _replace(record, leased_until=now + terms.lease_s)
            if self._waits:
                # A person may take longer than a task is kept.
                kept_until = max(record.expires_at, now + terms.ttl_s)
                record = _replace(record, expires_at=kept_until)
        return record

    async def _change(self, edit: Edit) -> None:
        """Change the record while it is ours, however long the store is out of reach."""

        def ours(record: TaskRecord) -> TaskRecord:
            return edit(record) if record.runner == self._runner else record

        while True:
            try:
                record = await self._ledger.change(self.tenant, self.record.id, ours)
                break
            except StoreUnavailable:
                _log.warning("a change of a task waits for the store")
                await asyncio.sleep(self._look_s)
        if record is None or (record.runner != self._runner and record.runner):
            self.stop("lost")
        else:
            self._learn(record)

    async def _conclude(self) -> None:
        if self.reason == "lost":
            return
        if self.work.cancelled() and self.reason in {None, "handed over"}:
            await self._change(given_up)
            return
        await self._change(partial(_ended, end=self._end()))

    def _end(self) -> dict[str, Any]:
        """The members of the record that say how it ended."""
        if self.work.cancelled():
            if self.reason == "cancelled":
                return CANCELLED
            return failed(INTERNAL_ERROR, REVOKED if self.reason == "revoked" else OVER)
        raised = self.work.exception()
        if isinstance(raised, Unaccepted):
            # Its request was taken back while it became a task.
            return CANCELLED
        try:
            if raised is None:
                return {"status": "completed", "result": task_result(self.work.result())}
            refusal = refusal_of(raised)
            return failed(refusal.code, refusal.message, refusal.data)
        except Refused as refused:
            return failed(refused.code, refused.message, refused.data)
        except UNENCODABLE as bad:
            # What the tool put into its answer has no JSON.
            refusal = refusal_of(bad)
            return failed(refusal.code, refusal.message)


def _touched(record: TaskRecord, touched: bool) -> TaskRecord:
    """The record with whether anything of its call has begun."""
    call = _members(record.call)
    untouched = Raw(b"false" if touched else b"true")
    if call.get("untouched", Raw(b"false")) == untouched:
        return record
    return _replace(record, call=_encode(call | {"untouched": untouched}))


def refusal_of(raised: BaseException) -> Refused:
    """The error of a call that ended without an outcome."""
    if isinstance(raised, AuthError):
        return as_refusal(raised)
    if isinstance(raised, UNANSWERED):
        return without_answer(raised, modern=True)
    if isinstance(raised, Unknown):
        return Refused(INVALID_PARAMS, GONE)
    if isinstance(raised, StoreUnavailable):
        return Refused(INTERNAL_ERROR, AWAY)
    _log.error("a task failed unexpectedly", exc_info=raised)
    return Refused(INTERNAL_ERROR, UNFORESEEN)


def failed(code: int, message: str, data: Any = None) -> dict[str, Any]:
    """The members of a record whose call ended in a JSON-RPC error (K-10)."""
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"status": "failed", "status_message": message, "error": _encode(error)}


def given_up(record: TaskRecord) -> TaskRecord:
    """The record for another server to take up at once."""
    return _replace(record, runner="", leased_until=0.0)


def fresh_runner() -> str:
    """A word for one run of one task; knowing it gives no rights."""
    return secrets.token_hex(8)


def _ended(record: TaskRecord, end: dict[str, Any]) -> TaskRecord:
    # What it was called with and told may weigh megabytes, and be nobody's business: kept as long
    # as a second run might need it.
    call = _members(record.call) | {"arguments": Raw(b"{}")}
    return _replace(record, requests=None, answers=None, call=_encode(call), **end)
