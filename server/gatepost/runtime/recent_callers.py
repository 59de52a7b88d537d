"""
Remember the recent callers of each tenant, shared by all replicas and kept over restarts.

A caller is noted when a verdict on its token is made, which is at most once a minute for each
token. A call that presents the token again costs nothing. One task writes new callers from time to
time into one entry of the tenant. The entry is limited by size, by number of callers and by days.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from gatepost.background import during
from gatepost.storage.entries import Entry, EntryValue
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records, TenantRecords
from gatepost_authz.caller import SubjectKind, TenantContext

SUBJECT, KEY = "callers", "lately"
CALLERS_PER_TENANT = 60
"""Maximum number of remembered callers of a tenant."""
MAX_BYTES = 262_144
"""Maximum size for one tenant; beyond it the latest callers are kept."""
KEPT_S = 7 * 86_400.0
AGAIN_S = 600.0
"""The longest time until an unchanged, active caller is written again."""
WRITE_S = 5.0
"""
How long new callers are gathered before they are written.

A write reads and merges the whole list of each tenant in the event loop: 10 ms for fifty tenants.
"""
OUTAGE_S = 15.0
"""Pause after an outage of the store."""
TRIES = 10
"""Number of attempts if other processes write at the same moment."""
MAX_TENANTS = 1_000
"""Tenants with unwritten callers; callers of further tenants are noted the next time."""
TENANTS_PER_WRITE = 100
"""Tenants whose callers are written in one transaction."""
MAX_NOTED = 256
"""
The number of callers that are noted before they are compared with the known ones.

They are compared many at once, because requests wait while their callers are noted.
"""
MAX_WRITTEN = 100_000
MAX_ENTRIES = 200
"""How many entries the operators' page reads for the callers of all tenants."""
CLOSING_S = 2.0
RANDOM = random.SystemRandom()

RecentCallerKey = tuple[str, str, str, str, str]
"""Tenant, issuer, kind and subject, and the client."""

log = logging.getLogger(__name__)


class RecentCaller(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The stored data of a caller: its identity, and the claims of its last token.

    It contains no token and no token id.
    """

    issuer: str
    subject: str
    kind: SubjectKind
    client: str = ""
    actor: str = ""
    name: str = ""
    scopes: tuple[str, ...] = ()
    acr: str = ""
    auth_time: int | None = None
    issued_at: int | None = None
    seen_at: float

    @property
    def key(self) -> tuple[str, SubjectKind, str, str]:
        """Return the key of the caller within its tenant."""
        return self.issuer, self.kind, self.subject, self.client


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[RecentCaller, ...]).decode


def seen_of(caller: TenantContext, now: float) -> RecentCaller:
    """Return the stored data of a caller."""
    return RecentCaller(
        issuer=caller.issuer,
        subject=caller.subject,
        kind=caller.subject_kind,
        client=caller.client_id or "",
        actor=caller.actor or "",
        name=caller.name,
        scopes=tuple(sorted(caller.scopes)),
        acr=caller.acr or "",
        auth_time=caller.auth_time,
        # Revocations compare the issue time, so a token without one gets the current time.
        issued_at=int(now) if caller.issued_at is None else caller.issued_at,
        seen_at=now,
    )


def context(tenant: str, recent: RecentCaller) -> TenantContext:
    """Rebuild the caller for checks of rules; it makes no requests."""
    return TenantContext(
        tenant_id=tenant,
        issuer=recent.issuer,
        subject=recent.subject,
        subject_kind=recent.kind,
        resource="",
        expires_at=0,
        issued_at=recent.issued_at,
        client_id=recent.client or None,
        actor=recent.actor or None,
        scopes=frozenset(recent.scopes),
        acr=recent.acr or None,
        auth_time=recent.auth_time,
        claims={"name": recent.name} if recent.name else {},
    )


def merged(
    before: Iterable[RecentCaller], new: Iterable[RecentCaller], now: float
) -> tuple[RecentCaller, ...]:
    """Merge both lists: the latest entry of each caller, newest first, up to the limits."""
    latest: dict[object, RecentCaller] = {}
    for caller in (*before, *new):
        if caller.seen_at > now - KEPT_S:
            newest = latest.get(caller.key)
            if newest is None or newest.seen_at <= caller.seen_at:
                latest[caller.key] = caller
    return tuple(sorted(latest.values(), key=lambda caller: -caller.seen_at)[:CALLERS_PER_TENANT])


class RecentCallers:
    """
    Note callers, and list the recent callers of a tenant for the dashboard.

    *is_refused* returns whether a caller is revoked: such callers are not written, and are
    removed with the next write. *is_out* returns whether a caller is revoked or could no longer
    sign in.
    """

    def __init__(
        self,
        records: Records,
        *,
        is_refused: Callable[[TenantContext], bool],
        is_out: Callable[[TenantContext], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records, self._clock = records, clock
        self._is_refused, self._is_out = is_refused, is_out
        self._noted: list[tuple[TenantContext, float]] = []
        """The callers of the last verdicts, and when each was made."""
        self._written: dict[RecentCallerKey, TenantContext] = {}
        """The last written state of each caller that was seen in this period of `AGAIN_S`."""
        self._written_since = 0.0
        """When the period began; the callers of the last one are not kept in memory."""
        self._waiting: dict[str, dict[RecentCallerKey, tuple[TenantContext, float]]] = {}
        self._writing = asyncio.Lock()
        self._woken = asyncio.Event()

    def note(self, caller: TenantContext) -> None:
        """Note a caller whose token has just been accepted."""
        noted = self._noted
        noted.append((caller, self._clock()))
        if len(noted) == 1:
            self._woken.set()
        elif len(noted) >= MAX_NOTED:
            self._take_up()

    def _take_up(self) -> None:
        """Let the noted callers wait for the next write, except those that were written lately."""
        noted, self._noted = self._noted, []
        for caller, seen_at in noted:
            if not self._written_since <= seen_at < self._written_since + AGAIN_S:
                self._written.clear()
                self._written_since = seen_at
            key = (*caller.principal_key, caller.client_id or "")
            written = self._written.get(key)
            if written is not None and _is_alike(written, caller):
                continue
            if self._is_refused(caller):
                continue
            of_tenant = self._waiting.get(caller.tenant_id)
            if of_tenant is None:
                if len(self._waiting) >= MAX_TENANTS:
                    continue
                of_tenant = self._waiting[caller.tenant_id] = {}
            of_tenant.pop(key, None)
            of_tenant[key] = caller, seen_at
            if len(of_tenant) > CALLERS_PER_TENANT:
                del of_tenant[next(iter(of_tenant))]
            if len(self._written) >= MAX_WRITTEN:
                self._written.clear()
            self._written[key] = caller

    def forget(self, is_forgotten: Callable[[TenantContext], bool]) -> None:
        """Forget these callers; a caller with another token is noted again."""
        self._take_up()
        for key in [key for key, caller in self._written.items() if is_forgotten(caller)]:
            del self._written[key]
        for noted in self._waiting.values():
            for key in [key for key, (caller, _) in noted.items() if is_forgotten(caller)]:
                del noted[key]

    async def lately(self, tenant: str, limit: int) -> Sequence[TenantContext]:
        """Return the recent callers of a tenant, latest first; raises StoreUnavailable."""
        self._take_up()
        await self._write([tenant])
        entry = await self._records.for_tenant(tenant).entries(SUBJECT).get(KEY)
        recent = merged(_read(entry), (), self._clock())
        callers = [context(tenant, caller) for caller in recent]
        return [caller for caller in callers if not self._is_out(caller)][:limit]

    async def everywhere(self, limit: int) -> list[tuple[str, RecentCaller]]:
        """
        Return the recent callers of all tenants with their tenant, latest first.

        A tenant's entry is written within seconds of a new caller, so the latest callers are in the
        entries that were written last.
        """
        await self.write()
        active: list[tuple[str, RecentCaller]] = []
        for tenant, entry in await self._records.latest(SUBJECT, KEY, MAX_ENTRIES):
            of_tenant = merged(_read(entry), (), self._clock())[:limit]
            active += [
                (tenant, caller)
                for caller in of_tenant
                if not self._is_out(context(tenant, caller))
            ]
        return sorted(active, key=lambda entry: -entry[1].seen_at)[:limit]

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write noted callers during a block, and the rest at its end."""
        try:
            async with during("callers", self._always):
                yield
        finally:
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(CLOSING_S):
                    await self.write()

    async def write(self) -> None:
        """Write noted callers; raises StoreUnavailable, and the rest is kept."""
        self._take_up()
        tenants = [*self._waiting]
        for at in range(0, len(tenants), TENANTS_PER_WRITE):
            await self._write(tenants[at : at + TENANTS_PER_WRITE])

    async def _always(self) -> None:
        while True:
            await self._woken.wait()
            # Random, so that replicas do not write at the same moment.
            await asyncio.sleep(WRITE_S * RANDOM.uniform(0.5, 1.0))
            self._woken.clear()
            try:
                await self.write()
            except StoreUnavailable as outage:
                log.warning("callers_not_written", extra={"reason": str(outage)})
                self._woken.set()
                await asyncio.sleep(OUTAGE_S)

    async def _write(self, tenants: Iterable[str]) -> None:
        async with self._writing:
            unwritten = {
                tenant: noted for tenant in tenants if (noted := self._waiting.pop(tenant, None))
            }
            try:
                for _ in range(TRIES):
                    if not unwritten:
                        return
                    for tenant in await self._put(unwritten):
                        del unwritten[tenant]
            finally:
                for tenant, noted in unwritten.items():
                    self._waiting[tenant] = noted | self._waiting.get(tenant, {})
                    self._woken.set()

    async def _put(
        self, unwritten: Mapping[str, Mapping[RecentCallerKey, tuple[TenantContext, float]]]
    ) -> set[str]:
        """Add callers; return the tenants whose entries no other process changed meanwhile."""
        before, now = await self._records.entries_of(unwritten, SUBJECT), self._clock()
        values: dict[str, EntryValue] = {}
        for tenant, noted in unwritten.items():
            entry = next((stored for stored in before.get(tenant, ()) if stored.key == KEY), None)
            stored_callers = _read(entry)
            every = merged(stored_callers, [seen_of(*note) for note in noted.values()], now)
            after = tuple(
                caller for caller in every if not self._is_refused(context(tenant, caller))
            )
            if after != stored_callers:
                values[tenant] = _value(after), entry.revision if entry else 0
        until = now + KEPT_S
        stored = await self._records.replace_entries(SUBJECT, KEY, values, now=now, until=until)
        return (unwritten.keys() - values.keys()) | stored


async def forget_person(records: TenantRecords, issuer: str, subject: str) -> int:
    """
    Remove a person from the recent callers, also as an actor; return the number of entries.

    Raises StoreUnavailable; you can then call it again.
    """
    entries = records.entries(SUBJECT)
    for _ in range(TRIES):
        entry = await entries.get(KEY)
        before = _read(entry)
        after = tuple(
            caller
            for caller in before
            if caller.issuer != issuer or subject not in (caller.subject, caller.actor)
        )
        if entry is None or after == before:
            return 0
        value, now = _value(after), time.time()
        if await entries.put(KEY, value, now=now, revision=entry.revision, expires_at=now + KEPT_S):
            return len(before) - len(after)
    raise StoreUnavailable("others write who has called, all the time")


def _value(callers: tuple[RecentCaller, ...]) -> bytes:
    """Encode as many callers as fit."""
    value = _encode(callers)
    while len(value) > MAX_BYTES and len(callers) > 1:
        callers = callers[: len(callers) // 2]
        value = _encode(callers)
    return value


def _read(entry: Entry | None) -> tuple[RecentCaller, ...]:
    try:
        return () if entry is None else _decode(entry.value)
    except msgspec.DecodeError:
        return ()  # written by another version, which may run at the same time


def _is_alike(caller: TenantContext, other_caller: TenantContext) -> bool:
    """Return whether both look the same on the dashboard."""
    if caller is other_caller:
        return True
    return (caller.scopes, caller.acr, caller.auth_time, caller.actor, caller.name) == (
        other_caller.scopes,
        other_caller.acr,
        other_caller.auth_time,
        other_caller.actor,
        other_caller.name,
    )
