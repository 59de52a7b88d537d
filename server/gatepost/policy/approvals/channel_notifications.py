"""Tell people of requests that wait, through a tool such as `chat_send`."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from gatepost.background import reason_of
from gatepost.config.approvals import NotificationSettings
from gatepost.policy.approvals.notifications import ApprovalChange
from gatepost.policy.approvals.request import ApprovalRequest, Page
from gatepost.tools.api import Call, Outcome, Tool
from gatepost.tools.client import NOBODY
from gatepost_authz.caller import TenantContext

Run = Callable[[Call], Awaitable[Outcome]]
"""Runs a call like that of any caller: with limits, redaction and an audit record."""

SENDER = "gatepost"
"""The caller of these calls in the audit log; it is no issuer's."""
MOST_AT_ONCE, MOST_OF_TENANT = 200, 20
"""How many notifications are under way, of all tenants and of one; further ones are not sent."""
ALLOWED_S = 120.0

log = logging.getLogger("gatepost.approvals")


class ChannelNotifications:
    """
    An `ApprovalListener` that calls a tool of the request's tenant for each new request.

    It does so at most once: a notification that fails, or whose process ends, is not sent again.
    The text has no arguments and no names, because a channel may have other readers than the page.
    """

    _settings: NotificationSettings
    _tool: Tool
    _page: Page
    _run: Run

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._running: dict[asyncio.Task[None], str] = {}
        """The tenant of each notification that is under way."""

    def apply(self, settings: NotificationSettings, tool: Tool, page: Page, run: Run) -> None:
        """Use this tool from now on, which comes before the first notification."""
        self._settings, self._tool, self._page, self._run = settings, tool, page, run

    async def __call__(self, change: ApprovalChange) -> None:
        """Begin to send a notification of a new request."""
        request, tool = change.request, self._tool
        if request is None or change.what != "requested":
            return
        # A notification that needs an approval itself, or whose tool calls another one that needs
        # it, must not cause the next one.
        if request.tool == tool.name or request.caller.issuer == SENDER:
            return
        # One tenant's requests must not leave other tenants without notifications.
        theirs = sum(tenant == change.tenant for tenant in self._running.values())
        if len(self._running) >= MOST_AT_ONCE or theirs >= MOST_OF_TENANT:
            log.warning(
                "approval_notification_dropped",
                extra={"tenant": change.tenant, "approval": change.id},
            )
            return
        task = asyncio.create_task(self._send(request, tool))
        self._running[task] = change.tenant
        task.add_done_callback(self._sent)

    async def settle(self, within_s: float) -> None:
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
            client=NOBODY,
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
