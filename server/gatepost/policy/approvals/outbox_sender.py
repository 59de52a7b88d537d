"""Deliver the webhook messages of the outbox, from any replica."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from gatepost.background import during, reason_of
from gatepost.policy.approvals.notifications import ApprovalChange
from gatepost.policy.approvals.webhook import EVENTS, TIMEOUT_S, Webhook
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.records import Records
from gatepost.storage.shared_store import Wakeable

PAUSES_S = (1.0, 5.0, 25.0, 125.0)
"""Pauses between attempts."""
AT_ONCE = 8
MOST_UNSENT = 1_000
"""Undelivered messages of one tenant; beyond it the oldest are dropped."""
LEASE_S = 2 * TIMEOUT_S
"""How long a replica may hold a message for one attempt and storing its result."""
POLL_S = 2.0
CLOSING_S = 2.0
GONE = "410"
LEFT = "the last attempt did not return"
DICE = random.SystemRandom()

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
        closing_s: float = CLOSING_S,
    ) -> None:
        self._records, self._webhook, self._clock = records, webhook, clock
        self._pauses_s, self._closing_s = pauses_s, closing_s
        self.done = {"taken": 0, "given_up": 0, "dropped": 0}
        """Number of finished messages by result."""
        self._holder = secrets.token_hex(8)
        self._sending: set[asyncio.Task[None]] = set()
        self._grown: set[str] = set()
        self._turn = Wakeable()
        self._is_out = False

    async def __call__(self, change: ApprovalChange) -> None:
        """Wake the sender for a change, whose message is already in the outbox."""
        if change.what not in EVENTS:
            return
        request = change.request
        if request is not None and request.kind == "script":
            # Scripts have their own store, so the message is not stored together with the decision.
            await self._keep(change)
        self._grown.add(change.tenant)
        self._turn.wake()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send during a block; at its end, wait briefly for deliveries that are under way."""
        try:
            async with during("webhook", self._turns):
                yield
        finally:
            await self.settle(self._closing_s)

    async def settle(self, within_s: float) -> None:
        """Wait for running deliveries; cancel what takes longer, for other replicas to send."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=within_s)
        for sending in tuple(self._sending):
            sending.cancel()
        if self._sending:
            await asyncio.wait(self._sending)

    async def turn(self) -> None:
        """Take due messages and begin to send them; raises StoreUnavailable."""
        await self._shed()
        room = AT_ONCE - len(self._sending)
        if room <= 0 or not self._webhook.is_on:
            return
        now = self._clock()
        until = now + LEASE_S
        for tenant, taken in await self._records.lease_messages(now, until, self._holder, room):
            task = asyncio.create_task(self._deliver(tenant, taken))
            self._sending.add(task)
            task.add_done_callback(self._sent)

    async def _turns(self) -> None:
        self._turn.wake()  # messages may remain from before the start
        while True:
            await self._turn.wait(POLL_S * DICE.uniform(0.7, 1.3))
            try:
                await self.turn()
                self._is_out = False
            except StoreUnavailable as outage:
                if not self._is_out:
                    log.warning("webhook_held_up", extra={"reason": str(outage)})
                self._is_out = True

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._turn.wake()
        if not task.cancelled() and task.exception() is not None:
            # It counts as an attempt; the next one follows when the lease is over.
            log.error("webhook_not_tried", extra=reason_of(task))

    async def _keep(self, change: ApprovalChange) -> None:
        message = self._webhook.message(change)
        if message is None:
            return
        try:
            await self._records.of(change.tenant).outbox.add(message)
        except StoreUnavailable as outage:
            # The decision stands without its message.
            self.done["dropped"] += 1
            log.warning("webhook_dropped", extra={"tenant": change.tenant, "reason": str(outage)})

    async def _shed(self) -> None:
        for tenant in tuple(self._grown):
            for dropped in await self._records.of(tenant).outbox.shed(MOST_UNSENT):
                self.done["dropped"] += 1
                log.warning("webhook_dropped", extra={"tenant": tenant, "webhook_id": dropped})
            self._grown.discard(tenant)

    async def _deliver(self, tenant: str, taken: OutboxMessage) -> None:
        last = len(self._pauses_s) + 1
        why = LEFT if taken.attempts > last else await self._webhook.send(taken)
        outbox = self._records.of(tenant).outbox
        try:
            if why is not None and why != GONE and taken.attempts < last:
                pause_s = self._pauses_s[taken.attempts - 1]
                await outbox.put_off(taken, self._clock() + pause_s)
                asyncio.get_running_loop().call_later(pause_s, self._turn.wake)
            elif await outbox.remove(taken):
                self.done["taken" if why is None else "given_up"] += 1
                if why is not None:
                    log.warning(
                        "webhook_given_up",
                        extra={"tenant": tenant, "webhook_id": taken.id, "reason": why},
                    )
        except StoreUnavailable as outage:
            # It will be sent again; the receiver recognizes the duplicate by its id.
            log.warning("webhook_not_noted", extra={"webhook_id": taken.id, "reason": str(outage)})
