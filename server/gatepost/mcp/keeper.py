"""The tasks that run in this process, and those whose process is gone."""

import asyncio
import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from gatepost.chore import always
from gatepost.mcp import questions
from gatepost.mcp.errand import Errand
from gatepost.mcp.job import CANCELLED, GONE, OVER, REVOKED, Job, failed, fresh_runner
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Refused
from gatepost.mcp.ledger import Ledger, Terms
from gatepost.mcp.project import rate_limited
from gatepost.stores.api import StoreUnavailable, TaskRecord
from gatepost.tools.api import Call, Failure, Outcome, Tool
from gatepost.tools.client import NOBODY
from gatepost.tools.registry import UnknownTool
from gatepost.tools.runner import Runner, outcome_of
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import InsufficientScope

_log = logging.getLogger("gatepost.tasks")

ATTEMPTS = 3
"""How often a call is begun, all servers taken together: it may be what stops them."""
AT_ONCE = 16
"""How many abandoned tasks one look takes up."""
HAND_OVER_S = 5.0
"""How long a stop waits for tasks to be let go of."""
TASK_ID_CHARACTERS = 64

UNKNOWN_EFFECT = "The server that ran it stopped; whether it took effect is unknown."
STOPPED_OFTEN = f"The servers that ran it stopped {ATTEMPTS} times."

# A caller's display claims are a read-only view of a mapping.
_encode = msgspec.json.Encoder(enc_hook=dict).encode
_replace = msgspec.structs.replace


class StoredCall(msgspec.Struct, frozen=True):
    """
    What is needed to run a task's call again.

    There is no token in it: the caller was checked when the task was accepted, and what it may do
    is judged by the scopes it had then. Whoever takes them away later stops its tasks.
    """

    caller: TenantContext
    arguments: Raw
    request_id: str
    capabilities: dict[str, Any]
    scopes: frozenset[str]
    """What the tool asked of its caller; asked of whoever wants to see the task, too."""
    attempts: int = 1
    untouched: bool = False
    """Whether it waits for a decision before anything of it has begun."""
    correlation: str | None = None
    peer: str = ""
    """Where it came from; left out where records leave it out."""


_decode_call = msgspec.json.Decoder(StoredCall).decode


class Keeper:
    """
    Looks after tasks, from the answer that promises one to its end.

    Lives as long as the process. *runner* is the one in force, for calls that are taken over.
    """

    def __init__(self, ledger: Ledger, runner: Callable[[], Runner]) -> None:
        self.ledger = ledger
        self.is_out: Callable[[TenantContext], bool] = lambda caller: False
        """Whether a caller could not sign in now; nothing is run for it, whatever it began."""
        self._runner = runner
        self._jobs: dict[Job, asyncio.Task[None]] = {}
        self._opening: Counter[bytes] = Counter()
        self._sweeping: asyncio.Task[None] | None = None
        self._until = 0.0
        self._draining = False

    def __len__(self) -> int:
        return len(self._jobs)

    async def accept(
        self, call: Call, tool: Tool, errand: Errand, work: asyncio.Task[Outcome]
    ) -> TaskRecord:
        """
        Make *work* a task; the record, which is durable when this returns (K-07).

        Raises Refused when the caller has too many, and StoreUnavailable; the work is still the
        request's then. If the request is taken back meanwhile, so is the task.
        """
        ledger, now = self.ledger, self.ledger.clock()
        terms, tenant, owner = ledger.terms, call.caller.tenant_id, owner_of(call.caller)
        runs_s = tool.timeout_s or self._runner().timeout_s
        stored = StoredCall(
            caller=_replace(call.caller, claims=dict(call.caller.claims)),
            arguments=Raw(call.arguments),
            request_id=call.request_id,
            capabilities=dict(errand.capabilities),
            scopes=tool.scopes,
            correlation=call.correlation,
            untouched=errand.untouched,
            peer=call.peer if terms.peers else "",
        )
        record = TaskRecord(
            id=f"t_{secrets.token_urlsafe(24)}",
            owner=owner,
            tool=tool.name,
            status="working",
            created_at=now,
            updated_at=now,
            expires_at=now + terms.ttl_s + runs_s,
            call=_encode(stored),
            runner=fresh_runner(),
            leased_until=now + terms.lease_s,
        )
        keys = questions.Keys()
        for asked, answers in errand.heard:
            record = keys.heard(record, asked, answers)
        job = Job(ledger, tenant, record, work, keys)
        opening = asyncio.ensure_future(self._open(job, errand))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Nobody will ever learn its id; the work is still the request's to stop.
            job.reason = "cancelled"
            opening.add_done_callback(_heard_of)
            raise
        return record

    async def _open(self, job: Job, errand: Errand) -> None:
        ledger, owner = self.ledger, job.record.owner
        # Those that are about to be kept count too: many calls may come at the same moment. One
        # that is kept meanwhile counts twice for that moment, and never not at all.
        ahead = self._opening[owner]
        self._opening[owner] += 1
        try:
            if await ledger.unfinished(job.tenant, owner) + ahead >= ledger.terms.max_per_caller:
                raise _too_many(ledger.terms)
            await ledger.create(job.tenant, job.record)
        finally:
            self._opening[owner] -= 1
            if not self._opening[owner]:
                del self._opening[owner]
        self._begin(job, errand)

    def _begin(self, job: Job, errand: Errand) -> None:
        errand.accept(job)
        attending = self._jobs[job] = asyncio.create_task(self._attend(job))
        attending.add_done_callback(lambda _: self._jobs.pop(job, None))
        if self.is_out(_decode_call(job.record.call).caller):
            # Shut out while its record was written.
            job.stop("revoked")
        if self._draining:
            job.leave()

    async def _attend(self, job: Job) -> None:
        interest = await self.ledger.follow(job.tenant, job.record.id, job.nudge)
        try:
            # What moved before it was followed.
            job.nudge()
            await job.attend()
        finally:
            if interest is not None:
                interest.end()

    async def sweep(self) -> None:
        """Take up what other processes left behind."""
        for tenant, task_id in await self.ledger.abandoned(AT_ONCE):
            if self._draining:
                return  # they are for servers that stay
            await self.take_up(tenant, task_id)

    async def take_up(self, tenant: str, task_id: str) -> None:
        """Run an abandoned task again where that does no harm, or say how it ended."""
        run: tuple[StoredCall, str] | None = None

        def claim(record: TaskRecord) -> TaskRecord:
            nonlocal run
            run = None
            now = self.ledger.clock()
            if record.leased_until >= now:
                return record
            stored, end = self._fate(record)
            if end is not None or stored is None:
                return _replace(record, requests=None, **(end or {}))
            run = stored, fresh_runner()
            # Nobody waits for these any more; whoever asks again, asks by another key.
            record = questions.withdraw(record, questions.waiting(record))
            # Until it waits again, it counts as begun: this run may find that it was decided.
            attempts = stored.attempts + (not stored.untouched)
            again = _replace(stored, attempts=attempts, untouched=False)
            until = now + self.ledger.terms.lease_s
            return _replace(record, call=_encode(again), runner=run[1], leased_until=until)

        record = await self.ledger.change(tenant, task_id, claim)
        if record is None or run is None or record.runner != run[1]:
            return
        _log.warning("a task of a server that is gone runs again")
        self._run(tenant, record, run[0])

    def _run(self, tenant: str, record: TaskRecord, stored: StoredCall) -> None:
        errand = Errand(NOBODY, stored.capabilities)
        call = Call(
            caller=stored.caller,
            name=record.tool,
            arguments=bytes(stored.arguments),
            request_id=stored.request_id,
            client=errand,
            lasting=True,
            correlation=stored.correlation,
            peer=stored.peer,
        )
        work = asyncio.create_task(perform(self._runner(), call))
        self._begin(Job(self.ledger, tenant, record, work, questions.Keys()), errand)

    def _fate(self, record: TaskRecord) -> tuple[StoredCall | None, dict[str, Any] | None]:
        """What is needed to run it again, or how it ended."""
        if record.cancelled:
            return None, CANCELLED
        if record.expires_at <= self.ledger.clock():
            return None, failed(INTERNAL_ERROR, OVER)
        try:
            stored = _decode_call(record.call)
            if self.is_out(stored.caller):
                return None, failed(INTERNAL_ERROR, REVOKED)
            tool = self._runner().registry.find(stored.caller, record.tool)
        except msgspec.DecodeError:
            # Kept by a release that wrote more or less about a call.
            return None, failed(INTERNAL_ERROR, UNKNOWN_EFFECT)
        except UnknownTool:
            return None, failed(INVALID_PARAMS, GONE)
        hints = tool.annotations
        if not (stored.untouched or hints.read_only_hint or hints.idempotent_hint):
            return None, failed(INTERNAL_ERROR, UNKNOWN_EFFECT)
        if stored.attempts >= ATTEMPTS:
            return None, failed(INTERNAL_ERROR, STOPPED_OFTEN)
        return stored, None

    async def find(self, caller: TenantContext, task_id: str) -> TaskRecord | None:
        """
        The task of this caller; None for one that is somebody else's, unknown or over (K-17).

        A caller that created it with scopes it does not hold now is told which they are: raises
        InsufficientScope.
        """
        if len(task_id) > TASK_ID_CHARACTERS:
            return None
        record = await self.ledger.get(caller.tenant_id, task_id)
        if record is None or record.owner != owner_of(caller):
            return None
        caller.require(_decode_call(record.call).scopes)
        return record

    async def may_follow(self, caller: TenantContext, task_ids: Sequence[str]) -> list[str]:
        """Those of the ids that are tasks of this caller, as far as its scopes reach."""
        ids = dict.fromkeys(task_ids)
        return [task_id for task_id in ids if await self._mine(caller, task_id)]

    async def shown(self, caller: TenantContext, task_id: str) -> bytes | None:
        """The members of `notifications/tasks`, as JSON without its braces; None: not its task."""
        record = await self._mine(caller, task_id)
        return None if record is None else _encode(self.ledger.shown(record))[1:-1]

    async def _mine(self, caller: TenantContext, task_id: str) -> TaskRecord | None:
        try:
            return await self.find(caller, task_id)
        except InsufficientScope:
            return None

    def start(self) -> None:
        """Take up abandoned tasks from now on, now and then."""
        self._sweeping = asyncio.get_running_loop().create_task(always("tasks", self._sweep_on))

    async def _sweep_on(self) -> None:
        while True:
            try:
                await self.sweep()
            except StoreUnavailable:
                _log.warning("abandoned tasks cannot be looked for")
            await asyncio.sleep(self.ledger.terms.lease_s / 2)

    def drain(self, within_s: float) -> None:
        """
        Let tasks finish for so long from now on; `aclose` waits for that.

        Those that wait for a person before anything was done go to other servers at once: a
        person takes longer than a stop.
        """
        self._until = asyncio.get_running_loop().time() + within_s
        self._draining = True
        for job in self._jobs:
            job.leave()

    def end(self, which: Callable[[TenantContext], bool]) -> None:
        """Stop the tasks of these callers in this process: they may not have them any more."""
        for job in self._jobs:
            if which(_decode_call(job.record.call).caller):
                job.stop("revoked")

    async def aclose(self) -> None:
        """Leave what still runs after the drain to other servers."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._jobs:
            left = self._until - asyncio.get_running_loop().time()
            await asyncio.wait(self._jobs.values(), timeout=max(left, 0.0))
        for job in self._jobs:
            job.stop("handed over")
        if self._jobs:
            await asyncio.wait(self._jobs.values(), timeout=HAND_OVER_S)
        for attending in self._jobs.values():
            attending.cancel()


async def perform(runner: Runner, call: Call) -> Outcome:
    """Run a call in a task of the loop, which a tool must not be able to end."""
    try:
        return await runner.run(call)
    except (SystemExit, KeyboardInterrupt) as wish:
        # Out of a task these would end the loop, and with it the server.
        asked = RuntimeError(f"the tool raised {type(wish).__name__}")
        return outcome_of(asked, call, runner.timeout_s)


def owner_of(caller: TenantContext) -> bytes:
    """Whose tasks these are, without saying it (tenant, issuer, kind and subject)."""
    return hashlib.sha256(_encode(caller.principal_key)).digest()


def _too_many(terms: Terms) -> Refused:
    message = f"{terms.max_per_caller} tasks are under way, and no more are allowed."
    return rate_limited(Failure("rate_limit", message, retry_after=terms.poll_interval_s))


def _heard_of(opening: asyncio.Future[None]) -> None:
    """The failure of a task that nobody waits for."""
    if not opening.cancelled() and opening.exception() is not None:
        _log.warning("a task that was taken back could not be kept")
