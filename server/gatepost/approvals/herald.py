"""Who hears of a change: whoever waits, the record of what happened, and the webhook."""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec
import structlog

from gatepost.approvals.request import Approver, Grant, Request
from gatepost.stores.api import Relay, StoreUnavailable
from gatepost.stores.notices import Notice

log = structlog.get_logger("gatepost.approvals")

TOPIC = "approvals"
"""Of a tenant's relay; the message is the id of what changed."""

What = Literal[
    "requested",
    "approved",
    "rejected",
    "expired",
    "withdrawn",
    "used",
    "void",
    "revoked",
    "granted",
    "grant_used",
    "grant_revoked",
]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """
    Something that happened and is durable.

    `approved` with a request that still waits is the first approval of two; `void` takes back a
    decision that was put on record and came too late; `revoked` ends the approval of a script.
    """

    what: What
    tenant: str
    id: str
    """Of the request or the grant."""
    tool: str
    by: Approver | None = None
    request: Request | None = None
    grant: Grant | None = None


class Hears(Protocol):
    """Takes a change; must not wait for anybody outside."""

    async def __call__(self, change: Change) -> None:
        """Hear of it; raises StoreUnavailable."""


def nothing(change: Change) -> Notice | None:
    """Where nobody else is told."""
    return None


class Herald:
    """
    Tells of each change once: the process that made it does.

    *notices* says what another system is to be told of a change; that is kept with it.
    """

    def __init__(
        self,
        relay: Relay,
        *hearers: Hears,
        minutes: Hears | None = None,
        notices: Callable[[Change], Notice | None] = nothing,
    ) -> None:
        self._relay = relay
        self._minutes, self._notices = minutes, notices
        self.hearers = [*hearers]

    def notice(self, what: What, request: Request) -> Notice | None:
        """What is to be kept together with this change; None: nothing."""
        return self._notices(_of_request(what, request, None))

    async def record(self, what: What, request: Request, by: Approver) -> None:
        """
        Put on record what is about to be kept; raises StoreUnavailable.

        A process may be killed between the two, and no call may run on a decision that nobody can
        look up. What then is not kept was at least tried, and is taken back as `void`.
        """
        await self._put_down(_of_request(what, request, by))

    async def request(
        self, what: What, request: Request, by: Approver | None = None, *, on_record: bool = False
    ) -> None:
        """Tell what happened to a request; *on_record* says that it was put there before."""
        await self._tell(_of_request(what, request, by), on_record=on_record)

    async def grant(self, what: What, grant: Grant, by: Approver | None = None) -> None:
        """Tell what happened to a grant."""
        change = Change(
            what=what, tenant=grant.tenant, id=grant.id, tool=grant.tool, by=by, grant=grant
        )
        await self._tell(change, on_record=False)

    async def _put_down(self, change: Change) -> None:
        if self._minutes is not None:
            await self._minutes(change)

    async def _tell(self, change: Change, *, on_record: bool) -> None:
        log.info(
            f"approval_{change.what}", tenant=change.tenant, approval=change.id, tool=change.tool
        )
        try:
            if not on_record:
                await self._put_down(change)
            for hears in self.hearers:
                await hears(change)
        finally:
            # Whoever waits goes on, whether or not somebody else could be told.
            await self._wake(change.tenant, change.id)

    async def _wake(self, tenant: str, changed: str) -> None:
        try:
            await self._relay.of(tenant).publish(TOPIC, changed.encode())
        except StoreUnavailable:
            log.warning("wake_up_not_sent")


def _of_request(what: What, request: Request, by: Approver | None) -> Change:
    return Change(
        what=what, tenant=request.tenant, id=request.id, tool=request.tool, by=by, request=request
    )
