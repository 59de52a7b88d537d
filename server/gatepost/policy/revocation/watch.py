"""The revocations that this process read last, and which of them apply to a caller."""

import time
from collections.abc import Callable, Iterable, Iterator, Set

from gatepost.policy.revocation.orders import hold_id, suspension
from gatepost.storage.records import Records
from gatepost.storage.revocations import SUBJECT, RevocationRecord
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import IssuerUnavailable, RevokedToken

SETTINGS = "tenancy.suspended"
"""The author of suspensions from the configuration."""
FRESH_S = 30.0
"""How long a reading is used without a change: a writer may have died before it announced one."""
FRESHLY_S = 3600.0
"""A starting process ignores older revocations: other processes have acted on them."""
Ended = Callable[[tuple[RevocationRecord, ...]], object]
"""Called with new revocations, on the event loop; must not raise."""


class RevocationSnapshot:
    """The revocations of one reading, indexed by their selectors."""

    def __init__(self, cuts: Iterable[RevocationRecord] = ()) -> None:
        self.cuts = tuple(cuts)
        self.suspended = frozenset(cut.tenant for cut in self.cuts if cut.suspends)
        self.holds = {(cut.tenant, cut.id): cut for cut in self.cuts if cut.is_hold}
        """The holds by tenant and id, including expired ones."""
        self._by_subject: dict[str, list[RevocationRecord]] = {}
        self._by_client: dict[str, list[RevocationRecord]] = {}
        self._by_tenant: dict[str, list[RevocationRecord]] = {}
        for cut in self.cuts:
            if not (cut.suspends or cut.is_hold):
                place, name = self._place(cut)
                place.setdefault(name, []).append(cut)
        self._revokes_any = bool(self._by_subject or self._by_client or self._by_tenant)

    def revokes(self, caller: TenantContext, now: float) -> bool:
        """Return whether the caller's token is revoked."""
        # Asked several times about each new token, and mostly there is no revocation at all.
        return self._revokes_any and any(
            reaches(cut, caller) and counts(cut, caller, now) for cut in self._near(caller)
        )

    def _near(self, caller: TenantContext) -> Iterator[RevocationRecord]:
        """Yield the few revocations that may match the caller."""
        for tenant in (caller.tenant_id, ""):
            yield from self._by_tenant.get(tenant, ())
        for subject in {caller.subject, caller.actor or caller.subject}:
            yield from self._by_subject.get(subject, ())
        for client in {caller.client_id or caller.subject, caller.subject}:
            yield from self._by_client.get(client, ())

    def _place(self, cut: RevocationRecord) -> tuple[dict[str, list[RevocationRecord]], str]:
        if cut.subject:
            return self._by_subject, cut.subject
        return (self._by_client, cut.client) if cut.client else (self._by_tenant, cut.tenant)


def reaches(cut: RevocationRecord, caller: TenantContext) -> bool:
    """
    Return whether every selector of the revocation matches the caller.

    A subject also matches the actor of a token (RFC 8693 section 4.1). A client also matches a
    program that calls on its own behalf.
    """
    if cut.tenant not in ("", caller.tenant_id) or cut.issuer not in ("", caller.issuer):
        return False
    if cut.subject and cut.subject not in (caller.subject, caller.actor):
        return False
    if not cut.client or cut.client == caller.client_id:
        return True
    return caller.subject_kind == "client" and cut.client == caller.subject


def counts(cut: RevocationRecord, caller: TenantContext, now: float) -> bool:
    """Return whether a revocation refuses a token of this age now."""
    if now < cut.blocked_until:
        return True
    if caller.issued_at is None:
        return now < cut.undated_until
    # Issuers round `iat` down to seconds: a token of the same second may be older.
    return caller.issued_at <= cut.before


class Revocations:
    """
    The revocations, suspensions and holds that this process read last.

    A new token is checked here once, and the result is cached. So *ended* has to drop cached
    results when there are new revocations. While the database does not answer, the last reading
    applies. Before the first reading every token is refused.
    """

    def __init__(
        self,
        records: Records,
        *,
        ended: Ended,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._ended, self._clock, self._monotonic = ended, clock, monotonic
        self._configured: frozenset[str] = frozenset()
        self._suspended: set[str] = set()
        self._snapshot = RevocationSnapshot()
        self.are_holding = False
        """Whether any hold exists; every call checks this."""
        self._changes = -1
        self._fresh_until = 0.0

    @property
    def suspended(self) -> Set[str]:
        """The suspended tenants, by configuration or command; always the same set object."""
        return self._suspended

    @property
    def is_ready(self) -> bool:
        """Return whether the revocations were read at least once."""
        return self._changes >= 0

    def configure(self, suspended: Iterable[str]) -> None:
        """Take up the tenants that the configuration suspends, and end what they do."""
        before, self._configured = self._configured, frozenset(suspended)
        self._settle()
        if self.is_ready and (new := self._configured - before):
            self._ended(self._suspensions(new))

    def is_revoked(self, caller: TenantContext) -> bool:
        """Return whether the caller's token is revoked."""
        return self._snapshot.revokes(caller, self._clock())

    def is_cut(self, caller: TenantContext) -> bool:
        """Return whether the caller's token is revoked or its tenant is suspended."""
        return caller.tenant_id in self._suspended or self.is_revoked(caller)

    def is_suspended(self, caller: TenantContext) -> bool:
        """Return whether the caller's tenant is suspended."""
        return caller.tenant_id in self._suspended

    def held_s(self, caller: TenantContext) -> float:
        """Return for how many seconds the caller is still held, or 0."""
        cut = self._snapshot.holds.get((caller.tenant_id, hold_id(caller)))
        return 0.0 if cut is None else max((cut.expires_at or 0.0) - self._clock(), 0.0)

    def holds(self, tenant: str) -> list[RevocationRecord]:
        """Return the holds on callers of a tenant that are in force, the next to end first."""
        now = self._clock()
        found = [
            cut
            for cut in self._snapshot.holds.values()
            if cut.tenant == tenant and (cut.expires_at or 0.0) > now
        ]
        return sorted(found, key=lambda cut: (cut.expires_at or 0.0, cut.id))

    def admit(self, caller: TenantContext) -> None:
        """Raise RevokedToken if it is revoked, IssuerUnavailable before the first reading."""
        if not self.is_ready:
            raise IssuerUnavailable("revocations_unknown")
        if self.is_revoked(caller):
            raise RevokedToken

    async def look(self) -> None:
        """Read the revocations if they have changed; raises StoreUnavailable."""
        await self.take_up((await self._records.changes([SUBJECT])).get(SUBJECT, 0))

    async def take_up(self, changes: int) -> None:
        """Read the revocations unless this counter was read before; raises StoreUnavailable."""
        now = self._monotonic()
        # The counter was read before: a change during the reading then causes another one.
        if changes == self._changes and now < self._fresh_until:
            return
        snapshot = RevocationSnapshot(await self._records.revocations.all())
        # A starting process skips what other processes acted on long ago.
        is_first = not self.is_ready
        since = self._clock() - FRESHLY_S if is_first else float("-inf")
        self._changes, self._fresh_until = changes, now + FRESH_S
        shut = self._suspensions(self._configured) if is_first else ()
        known, self._snapshot = {*self._snapshot.cuts}, snapshot
        self.are_holding = bool(snapshot.holds)
        # A hold ends no running call and refuses no token.
        if shut or any(not cut.is_hold for cut in known.symmetric_difference(snapshot.cuts)):
            self._settle()
            new = [
                cut
                for cut in snapshot.cuts
                if cut not in known and cut.created_at > since and not cut.is_hold
            ]
            self._ended((*new, *shut))

    def _suspensions(self, tenants: Iterable[str]) -> tuple[RevocationRecord, ...]:
        now = self._clock()
        return tuple(suspension(one, now=now, by=SETTINGS) for one in sorted(tenants))

    def _settle(self) -> None:
        # In place: the request handlers hold a reference to this set.
        wanted = self._configured | self._snapshot.suspended
        self._suspended -= self._suspended - wanted
        self._suspended |= wanted
