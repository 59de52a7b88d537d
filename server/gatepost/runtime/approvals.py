"""The approval services of a process: `ApprovalService`, its audit log and its webhook."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from gatepost.audit.writer import AuditWriter
from gatepost.check.dashboard import is_on
from gatepost.config.references import resolve
from gatepost.config.settings import Config
from gatepost.outbound.http_client import OutboundClient
from gatepost.policy.approvals.approval_request import PageUrl, no_page, page_of
from gatepost.policy.approvals.notifications import (
    ApprovalAudit,
    ApprovalListener,
    ApprovalNotifier,
    ChannelNotifications,
    RunCall,
)
from gatepost.policy.approvals.outbox_sender import FINISH_S, OutboxSender
from gatepost.policy.approvals.policies import IsRevoked, none_revoked
from gatepost.policy.approvals.service import ApprovalService
from gatepost.policy.approvals.stage import ApprovalStage, Denied
from gatepost.policy.approvals.webhook import Webhook, key_of
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.script_reviews.service import ScriptReviews
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.registry import Registry
from gatepost.tools.offers.offer import Tool

SERVER_TENANT = ""
"""The tenant of the server's own outgoing requests; no real tenant has this id."""


class ApprovalServices:
    """`ApprovalService` with its audit log and its webhook, in a server or a command."""

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        records: Records,
        shared_store: SharedStore,
        keyring: KeyRing,
        *,
        redaction: Redaction,
        writer: AuditWriter,
        outbound: OutboundClient,
        is_revoked: IsRevoked = none_revoked,
        listeners: Sequence[ApprovalListener] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shared_store, self._redaction = shared_store, redaction
        self.webhook = Webhook(lambda: outbound.of(SERVER_TENANT))
        self.outbox = OutboxSender(records, self.webhook)
        self._notifications: ChannelNotifications | None = None
        self._clock = clock
        self._listeners = tuple(listeners)
        self._notifier = ApprovalNotifier(
            shared_store, *self._listeners, audit=ApprovalAudit(writer.events)
        )
        self.scripts = ScriptReviews(records, self._notifier, is_revoked=is_revoked, clock=clock)
        self.service = ApprovalService(
            records,
            keyring,
            redaction,
            self._notifier,
            self.scripts,
            is_revoked=is_revoked,
            clock=clock,
        )

    def apply(
        self,
        config: Config,
        tools: Iterable[Tool],
        tenant_tools: Registry | None = None,
        run: RunCall | None = None,
    ) -> None:
        """
        Take up the approval policies, the webhook and the notifications of a configuration.

        *tenant_tools* are the tools of tenants; None if there are none. *run* runs the call of a
        notification; without it, none are sent.
        """
        by_name: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        settings = config.approvals
        self.service.apply(settings, by_name, tenant_tools)
        listeners = self._listeners
        tool = by_name.get(settings.notification.tool)
        if run is not None and tool is not None:
            notifications = self._notifications = self._notifications or ChannelNotifications(
                clock=self._clock
            )
            notifications.apply(settings.notification, tool, pages(config), run)
            listeners = *listeners, notifications
        hook = settings.webhook
        key = key_of(resolve(hook.secret)) if hook.url else b""
        self.webhook.apply(hook.url, key, pages(config))
        if hook.url:
            message_of = self.webhook.message
            self._notifier.apply(self.outbox, *listeners, message_of=message_of)
        else:
            self._notifier.apply(*listeners)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send messages and notifications during a block, and wait briefly for the last ones."""
        async with self.outbox.running():
            try:
                yield
            finally:
                if self._notifications is not None:
                    await self._notifications.finish(FINISH_S)

    def stages(
        self,
        config: Config,
        runs: RunningCalls,
        denied: Denied,
    ) -> list[ApprovalStage]:
        """Return the approval stage; nothing if no tool ever needs approval."""
        policies = self.service.policies
        if not policies.plan and not policies.has_others:
            return []
        return [
            ApprovalStage(
                self.service,
                runs,
                self._shared_store,
                redaction=self._redaction,
                timeout_s=config.tools.timeout_s,
                max_result_bytes=config.tools.max_result_bytes,
                page=pages(config),
                denied=denied,
            )
        ]


def pages(config: Config) -> PageUrl:
    """Return the URLs of approval requests; empty ones if the dashboard is off."""
    return page_of(config.resource) if is_on(config) else no_page
