"""
Who has called lately, the same at every replica and after a restart.

Noted where a verdict on a token is made, which is at most once a minute for each token: a call that
shows it again costs nothing. One task writes what is new, once in a while for each caller, into one
entry of the tenant, as long as it may be: so many callers, for so many days.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec
import structlog

from gatepost.chore import during
from gatepost.stores.api import Entries, Entry, Records, StoreUnavailable, TenantRecords
from gatepost_authz.caller import SubjectKind, TenantContext

SUBJECT, KEY = "callers", "lately"
MOST = 60
"""Callers of one tenant that are remembered."""
MOST_BYTES = 262_144
"""Of one tenant's; a token may grant hundreds of scopes, and the latest callers stay then."""
KEPT_S = 7 * 86_400.0
AGAIN_S = 600.0
"""How often a caller is written who calls all the time, and is as it was."""
WRITE_S = 1.0
"""How long what is new is gathered before it is written."""
OUTAGE_S = 15.0
"""How long a store is left alone that does not answer."""
TRIES = 10
"""How often it is tried to write what other processes write at the same moment."""
MOST_TENANTS = 1_000
"""With callers that are not written yet; those of others are noted with their next verdict."""
MOST_TOLD = 10_000
CLOSING_S = 2.0
DICE = random.SystemRandom()

Key = tuple[str, str, str, str, str]
"""Tenant, issuer, kind and subject, and the client."""

log = structlog.get_logger("gatepost.callers")


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What is kept of a caller: what people know it by, and what it was judged by when it called last.

    Nothing that could be shown in a token's place, nor a token's id.
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
        """By which it is told apart from the tenant's others."""
        return self.issuer, self.kind, self.subject, self.client


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Seen, ...]).decode


def seen_of(caller: TenantContext, now: float) -> Seen:
    """What is kept of a caller."""
    return Seen(
        issuer=caller.issuer,
        subject=caller.subject,
        kind=caller.subject_kind,
        client=caller.client_id or "",
        actor=caller.actor or "",
        name=caller.name,
        scopes=tuple(sorted(caller.scopes)),
        acr=caller.acr or "",
        auth_time=caller.auth_time,
        # Without its time a token would be out of the reach of what refuses all that are older.
        issued_at=int(now) if caller.issued_at is None else caller.issued_at,
        seen_at=now,
    )


def context(tenant: str, one: Seen) -> TenantContext:
    """The caller as rules judge it; no request is made in its name."""
    return TenantContext(
        tenant_id=tenant,
        issuer=one.issuer,
        subject=one.subject,
        subject_kind=one.kind,
        resource="",
        expires_at=0,
        issued_at=one.issued_at,
        client_id=one.client or None,
        actor=one.actor or None,
        scopes=frozenset(one.scopes),
        acr=one.acr or None,
        auth_time=one.auth_time,
        claims={"name": one.name} if one.name else {},
    )


def merged(before: Iterable[Seen], new: Iterable[Seen], now: float) -> tuple[Seen, ...]:
    """The latest of each caller, the latest caller first, as many as are remembered."""
    latest: dict[object, Seen] = {}
    for one in (*before, *new):
        if one.seen_at > now - KEPT_S:
            there = latest.get(one.key)
            if there is None or there.seen_at <= one.seen_at:
                latest[one.key] = one
    return tuple(sorted(latest.values(), key=lambda one: -one.seen_at)[:MOST])


class Callers:
    """
    Notes callers, and tells those of a tenant that any process has noted; for people who look.

    *is_cut* tells who is shut out: nothing of them is written, and what is there goes with the next
    writing. *is_out*, which may be replaced, also tells who could not even sign in any more.
    """

    def __init__(
        self,
        records: Records,
        *,
        is_cut: Callable[[TenantContext], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.is_out = is_cut
        self._records, self._is_cut, self._clock = records, is_cut, clock
        self._told: dict[Key, tuple[TenantContext, float]] = {}
        """As they were written, or will be, and when."""
        self._waiting: dict[str, dict[Key, tuple[TenantContext, float]]] = {}
        self._writing = asyncio.Lock()
        self._woken = asyncio.Event()

    def note(self, caller: TenantContext) -> None:
        """Somebody's token was found good a moment ago."""
        now = self._clock()
        key = (*caller.principal_key, caller.client_id or "")
        told = self._told.get(key)
        if told is not None and now < told[1] + AGAIN_S and _is_alike(told[0], caller):
            return
        if self._is_cut(caller):
            return
        theirs = self._waiting.get(caller.tenant_id)
        if theirs is None:
            if len(self._waiting) >= MOST_TENANTS:
                return
            theirs = self._waiting[caller.tenant_id] = {}
        theirs.pop(key, None)
        theirs[key] = caller, now
        if len(theirs) > MOST:
            del theirs[next(iter(theirs))]
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told[key] = caller, now
        self._woken.set()

    def forget(self, which: Callable[[TenantContext], bool]) -> None:
        """Write none of these; who comes again with another token is noted anew."""
        for kept in (self._told, *self._waiting.values()):
            for key in [key for key, (caller, _) in kept.items() if which(caller)]:
                del kept[key]

    async def lately(self, tenant: str, most: int) -> Sequence[TenantContext]:
        """So many callers of a tenant, the latest first; raises StoreUnavailable."""
        await self._write(tenant)
        entry = await self._records.of(tenant).entries(SUBJECT).get(KEY)
        found = merged(_read(entry), (), self._clock())
        callers = [context(tenant, one) for one in found]
        return [caller for caller in callers if not self.is_out(caller)][:most]

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write what is noted during a block, and at its end what is left."""
        try:
            async with during("callers", self._always):
                yield
        finally:
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(CLOSING_S):
                    await self.write()

    async def write(self) -> None:
        """Write what is noted; raises StoreUnavailable, and what is left waits."""
        for tenant in [*self._waiting]:
            await self._write(tenant)

    async def _always(self) -> None:
        while True:
            await self._woken.wait()
            # Replicas that a client tries in turn must not all write at the same moment.
            await asyncio.sleep(WRITE_S * DICE.uniform(0.5, 1.0))
            self._woken.clear()
            try:
                await self.write()
            except StoreUnavailable as outage:
                log.warning("callers_not_written", reason=str(outage))
                self._woken.set()
                await asyncio.sleep(OUTAGE_S)

    async def _write(self, tenant: str) -> None:
        async with self._writing:
            news = self._waiting.pop(tenant, None)
            if not news:
                return
            written = False
            try:
                written = await self._put(tenant, [seen_of(*one) for one in news.values()])
            finally:
                if not written:
                    self._waiting[tenant] = news | self._waiting.get(tenant, {})
                    self._woken.set()

    async def _put(self, tenant: str, news: list[Seen]) -> bool:
        entries = self._records.of(tenant).entries(SUBJECT)

        def changed(before: tuple[Seen, ...]) -> tuple[Seen, ...]:
            every = merged(before, news, self._clock())
            return tuple(one for one in every if not self._is_cut(context(tenant, one)))

        return await _replaced(entries, changed, self._clock())


async def forget_person(records: TenantRecords, issuer: str, subject: str) -> int:
    """
    Forget that somebody called, and who called on their behalf; how many there were.

    Raises StoreUnavailable; it may be called again then.
    """
    gone = 0

    def theirs(one: Seen) -> bool:
        return one.issuer == issuer and subject in (one.subject, one.actor)

    def without(before: tuple[Seen, ...]) -> tuple[Seen, ...]:
        nonlocal gone
        left = tuple(one for one in before if not theirs(one))
        gone = len(before) - len(left)
        return left

    if not await _replaced(records.entries(SUBJECT), without, time.time()):
        raise StoreUnavailable("others write who has called, all the time")
    return gone


async def _replaced(
    entries: Entries, change: Callable[[tuple[Seen, ...]], tuple[Seen, ...]], now: float
) -> bool:
    """Change what is there; False where others did so each time that it was tried."""
    for _ in range(TRIES):
        entry = await entries.get(KEY)
        before = _read(entry)
        after = change(before)
        if after == before:
            return True
        value = _encode(after)
        while len(value) > MOST_BYTES and len(after) > 1:
            after = after[: len(after) // 2]
            value = _encode(after)
        revision = entry.revision if entry else 0
        if await entries.put(KEY, value, now=now, revision=revision, expires_at=now + KEPT_S):
            return True
    return False


def _read(entry: Entry | None) -> tuple[Seen, ...]:
    try:
        return () if entry is None else _decode(entry.value)
    except msgspec.DecodeError:
        return ()  # by another version, which may run beside this one for a while


def _is_alike(one: TenantContext, other: TenantContext) -> bool:
    """Whether people would see no difference."""
    if one is other:
        return True
    return (one.scopes, one.acr, one.auth_time, one.actor, one.name) == (
        other.scopes,
        other.acr,
        other.auth_time,
        other.actor,
        other.name,
    )
