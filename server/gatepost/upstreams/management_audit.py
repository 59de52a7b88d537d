"""Record in the audit log who changes upstreams."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from gatepost.audit.events import AuditEvents
from gatepost_authz.caller import TenantContext

ManagementEvent = Literal["upstream", "agent"]


class ManagementActor(msgspec.Struct, frozen=True, kw_only=True):
    """A caller of the API, a user of the dashboard, or the operator at the command line."""

    caller: TenantContext | None = None
    peer: str = ""
    request_id: str = ""
    operator: str = ""
    """The operating system's user who runs a command."""


class ManagementAudit:
    """Records changes of servers and agents durably; raises StoreUnavailable."""

    def __init__(self, events: AuditEvents | None) -> None:
        self._events = events

    async def note(
        self,
        tenant: str,
        kind: ManagementEvent,
        outcome: str,
        actor: ManagementActor,
        details: Mapping[str, str],
    ) -> None:
        """Record one change; *details* must hold neither secrets nor personal data."""
        if self._events is None:
            return
        await self._events.note(
            tenant,
            kind,
            outcome=outcome,
            caller=actor.caller,
            peer=actor.peer,
            request_id=actor.request_id,
            details=details,
            private={"by": actor.operator} if actor.operator else None,
        )
