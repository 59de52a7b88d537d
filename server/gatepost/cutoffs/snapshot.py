"""Which cut-offs reach a caller: pure rules over what was read last."""

from collections.abc import Iterable, Iterator

from gatepost.stores.cutoffs import CutOff
from gatepost_authz.caller import TenantContext


class Snapshot:
    """The cut-offs of one reading, found by whom they name."""

    def __init__(self, cuts: Iterable[CutOff] = ()) -> None:
        self.cuts = tuple(cuts)
        self.suspended = frozenset(cut.tenant for cut in self.cuts if cut.suspends)
        self._by_subject: dict[str, list[CutOff]] = {}
        self._by_client: dict[str, list[CutOff]] = {}
        self._by_tenant: dict[str, list[CutOff]] = {}
        for cut in self.cuts:
            if not cut.suspends:
                place, name = self._place(cut)
                place.setdefault(name, []).append(cut)

    def revokes(self, caller: TenantContext, now: float) -> bool:
        """Whether the token that this caller was made of is refused."""
        return any(reaches(cut, caller) and counts(cut, caller, now) for cut in self._near(caller))

    def _near(self, caller: TenantContext) -> Iterator[CutOff]:
        """Those that may reach the caller; of thousands, a few."""
        for tenant in (caller.tenant_id, ""):
            yield from self._by_tenant.get(tenant, ())
        for subject in {caller.subject, caller.actor or caller.subject}:
            yield from self._by_subject.get(subject, ())
        for client in {caller.client_id or caller.subject, caller.subject}:
            yield from self._by_client.get(client, ())

    def _place(self, cut: CutOff) -> tuple[dict[str, list[CutOff]], str]:
        if cut.subject:
            return self._by_subject, cut.subject
        return (self._by_client, cut.client) if cut.client else (self._by_tenant, cut.tenant)


def reaches(cut: CutOff, caller: TenantContext) -> bool:
    """
    Whether every selector of the cut-off names this caller.

    A subject names whoever acts for somebody else, too (RFC 8693 section 4.1); a client, also the
    program that calls for itself.
    """
    if cut.tenant not in ("", caller.tenant_id) or cut.issuer not in ("", caller.issuer):
        return False
    if cut.subject and cut.subject not in (caller.subject, caller.actor):
        return False
    if not cut.client or cut.client == caller.client_id:
        return True
    return caller.subject_kind == "client" and cut.client == caller.subject


def counts(cut: CutOff, caller: TenantContext, now: float) -> bool:
    """Whether a cut-off refuses a token of this age, now."""
    if now < cut.blocked_until:
        return True
    if caller.issued_at is None:
        return now < cut.undated_until
    # An issuer writes whole seconds, rounded down: a token of the same second may be an older one.
    return caller.issued_at <= cut.before
