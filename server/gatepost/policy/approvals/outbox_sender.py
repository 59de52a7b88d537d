"""Deliver the messages of the outbox to the webhook."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from gatepost.background import during, reason_of
from gatepost.policy.approvals.approval_request import ApprovalGrant
from gatepost.policy.approvals.notifications import ApprovalChange
from gatepost.policy.approvals.webhook import EVENTS, TIMEOUT_S, Webhook
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.records import Records
from gatepost.storage.shared_store import Wakeable

PAUSES_S = (1.0, 5.0, 25.0, 125.0)
"""Pauses between attempts."""
AT_ONCE = 8
MAX_UNSENT = 1_000
"""Undelivered messages of one tenant; beyond it the oldest are dropped."""
LEASE_S = 2 * TIMEOUT_S
"""How long a replica may hold a message for one attempt and storing its result."""
POLL_S = 2.0
FINISH_S = 2.0
GONE = "410"
UNFINISHED = "the last attempt did not return"
RANDOM = random.SystemRandom()

log = logging.getLogger("gatepost.approvals")


class OutboxSender:
    """
    Send outbox messages; each replica has a sender, and one at a time sends a message.

    A message is removed when the receiver accepts it, answers 410, or all attempts are used up. If
    a sender disappears, another one takes the message when its lease is over. An attempt counts
    when it begins, so a message that crashes its sender is not retried forever.
    """

    def __init__(
        self,
        records: Records,
        webhook: Webhook,
        *,
        clock: Callable[[], float] = time.time,
        pauses_s: Sequence[float] = PAUSES_S,
        finish_s: float = FINISH_S,
    ) -> None:
        self._records, self._webhook, self._clock = records, webhook, clock
        self._pauses_s, self._finish_s = pauses_s, finish_s
        self.counts = {"taken": 0, "given_up": 0, "dropped": 0}
        """Number of finished messages by result."""
        self._holder = secrets.token_hex(8)
        self._sending: set[asyncio.Task[None]] = set()
        self._grown_tenants: set[str] = set()
        self._wakeable = Wakeable()
        self._is_store_down = False

    async def __call__(self, change: ApprovalChange) -> None:
        """Wake the sender for a change, whose message is already in the outbox."""
        request = change.changed
        if change.kind not in EVENTS or isinstance(request, ApprovalGrant):
            return
        # Scripts have their own store, so the message is not stored together with the decision.
        if request.kind == "script" and (message := self._webhook.message(change)) is not None:
            try:
                await self._records.of(request.tenant).outbox.add(message)
            except StoreUnavailable as outage:  # the decision stands without its message
                self._count_dropped(request.tenant, reason=str(outage))
        self._grown_tenants.add(request.tenant)
        self._wakeable.wake()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send during a block; at its end, wait briefly for deliveries that are under way."""
        try:
            async with during("webhook", self._send_always):
                yield
        finally:
            await self.finish(self._finish_s)

    async def finish(self, within_s: float) -> None:
        """Wait for running deliveries; cancel what takes longer, for other replicas to send."""
        if self._sending:
            _, unfinished = await asyncio.wait(self._sending, timeout=within_s)
            for sending in unfinished:
                sending.cancel()
            if unfinished:
                await asyncio.wait(unfinished)

    async def send_due(self) -> None:
        """Take due messages and begin to send them; raises StoreUnavailable."""
        await self._drop_excess()
        free, now = AT_ONCE - len(self._sending), self._clock()
        if free <= 0 or not self._webhook.url:
            return
        until = now + LEASE_S
        for tenant, leased in await self._records.lease_messages(now, until, self._holder, free):
            sending = asyncio.create_task(self._deliver(tenant, leased))
            self._sending.add(sending)
            sending.add_done_callback(self._sent)

    async def _send_always(self) -> None:
        self._wakeable.wake()  # messages may remain from before the start
        while True:
            await self._wakeable.wait(POLL_S * RANDOM.uniform(0.7, 1.3))
            try:
                await self.send_due()
                self._is_store_down = False
            except StoreUnavailable as outage:
                if not self._is_store_down:
                    log.warning("webhook_held_up", extra={"reason": str(outage)})
                self._is_store_down = True

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._wakeable.wake()
        if not task.cancelled() and task.exception() is not None:
            # It counts as an attempt; the next one follows when the lease is over.
            log.error("webhook_not_tried", extra=reason_of(task))

    async def _drop_excess(self) -> None:
        for tenant in tuple(self._grown_tenants):
            for dropped in await self._records.of(tenant).outbox.shed(MAX_UNSENT):
                self._count_dropped(tenant, webhook_id=dropped)
            self._grown_tenants.discard(tenant)

    def _count_dropped(self, tenant: str, **extra: str) -> None:
        self.counts["dropped"] += 1
        log.warning("webhook_dropped", extra={"tenant": tenant, **extra})

    async def _deliver(self, tenant: str, leased: OutboxMessage) -> None:
        last = len(self._pauses_s) + 1
        why = UNFINISHED if leased.attempts > last else await self._webhook.send(leased)
        outbox = self._records.of(tenant).outbox
        try:
            if why is not None and why != GONE and leased.attempts < last:
                pause_s = self._pauses_s[leased.attempts - 1]
                await outbox.put_off(leased, self._clock() + pause_s)
                asyncio.get_running_loop().call_later(pause_s, self._wakeable.wake)
            elif await outbox.remove(leased):
                self.counts["taken" if why is None else "given_up"] += 1
                if why is not None:
                    log.warning(
                        "webhook_given_up",
                        extra={"tenant": tenant, "webhook_id": leased.id, "reason": why},
                    )
        except StoreUnavailable as outage:
            # It will be sent again; the receiver recognizes the duplicate by its id.
            details = {"webhook_id": leased.id, "reason": str(outage)}
            log.warning("webhook_not_stored", extra=details)
