"""Puts what happens on record: gathered while it happens, written together, durable when told."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Protocol

import msgspec
import structlog

from gatepost.audit.chain import Linker
from gatepost.audit.entry import Entry, drafts_of, reason_of
from gatepost.audit.record import Body, Kind, Person, draft, encode, person_of, text
from gatepost.audit.settings import AuditSettings
from gatepost.keyring import KeyRing
from gatepost.pledge import Broken, Pledge
from gatepost.stores.api import Records, StoreUnavailable
from gatepost.stores.audit import Draft, Question, Row
from gatepost.tools.api import Call, Failure
from gatepost.tools.redaction import Guard, Redaction
from gatepost_authz.caller import TenantContext

MOST_AT_ONCE = 1_000
"""Records of one transaction."""
MOST_WAITING = 10_000
"""Records that wait for a database that does not answer."""
RETRY_S = 1.0
CLOSING_S = 5.0
"""How long a stop waits for the last records."""

log = structlog.get_logger("gatepost.audit")


class Group(msgspec.Struct, gc=False):
    """What is to be written in one transaction, and what those wait for who wait for that."""

    entries: list[Entry]
    pledge: Pledge
    late: bool = False
    """Whether it failed once: those who waited know, and it may be there all the same."""


class Listener(Protocol):
    """Hears of records once they are durable."""

    def __call__(self, tenant: str, rows: Sequence[Row], /) -> None:
        """Take them up; called on the event loop, must not block and must not raise."""


class Journal:
    """
    One process's way to the record.

    A call costs a tuple; what its record says is made, redacted, hashed and written
    for many calls at once (group commit), in another thread where the store has one. While the
    database does not answer nothing is forgotten: records wait, and calls are refused or go on as
    `audit.on_failure` says.
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
        self.listeners: list[Listener] = []
        self.written = 0
        """Records since the start."""
        self._records, self._redaction, self._clock = records, redaction, clock
        self._linker = Linker(keyring)
        self._group = Group([], Pledge())
        self._waiting: deque[Group] = deque()
        self._lost: Counter[str] = Counter()
        self._armed = False
        self._closing = False
        self._writing: asyncio.Task[None] | None = None
        self.apply(settings)

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
        pledge = self._take((call, began, perf_counter(), guards, reason))
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_later(self._batch_s, self._begin)
        return pledge

    def _take(self, entry: Entry) -> Pledge:
        group = self._group
        group.entries.append(entry)
        if len(group.entries) >= MOST_AT_ONCE:
            self._close_group()
        return group.pledge

    def _close_group(self) -> None:
        self._waiting.append(self._group)
        self._group = Group([], Pledge())

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
        details: Mapping[str, str] | None = None,
        private: Mapping[str, str] | None = None,
    ) -> None:
        """
        Put on record what is no call; it is durable when this returns.

        *caller* is who did it and *about* whom it concerns. Both can be erased, as can the
        *private* texts (`reason`, `peer`, `arguments`…); *details* cannot, so nothing of a person
        belongs there. Texts are redacted here. Raises StoreUnavailable.
        """
        if not self.settings.enabled:
            return
        clean = self._redaction.of(tenant).clean
        side = {name: text(clean(value)) for name, value in (private or {}).items()}
        if about is not None:
            side["about"] = encode(about)
        if caller is not None:
            side["caller"] = encode(person_of(caller))
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
        pledge = self._take((tenant, draft(body, side, text(caller.subject) if caller else None)))
        if not self._armed:
            self._begin()
        try:
            await pledge
        except Broken as failure:
            raise StoreUnavailable(str(failure)) from None

    # What was told is written here.

    def _begin(self) -> None:
        self._armed = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while self._waiting or self._group.entries:
            if not self._waiting:
                self._close_group()
            group = self._waiting[0]
            made: dict[str, list[Draft]] = {}
            try:
                await self._commit(group, made)
            except StoreUnavailable as outage:
                await self._failed(group, made, outage)
                if self._closing:
                    break
                await asyncio.sleep(RETRY_S)
                continue
            self._waiting.popleft()
            self.refusing = False
            if not group.late:
                group.pledge.keep()
        self._armed = False

    async def _commit(self, group: Group, made: dict[str, list[Draft]]) -> None:
        """Write the entries; *made* holds the drafts that they have become."""
        entries = await self._missing(group.entries) if group.late else group.entries
        now, settings, lost = (self._clock(), perf_counter()), self.settings, self._lost

        def make() -> dict[str, list[Draft]]:
            made.update(drafts_of(entries, now, settings))
            gaps = {tenant: [_gap(tenant, n, now[0])] for tenant, n in lost.items()}
            return {one: [*gaps.get(one, ()), *made.get(one, ())] for one in {**made, **gaps}}

        try:
            written = await self._records.scribe.write(make, self._linker.link)
        except StoreUnavailable:
            self._linker.drop()
            raise
        self._linker.keep()
        self._lost = Counter()
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

    async def _failed(
        self, group: Group, made: dict[str, list[Draft]], outage: StoreUnavailable
    ) -> None:
        """Keep the records for later, and tell who waits for them."""
        refuses = self.settings.on_failure == "refuse"
        self.refusing = refuses
        entries = group.entries
        log.error("audit_not_written", records=len(entries), reason=str(outage), refusing=refuses)
        if group.late:
            return
        group.late = True
        if refuses:
            group.pledge.give_up(str(outage))
        else:
            group.pledge.keep()
        if not made:
            now, settings = (self._clock(), perf_counter()), self.settings
            made = await asyncio.to_thread(drafts_of, entries, now, settings)
        group.entries = [(name, one) for name, some in made.items() for one in some]
        self._drop()

    def _drop(self) -> None:
        """Of what waits for a database that does not answer, keep what there is room for."""
        while self._held() > MOST_WAITING and len(self._waiting) > 1:
            # The newest of them: what happened first is written first.
            group = self._waiting.pop()
            for entry in group.entries:
                tenant = entry[0] if isinstance(entry[0], str) else entry[0].caller.tenant_id
                self._lost[tenant] += 1
            log.error("audit_records_lost", records=len(group.entries))
            if not group.late:
                group.pledge.give_up("too many records wait")

    def _held(self) -> int:
        return len(self._group.entries) + sum(len(group.entries) for group in self._waiting)

    async def aclose(self) -> None:
        """Write what is left, for a while."""
        self._closing = True
        if self._held() and (self._writing is None or self._writing.done()):
            self._begin()
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing], timeout=CLOSING_S)
            self._writing.cancel()
        if left := self._held():
            log.error("audit_records_lost", records=left)


def _gap(tenant: str, lost: int, now: float) -> Draft:
    """The record of records that could not be kept."""
    details = {"records": str(lost)}
    body = Body(at=int(now * 1000), kind="gap", tenant=tenant, outcome="lost", details=details)
    return draft(body, {})
