"""What this process knows of cut-offs, read again soon after anybody changes one."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Set
from contextlib import asynccontextmanager

import structlog

from gatepost.chore import during
from gatepost.cutoffs.order import suspension
from gatepost.cutoffs.snapshot import Snapshot
from gatepost.stores.api import Following, Records, Relay, StoreUnavailable
from gatepost.stores.cutoffs import CutOff
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import IssuerUnavailable, RevokedToken

SETTINGS = "tenancy.suspended"
"""Who suspends the tenants that the configuration names."""
NO_TENANT = ""
"""Whose topic the wake-ups travel on; no tenant has this id."""
TOPIC = "cutoffs"
POLL_S = 0.5
"""How often a process asks whether anything has changed: a wake-up may be lost."""
FRESH_S = 30.0
"""How long a reading counts without a change: whoever made one may have died before telling."""
FOLLOW_AGAIN_S = 5.0
DICE = random.SystemRandom()

log = structlog.get_logger("gatepost.cutoffs")

FRESHLY_S = 3600.0
"""A cut-off of which a process hears at its start and that is older was acted on by others."""
Ended = Callable[[tuple[CutOff, ...]], object]
"""Takes what is new when somebody may be shut out; on the event loop, must not raise."""


class CutOffs:
    """
    Who is shut out, as this process read it last.

    A verdict asks here when it is made; a call that shows a token again is answered by the verdict,
    so *ended* has to drop what was decided before. While the database does not answer, the last
    reading counts. Before the first one nobody passes.
    """

    def __init__(
        self,
        records: Records,
        relay: Relay,
        *,
        ended: Ended,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._relay = records.cutoffs, relay
        self._ended, self._clock, self._monotonic = ended, clock, monotonic
        self._configured: frozenset[str] = frozenset()
        self._suspended: set[str] = set()
        self._snapshot = Snapshot()
        self._changes = -1
        self._fresh_until = 0.0
        self._is_out_of_reach = False
        self._woken = asyncio.Event()

    @property
    def suspended(self) -> Set[str]:
        """The tenants that are shut, by the configuration or by command; always the same set."""
        return self._suspended

    @property
    def is_ready(self) -> bool:
        """Whether the cut-offs were ever read."""
        return self._changes >= 0

    def configure(self, suspended: Iterable[str]) -> None:
        """Know the tenants that the configuration suspends; what they do ends, as by command."""
        before, self._configured = self._configured, frozenset(suspended)
        self._settle()
        if self.is_ready and (new := self._configured - before):
            self._ended(self._suspensions(new))

    def is_revoked(self, caller: TenantContext) -> bool:
        """Whether the token that this caller was made of is refused."""
        return self._snapshot.revokes(caller, self._clock())

    def is_cut(self, caller: TenantContext) -> bool:
        """Whether this caller may do nothing any more: revoked, or its tenant is suspended."""
        return caller.tenant_id in self._suspended or self.is_revoked(caller)

    def is_suspended(self, caller: TenantContext) -> bool:
        """Whether the caller's tenant is."""
        return caller.tenant_id in self._suspended

    def admit(self, caller: TenantContext) -> None:
        """Raise RevokedToken, or IssuerUnavailable where nobody knows who is shut out."""
        if not self.is_ready:
            raise IssuerUnavailable("cutoffs_unknown")
        if self.is_revoked(caller):
            raise RevokedToken

    async def look(self) -> None:
        """Find out whether anything has changed, and read it; raises StoreUnavailable."""
        now = self._monotonic()
        # First: what is changed while the cut-offs are read is then read once more.
        changes = await self._store.changes()
        if changes == self._changes and now < self._fresh_until:
            return
        snapshot = Snapshot(await self._store.all())
        # What others have acted on long ago is no news to a process that starts.
        is_first = not self.is_ready
        since = self._clock() - FRESHLY_S if is_first else float("-inf")
        self._changes, self._fresh_until = changes, now + FRESH_S
        shut = self._suspensions(self._configured) if is_first else ()
        if shut or snapshot.cuts != self._snapshot.cuts:
            known, self._snapshot = {*self._snapshot.cuts}, snapshot
            self._settle()
            new = [cut for cut in snapshot.cuts if cut not in known and cut.made_at > since]
            self._ended((*new, *shut))

    def wake(self, message: bytes = b"") -> None:
        """Look at once."""
        self._woken.set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Read the cut-offs, and look for changes during a block."""
        await self._try()
        async with during("cutoffs", self._watch), during("cutoffs_heard", self._follow):
            yield

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                # Replicas that started together must not ask together. Not `wait_for`: in Python
                # 3.11 it loses a cancellation that meets a wake-up, and a stop never ends.
                async with asyncio.timeout(POLL_S * DICE.uniform(0.6, 1.0)):
                    await self._woken.wait()
            self._woken.clear()
            await self._try()

    async def _try(self) -> None:
        try:
            await self.look()
        except StoreUnavailable as outage:
            if not self._is_out_of_reach:
                log.warning("cutoffs_not_looked_at", reason=str(outage))
            self._is_out_of_reach = True
            return
        if self._is_out_of_reach:
            log.info("cutoffs_looked_at_again")
        self._is_out_of_reach = False

    async def _follow(self) -> None:
        """Be woken by whoever changes something; without the relay the poll is all there is."""
        following: Following | None = None
        try:
            while following is None:
                try:
                    following = await self._relay.of(NO_TENANT).follow(TOPIC, self.wake)
                except StoreUnavailable:
                    await asyncio.sleep(FOLLOW_AGAIN_S)
            self.wake()
            await asyncio.Event().wait()
        finally:
            if following is not None:
                await following.aclose()

    def _suspensions(self, tenants: Iterable[str]) -> tuple[CutOff, ...]:
        now = self._clock()
        return tuple(suspension(one, now=now, by=SETTINGS) for one in sorted(tenants))

    def _settle(self) -> None:
        # In place: whoever serves a request holds this very set, and asks it without a call.
        wanted = self._configured | self._snapshot.suspended
        self._suspended -= self._suspended - wanted
        self._suspended |= wanted


async def tell(relay: Relay) -> None:
    """Wake every process that follows; one that misses it looks by itself."""
    with contextlib.suppress(StoreUnavailable):
        await relay.of(NO_TENANT).publish(TOPIC, b"")
