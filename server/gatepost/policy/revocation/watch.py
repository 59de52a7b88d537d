"""Keep the revocations that this process read last, and find those that apply to a caller."""

import time
from collections.abc import Callable, Iterable, Iterator, Set

from gatepost.policy.revocation.revocation_records import hold_id, suspension
from gatepost.storage.records import Records
from gatepost.storage.revocations import SUBJECT, RevocationRecord
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import IssuerUnavailable, RevokedToken

SETTINGS = "tenancy.suspended"
"""The author of suspensions from the configuration."""
READ_WITHIN_S = 30.0
"""How long a reading is used without a change: a writer may have died before it announced one."""
STARTUP_WINDOW_S = 3600.0
"""A starting process ignores older revocations: other processes have acted on them."""
EndRevoked = Callable[[tuple[RevocationRecord, ...]], object]
"""Called with new revocations, on the event loop; must not raise."""


class RevocationSnapshot:
    """The revocations of one reading, indexed by their selectors."""

    def __init__(self, revocations: Iterable[RevocationRecord] = ()) -> None:
        self.revocations = tuple(revocations)
        self.suspended = frozenset(record.tenant for record in self.revocations if record.suspends)
        self.holds = {
            (record.tenant, record.id): record for record in self.revocations if record.is_hold
        }
        """The holds by tenant and id, including expired ones."""
        self._by_subject: dict[str, list[RevocationRecord]] = {}
        self._by_client: dict[str, list[RevocationRecord]] = {}
        self._by_tenant: dict[str, list[RevocationRecord]] = {}
        for record in self.revocations:
            if not (record.suspends or record.is_hold):
                index, name = self._index_of(record)
                index.setdefault(name, []).append(record)
        self._revokes_any = bool(self._by_subject or self._by_client or self._by_tenant)

    def revokes(self, caller: TenantContext, now: float) -> bool:
        """Return whether the caller's token is revoked."""
        # Each new token causes several such checks, and mostly there is no revocation at all.
        return self._revokes_any and any(
            reaches(record, caller) and counts(record, caller, now)
            for record in self._candidates(caller)
        )

    def _candidates(self, caller: TenantContext) -> Iterator[RevocationRecord]:
        """Yield the few revocations that may match the caller."""
        for tenant in (caller.tenant_id, ""):
            yield from self._by_tenant.get(tenant, ())
        for subject in {caller.subject, caller.actor or caller.subject}:
            yield from self._by_subject.get(subject, ())
        for client in {caller.client_id or caller.subject, caller.subject}:
            yield from self._by_client.get(client, ())

    def _index_of(self, record: RevocationRecord) -> tuple[dict[str, list[RevocationRecord]], str]:
        if record.subject:
            return self._by_subject, record.subject
        return (
            (self._by_client, record.client) if record.client else (self._by_tenant, record.tenant)
        )


def reaches(record: RevocationRecord, caller: TenantContext) -> bool:
    """
    Return whether every selector of the revocation matches the caller.

    A subject also matches the actor of a token (RFC 8693 section 4.1). A client also matches a
    program that calls on its own behalf.
    """
    if record.tenant not in ("", caller.tenant_id) or record.issuer not in ("", caller.issuer):
        return False
    if record.subject and record.subject not in (caller.subject, caller.actor):
        return False
    if not record.client or record.client == caller.client_id:
        return True
    return caller.subject_kind == "client" and record.client == caller.subject


def counts(record: RevocationRecord, caller: TenantContext, now: float) -> bool:
    """Return whether a revocation refuses a token of this age now."""
    if now < record.blocked_until:
        return True
    if caller.issued_at is None:
        return now < record.undated_until
    # Issuers round `iat` down to seconds: a token of the same second may be older.
    return caller.issued_at <= record.before


class Revocations:
    """
    The revocations, suspensions and holds that this process read last.

    A new token is checked here once, and the result is cached. So *on_revoked* has to drop cached
    results when there are new revocations. While the database does not answer, the last reading
    applies. Before the first reading every token is refused.
    """

    def __init__(
        self,
        records: Records,
        *,
        on_revoked: EndRevoked,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._on_revoked, self._clock, self._monotonic = on_revoked, clock, monotonic
        self._configured: frozenset[str] = frozenset()
        self._suspended: set[str] = set()
        self._snapshot = RevocationSnapshot()
        self.are_holding = False
        """Whether any hold exists; every call checks this."""
        self._changes = -1
        self._fresh_until = 0.0

    @property
    def suspended(self) -> Set[str]:
        """Return the suspended tenants, by configuration or command; always the same set object."""
        return self._suspended

    @property
    def is_ready(self) -> bool:
        """Return whether the revocations were read at least once."""
        return self._changes >= 0

    def configure(self, suspended: Iterable[str]) -> None:
        """Take up the tenants that the configuration suspends, and end their calls and streams."""
        before, self._configured = self._configured, frozenset(suspended)
        self._update_suspended()
        if self.is_ready and (added := self._configured - before):
            self._on_revoked(self._suspensions(added))

    def is_revoked(self, caller: TenantContext) -> bool:
        """Return whether the caller's token is revoked."""
        return self._snapshot.revokes(caller, self._clock())

    def is_refused(self, caller: TenantContext) -> bool:
        """Return whether the caller's token is revoked or its tenant is suspended."""
        return caller.tenant_id in self._suspended or self.is_revoked(caller)

    def is_suspended(self, caller: TenantContext) -> bool:
        """Return whether the caller's tenant is suspended."""
        return caller.tenant_id in self._suspended

    def held_s(self, caller: TenantContext) -> float:
        """Return for how many seconds the caller is still held, or 0."""
        record = self._snapshot.holds.get((caller.tenant_id, hold_id(caller)))
        return 0.0 if record is None else max((record.expires_at or 0.0) - self._clock(), 0.0)

    def holds(self, tenant: str) -> list[RevocationRecord]:
        """Return the holds on callers of a tenant that are in force, the next to end first."""
        now = self._clock()
        holds = [
            record
            for record in self._snapshot.holds.values()
            if record.tenant == tenant and (record.expires_at or 0.0) > now
        ]
        return sorted(holds, key=lambda record: (record.expires_at or 0.0, record.id))

    def admit(self, caller: TenantContext) -> None:
        """Raise RevokedToken if it is revoked, IssuerUnavailable before the first reading."""
        if not self.is_ready:
            raise IssuerUnavailable("revocations_unknown")
        if self.is_revoked(caller):
            raise RevokedToken

    async def read_changes(self) -> None:
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
        since = self._clock() - STARTUP_WINDOW_S if is_first else float("-inf")
        self._changes, self._fresh_until = changes, now + READ_WITHIN_S
        configured_suspensions = self._suspensions(self._configured) if is_first else ()
        earlier, self._snapshot = {*self._snapshot.revocations}, snapshot
        self.are_holding = bool(snapshot.holds)
        # A hold ends no running call and refuses no token.
        if configured_suspensions or any(
            not record.is_hold for record in earlier.symmetric_difference(snapshot.revocations)
        ):
            self._update_suspended()
            revoked = [
                record
                for record in snapshot.revocations
                if record not in earlier and record.created_at > since and not record.is_hold
            ]
            self._on_revoked((*revoked, *configured_suspensions))

    def _suspensions(self, tenants: Iterable[str]) -> tuple[RevocationRecord, ...]:
        now = self._clock()
        return tuple(suspension(tenant, now=now, by=SETTINGS) for tenant in sorted(tenants))

    def _update_suspended(self) -> None:
        # In place: the request handlers hold a reference to this set.
        suspended = self._configured | self._snapshot.suspended
        self._suspended -= self._suspended - suspended
        self._suspended |= suspended
