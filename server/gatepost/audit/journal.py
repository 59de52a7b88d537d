"""Puts what happens on record: gathered while it happens, written together, durable when told."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Protocol

import structlog

from gatepost.audit.chain import Linker
from gatepost.audit.clerk import Clerk
from gatepost.audit.entry import Entry, is_light, reason_of
from gatepost.audit.record import Body, Kind, Person, draft, encode, person_of, text
from gatepost.audit.settings import AuditSettings
from gatepost.keyring import KeyRing
from gatepost.pledge import Broken, Pledge
from gatepost.stores.api import Records, StoreUnavailable
from gatepost.stores.audit import Draft, Question, Row
from gatepost.tools.api import Call, Failure
from gatepost.tools.redaction import Guard, Redaction
from gatepost_authz.caller import TenantContext

MOST_WAITING = 10_000
"""Records that wait for a database that does not answer."""
RETRY_S = 1.0
CLOSING_S = 5.0
"""How long a stop waits for the last records."""

log = structlog.get_logger("gatepost.audit")


class Listener(Protocol):
    """Hears of records once they are durable."""

    def __call__(self, tenant: str, rows: Sequence[Row], /) -> None:
        """Take them up; called on the event loop, must not block and must not raise."""


class Journal:
    """
    One process's way to the record.

    A call costs a tuple; what its record says is made, redacted, hashed and written for many calls
    at once (group commit), in another thread where the store has one: all that end while the last
    batch is written, or while calls end one after another. All calls of a batch wait for one
    pledge. While the database does not answer nothing is forgotten: records wait, and calls are
    refused or go on as `audit.on_failure` says.
    """

    def __init__(
        self,
        records: Records,
        keyring: KeyRing,
        redaction: Redaction,
        settings: AuditSettings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.refusing = False
        self.failing = False
        """Whether the database took nothing the last time; while it does, it is tried again."""
        self.listeners: list[Listener] = []
        self.timers: list[Callable[[float], object]] = []
        """Hear after each commit how many seconds it took; must not block and must not raise."""
        self.written = 0
        """Records since the start."""
        self._records, self._redaction, self._clock = records, redaction, clock
        self._clerk, self._linker = Clerk(), Linker(keyring)
        self._waiting: list[Entry] = []
        self._pledge = Pledge()
        self._late = False
        self._lost: Counter[str] = Counter()
        self._closing = False
        self._writing: asyncio.Task[None] | None = None
        self.apply(settings)

    def __len__(self) -> int:
        """How many records wait for the commit after the one that runs."""
        return len(self._waiting)

    def apply(self, settings: AuditSettings) -> None:
        """Take up the settings in force."""
        self.settings = settings
        self._batch_s = settings.batch_ms / 1000

    # What happens is told here.

    def ended(
        self, call: Call, began: float, guards: list[Guard], ending: Failure | BaseException | None
    ) -> Pledge:
        """See `Recorder`."""
        reason = reason_of(ending) if isinstance(ending, BaseException) else ending
        self._waiting.append((call, began, perf_counter(), guards, reason))
        if self._writing is None:
            self._begin()
        return self._pledge

    async def note(  # noqa: PLR0913  # each of them is a field of the record
        self,
        tenant: str,
        kind: Kind,
        *,
        outcome: str,
        caller: TenantContext | None = None,
        about: Person | None = None,
        tool: str = "",
        approval: str = "",
        request_id: str = "",
        peer: str = "",
        details: Mapping[str, str] | None = None,
        private: Mapping[str, str] | None = None,
    ) -> None:
        """
        Put on record what is no call; it is durable when this returns.

        *caller* is who did it, from the address *peer*, and *about* whom it concerns. All can be
        erased, as can the *private* texts (`reason`, `arguments`…); *details* cannot, so nothing
        of a person belongs there. Texts are redacted here. Raises StoreUnavailable.
        """
        if not self.settings.enabled:
            return
        clean = self._redaction.of(tenant).clean
        side = {name: text(clean(value)) for name, value in (private or {}).items()}
        if about is not None:
            side["about"] = encode(about)
        if caller is not None:
            side["caller"] = encode(person_of(caller, peer if self.settings.peers else ""))
        body = Body(
            at=int(self._clock() * 1000),
            kind=kind,
            tenant=tenant,
            tool=tool,
            outcome=outcome,
            approval=approval,
            request_id=request_id,
            subject_kind=caller.subject_kind if caller else "",
            shared_audience=caller.shared_audience if caller else False,
            details={name: text(clean(value)) for name, value in (details or {}).items()},
        )
        self._waiting.append((tenant, draft(body, side)))
        pledge = self._pledge
        if self._writing is None:
            self._begin()
        try:
            await pledge
        except Broken as failure:
            raise StoreUnavailable(f"it could not be put on record: {failure}") from None

    # What was told is written here.

    def _begin(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write())
        self._writing.add_done_callback(self._over)

    async def _gathered(self) -> None:
        """Wait for the calls that are about to end: as long as any did in two turns of the loop."""
        # A call that has come in the one begins in the other. Who is alone waits for nobody, and
        # a timer would cut in two what comes together, or let the processor idle.
        until = perf_counter() + self._batch_s
        seen = 0
        while len(self._waiting) != seen and perf_counter() < until:
            seen = len(self._waiting)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def _write(self) -> None:
        while self._waiting:
            await self._gathered()
            batch, self._waiting = self._waiting, []
            pledge, self._pledge = self._pledge, Pledge()
            made: dict[str, list[Draft]] = {}
            outage, kept = None, False
            try:
                await self._commit(batch, made)
                kept, self.refusing, self.failing = True, False, False
            except StoreUnavailable as found:
                outage, kept = found, self.settings.on_failure == "go_on"
                self.refusing, self.failing = not kept, True
            finally:
                # Whatever happens: nobody may be left waiting.
                if kept:
                    pledge.keep()
                else:
                    pledge.give_up(str(outage or "the record could not be made"))
            if outage is not None:
                if kept:
                    self._pledge.keep()  # those that come now do not wait for a retry
                await self._later(batch, made, outage)
                if self._closing:
                    break
                await asyncio.sleep(RETRY_S)
        self._writing = None

    def _over(self, writing: "asyncio.Task[None]") -> None:
        if self._writing is not writing:
            return  # it came to its end
        self._writing = None
        if not writing.cancelled() and (error := writing.exception()) is not None:
            self.refusing = self.failing = self.settings.on_failure == "refuse"
            log.error("audit_stopped", exc_info=error)
            if self._waiting:
                self._begin()

    async def _commit(self, entries: list[Entry], made: dict[str, list[Draft]]) -> None:
        """Write the entries; *made* holds the drafts that they have become."""
        if self._late:
            entries = await self._missing(entries)
        now, settings, lost = (self._clock(), perf_counter()), self.settings, self._lost
        if is_light(entries):
            # A seventh of a millisecond for thirty calls. In the other thread it would take twice
            # that, as both want the interpreter's lock all the while.
            made.update(self._clerk.drafts(entries, now, settings))

        def make() -> dict[str, list[Draft]]:
            if not made:
                made.update(self._clerk.drafts(entries, now, settings))
            if not lost:
                return made
            gaps = {tenant: [_gap(tenant, n, now[0])] for tenant, n in lost.items()}
            return {one: [*gaps.get(one, ()), *made.get(one, ())] for one in {**made, **gaps}}

        try:
            written = await self._records.scribe.write(make, self._linker.link)
        except StoreUnavailable:
            self._linker.drop()
            raise
        self._linker.keep()
        for timer in self.timers:
            timer(perf_counter() - now[1])
        self._lost, self._late = Counter(), False
        for tenant, rows in written.items():
            self.written += len(rows)
            for listener in self.listeners:
                listener(tenant, rows)

    async def _missing(self, entries: list[Entry]) -> list[Entry]:
        """Those that are not there: an outage may have come between a commit and the word of it."""
        drafts = [entry for entry in entries if isinstance(entry[0], str)]
        there: set[tuple[str, bytes]] = set()
        for tenant in {tenant for tenant, _ in drafts}:
            since = min(one.at for name, one in drafts if name == tenant)
            question = Question(since=since, limit=MOST_WAITING)
            for row in await self._records.of(tenant).trail.find(question):
                there.add((tenant, b"," + row.body.partition(",")[2].encode()))
        return [
            entry
            for entry in entries
            if not isinstance(entry[0], str) or (entry[0], entry[1].body) not in there
        ]

    async def _later(
        self, batch: list[Entry], made: dict[str, list[Draft]], outage: StoreUnavailable
    ) -> None:
        """Keep the records of a batch until the database answers."""
        refusing, reason = self.refusing, str(outage)
        log.error("audit_not_written", records=len(batch), reason=reason, refusing=refusing)
        if not made:
            now, settings = (self._clock(), perf_counter()), self.settings
            made = await asyncio.to_thread(self._clerk.drafts, batch, now, settings)
        late = [(tenant, one) for tenant, drafts in made.items() for one in drafts]
        room = max(MOST_WAITING - len(self._waiting), 0)
        self._lost.update(tenant for tenant, _ in late[room:])
        if late[room:]:
            log.error("audit_records_lost", records=len(late[room:]))
        self._late = True
        self._waiting = [*late[:room], *self._waiting]

    async def aclose(self) -> None:
        """Write what is left, for a while."""
        self._closing = True
        if self._waiting and self._writing is None:
            self._begin()
        if (writing := self._writing) is not None:
            await asyncio.wait([writing], timeout=CLOSING_S)
            writing.cancel()
        if self._waiting:
            log.error("audit_records_lost", records=len(self._waiting))


def _gap(tenant: str, lost: int, now: float) -> Draft:
    """The record of records that could not be kept."""
    details = {"records": str(lost)}
    body = Body(at=int(now * 1000), kind="gap", tenant=tenant, outcome="lost", details=details)
    return draft(body, {})
