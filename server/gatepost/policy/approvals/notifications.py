"""Announce each change of an approval: to the audit log, waiting calls and people."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec

from gatepost.audit.events import AuditEvents
from gatepost.audit.record import RecordedPerson
from gatepost.background import reason_of
from gatepost.config.approvals import NotificationSettings
from gatepost.policy.approvals.approval_request import (
    ApprovalGrant,
    ApprovalRequest,
    Approver,
    Operator,
    PageUrl,
    SignedInApprover,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.context.client import NO_CLIENT
from gatepost.tools.offers.offer import Call, Outcome, Tool
from gatepost_authz.caller import TenantContext

log = logging.getLogger(__name__)

TOPIC = "approvals"
"""The topic at a tenant's shared store; the message is the id of the changed request or grant."""
UNKNOWN = "The call had begun with this approval, and its outcome is unknown."

RunCall = Callable[[Call], Awaitable[Outcome]]
"""Runs a call like that of any caller: with limits, redaction and an audit record."""

SENDER = "gatepost"
"""The caller of these calls in the audit log; it is no issuer's."""
MAX_AT_ONCE, MAX_OF_TENANT = 200, 20
"""How many notifications are under way, of all tenants and of one; further ones are not sent."""
ALLOWED_S = 120.0

ChangeKind = Literal[
    "requested",
    "approved",
    "rejected",
    "expired",
    "withdrawn",
    "used",
    "unknown",
    "void",
    "revoked",
    "granted",
    "grant_used",
    "grant_revoked",
]
CHANGE_EVENTS: Mapping[ChangeKind, str] = {
    "requested": "approval_requested",
    "approved": "approval_approved",
    "rejected": "approval_rejected",
    "expired": "approval_expired",
    "withdrawn": "approval_withdrawn",
    "used": "approval_used",
    "unknown": "approval_unknown",
    "void": "approval_void",
    "revoked": "approval_revoked",
    "granted": "approval_granted",
    "grant_used": "approval_grant_used",
    "grant_revoked": "approval_grant_revoked",
}
"""The log event of each change."""


class ApprovalChange(msgspec.Struct, frozen=True):
    """
    A change that is durable.

    `approved` with a request that still waits is the first approval of two. `void` retracts a
    recorded decision or grant that came too late. `revoked` ends the approval of a script.
    `unknown`: an approved call had begun, and its outcome is unknown.
    """

    kind: ChangeKind
    changed: ApprovalRequest | ApprovalGrant
    by: Approver | None = None


ApprovalListener = Callable[[ApprovalChange], Awaitable[None]]
"""Receives changes; must not wait for other systems, and may raise StoreUnavailable."""
MessageOf = Callable[[ApprovalChange], OutboxMessage | None]


class ApprovalNotifier:
    """
    Announces each change once, from the process that made it.

    *audit* records a change durably before it returns. *message_of* returns the outbox message for
    a change, which is stored together with the change; None if there is no webhook.
    """

    def __init__(
        self,
        shared_store: SharedStore,
        *listeners: ApprovalListener,
        audit: ApprovalListener | None = None,
        message_of: MessageOf | None = None,
    ) -> None:
        self._shared_store, self._audit = shared_store, audit
        self.apply(*listeners, message_of=message_of)

    def apply(self, *listeners: ApprovalListener, message_of: MessageOf | None = None) -> None:
        """Announce changes to these listeners from now on."""
        self._listeners, self._message_of = listeners, message_of

    def message(self, kind: ChangeKind, request: ApprovalRequest) -> OutboxMessage | None:
        """Return the outbox message to store together with this change, or None."""
        message_of = self._message_of
        return None if message_of is None else message_of(ApprovalChange(kind, request))

    async def record(
        self, kind: ChangeKind, changed: ApprovalRequest | ApprovalGrant, by: Approver | None
    ) -> None:
        """
        Write a change to the audit log before it is stored; raises StoreUnavailable.

        A process may be killed between the two steps, and no call may run on an unrecorded
        decision or grant. If the change is then not stored, a `void` record retracts it.
        """
        if self._audit is not None:
            await self._audit(ApprovalChange(kind, changed, by))

    async def announce(
        self,
        kind: ChangeKind,
        changed: ApprovalRequest | ApprovalGrant,
        by: Approver | None = None,
        *,
        is_recorded: bool = False,
    ) -> None:
        """Announce a change; *is_recorded*: it is in the audit log already."""
        log.info(
            CHANGE_EVENTS[kind],
            extra={"tenant": changed.tenant, "approval": changed.id, "tool": changed.tool},
        )
        change = ApprovalChange(kind, changed, by)
        try:
            if not is_recorded and self._audit is not None:
                await self._audit(change)
            for listener in self._listeners:
                await listener(change)
        finally:
            # Waiting calls continue even if a listener failed.
            try:
                await self._shared_store.for_tenant(changed.tenant).publish(
                    TOPIC, changed.id.encode()
                )
            except StoreUnavailable:
                log.debug("wake_up_not_sent")


class ApprovalAudit:
    """An `ApprovalListener` that records each change durably before it returns."""

    def __init__(self, events: AuditEvents) -> None:
        self._events = events

    async def __call__(self, change: ApprovalChange) -> None:
        """Record a change; raises StoreUnavailable."""
        changed, by, person = change.changed, change.by, change.changed.caller
        caller = None
        if person.subject:
            names = person.client_id or "", person.name, person.actor or ""
            caller = RecordedPerson(person.issuer, person.subject, *names)
        private, details = {}, {"by": "operator"} if isinstance(by, Operator) else {}
        if change.kind == "unknown":
            details["ending"] = UNKNOWN
        if isinstance(by, Operator):
            private["operator"] = by.name
        request = None if isinstance(changed, ApprovalGrant) else changed
        if request is not None and request.decisions and by is not None:
            # Texts of people are private, so that they can be erased.
            decision = request.decisions[-1]
            private |= {"reason": decision.reason} if decision.reason else {}
            if decision.edited and request.edited is not None:
                private["edited"] = request.edited.decode()
        await self._events.note(
            changed.tenant,
            "grant" if request is None else "approval",
            outcome=change.kind.removeprefix("grant_"),
            caller=None if by is None or isinstance(by, Operator) else by,
            person=caller,
            tool=changed.tool,
            approval=changed.id,
            request_id="" if request is None else request.request_id,
            peer=by.peer if isinstance(by, SignedInApprover) else "",
            details=details,
            private=private,
        )


class ChannelNotifications:
    """
    An `ApprovalListener` that calls a tool of the request's tenant for each new request.

    It does so at most once: a notification that fails, or whose process ends, is not sent again.
    The text has no arguments and no names, because a channel may have other readers than the page.
    """

    _settings: NotificationSettings
    _tool: Tool
    _page: PageUrl
    _run: RunCall

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._running: dict[asyncio.Task[None], str] = {}
        """The tenant of each notification that is under way."""

    def apply(
        self, settings: NotificationSettings, tool: Tool, page: PageUrl, run: RunCall
    ) -> None:
        """Use this tool from now on, which comes before the first notification."""
        self._settings, self._tool, self._page, self._run = settings, tool, page, run

    async def __call__(self, change: ApprovalChange) -> None:
        """Begin to send a notification of a new request."""
        request, tool = change.changed, self._tool
        if isinstance(request, ApprovalGrant) or change.kind != "requested":
            return
        # A notification that needs an approval itself, or whose tool calls another one that needs
        # it, must not cause the next one.
        if request.tool == tool.name or request.caller.issuer == SENDER:
            return
        # One tenant's requests must not leave other tenants without notifications.
        of_tenant = sum(tenant == request.tenant for tenant in self._running.values())
        if len(self._running) >= MAX_AT_ONCE or of_tenant >= MAX_OF_TENANT:
            log.warning(
                "approval_notification_dropped",
                extra={"tenant": request.tenant, "approval": request.id},
            )
            return
        task = asyncio.create_task(self._send(request, tool))
        self._running[task] = request.tenant
        task.add_done_callback(self._sent)

    async def finish(self, within_s: float) -> None:
        """Wait for notifications that are under way; cancel what takes longer."""
        if self._running:
            await asyncio.wait(self._running, timeout=within_s)
        for task in tuple(self._running):
            task.cancel()

    async def _send(self, request: ApprovalRequest, tool: Tool) -> None:
        text = text_of(request, self._page(request.tenant, request.id))
        arguments = self._settings.arguments | {self._settings.text: text}
        caller = TenantContext(
            tenant_id=request.tenant,
            issuer=SENDER,
            subject=SENDER,
            subject_kind="client",
            client_id=SENDER,
            resource="",
            scopes=tool.scopes,
            expires_at=int(self._clock() + ALLOWED_S),
        )
        call = Call(
            caller=caller,
            name=tool.name,
            arguments=msgspec.json.encode(arguments),
            request_id=request.request_id,
            client=NO_CLIENT,
        )
        failure = (await self._run(call)).failure
        if failure is not None:
            log.warning(
                "approval_notification_not_sent",
                extra={"approval": request.id, "reason": failure.kind},
            )

    def _sent(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        if not task.cancelled() and task.exception() is not None:
            log.warning("approval_notification_not_sent", extra=reason_of(task))


def text_of(request: ApprovalRequest, url: str) -> str:
    """Return the text of a notification: the tool, the time and the page."""
    until = time.strftime("%H:%M UTC", time.gmtime(request.until))
    text = f"A call of {request.tool} waits for approval until {until}."
    return f"{text} {url}" if url else text
