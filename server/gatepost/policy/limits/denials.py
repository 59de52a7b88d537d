"""Hold callers whose calls are denied repeatedly, so that they do not wear approvers out."""

import logging
import time
from collections.abc import Callable

from gatepost.audit.events import AuditEvents
from gatepost.audit.record import person_of
from gatepost.config.approvals import ApprovalsSettings
from gatepost.policy.limits.rules import bucket_of
from gatepost.policy.revocation.revocation_records import hold
from gatepost.policy.revocation.watch import Revocations
from gatepost.storage.change_poller import notify
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore
from gatepost_authz.caller import TenantContext

log = logging.getLogger("gatepost.approvals")

HOLD_AUTHOR = "approvals"
"""The author of these holds."""


class DenialCounter:
    """
    Count denied calls by caller, in a token bucket that all processes share.

    The denial that empties the bucket starts a hold, which is stored and applies in every process.
    """

    def __init__(
        self,
        records: Records,
        shared_store: SharedStore,
        audit_events: AuditEvents,
        revocations: Revocations,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records, self._shared_store, self._audit_events = records, shared_store, audit_events
        self._revocations, self._clock = revocations, clock
        self.apply(ApprovalsSettings())

    def apply(self, settings: ApprovalsSettings) -> None:
        """Take up how many denials hold a caller, and for how long."""
        self._settings = settings

    async def note(self, caller: TenantContext) -> None:
        """Count one denied call of *caller*; hold the caller if there are too many."""
        max_denials, window_s = self._settings.denials, self._settings.denials_window_s
        if not max_denials:
            return
        try:
            if max_denials > 1:
                name, shared = (
                    f"denials {bucket_of(caller)}",
                    self._shared_store.of(caller.tenant_id),
                )
                if not await shared.spend(name, rate=max_denials / window_s, burst=max_denials - 1):
                    return
            await self._hold(caller)
        except StoreUnavailable as outage:
            log.warning(
                "denial_not_counted", extra={"tenant": caller.tenant_id, "reason": str(outage)}
            )

    async def _hold(self, caller: TenantContext) -> None:
        for_s = self._settings.hold_s
        reason = f"{self._settings.denials} calls were denied"
        record = hold(caller, now=self._clock(), for_s=for_s, by=HOLD_AUTHOR, reason=reason)
        details = {"id": record.id, "for_s": f"{for_s:g}", "denials": str(self._settings.denials)}
        person = person_of(caller)
        # Recorded first: an outage between the two steps must not leave a hold without a record.
        await self._audit_events.note(
            caller.tenant_id, "revocation", outcome="held", person=person, details=details
        )
        # An expired hold of the caller may still be stored under this id.
        await self._records.revocations.delete(record.tenant, record.id)
        await self._records.revocations.put(record)
        log.warning(
            "caller_held", extra={"tenant": caller.tenant_id, "hold": record.id, "for_s": for_s}
        )
        await self._revocations.look()
        await notify(self._shared_store)
