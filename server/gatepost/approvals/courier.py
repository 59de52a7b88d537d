"""Sends what another system is still to be told: off the path of calls, over all replicas."""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import structlog

from gatepost.approvals.herald import Change
from gatepost.approvals.webhook import EVENTS, TIMEOUT_S, Webhook
from gatepost.chore import during, reason_of
from gatepost.stores.api import Records, StoreUnavailable
from gatepost.stores.notices import Notice

PAUSES_S = (1.0, 5.0, 25.0, 125.0)
"""From each attempt to the next."""
AT_ONCE = 8
MOST_UNSENT = 1_000
"""Of one tenant; beyond them the oldest go."""
LEASE_S = 2 * TIMEOUT_S
"""How long whoever took a notice has for its attempt and for what comes of it."""
POLL_S = 2.0
CLOSING_S = 2.0
GONE = "410"
LEFT = "whoever tried it did not come back"
DICE = random.SystemRandom()

log = structlog.get_logger("gatepost.approvals")


class Courier:
    """
    See `Hears`; every replica has one, and each notice is taken by one of them at a time.

    It is removed when the receiver takes it, answers 410, or has had all attempts. One whose sender
    is gone is taken by another when its lease is over. An attempt counts when it begins: a notice
    that ends whoever sends it is not tried for ever.
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
        """How many messages it has done with, and how."""
        self._holder = secrets.token_hex(8)
        self._sending: set[asyncio.Task[None]] = set()
        self._grown: set[str] = set()
        self._wake = asyncio.Event()
        self._is_out = False

    async def __call__(self, change: Change) -> None:
        """See `Hears`: somebody is to be told of it, and what is told is kept by now."""
        if not self._webhook.is_on or change.what not in EVENTS:
            return
        request = change.request
        if request is not None and request.kind == "script":
            # It is decided about in a store of its own, so its notice could not be kept with that.
            await self._keep(change)
        self._grown.add(change.tenant)
        self._wake.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send for the time of a block; what is under way then gets a moment, the rest others."""
        try:
            async with during("webhook", self._turns):
                yield
        finally:
            await self.settle(self._closing_s)

    async def settle(self, within_s: float) -> None:
        """Let what is under way come to its end; what takes longer is left to others."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=within_s)
        for sending in tuple(self._sending):
            sending.cancel()
        if self._sending:
            await asyncio.wait(self._sending)

    async def turn(self) -> None:
        """Take what is due, and begin to send it; raises StoreUnavailable."""
        await self._shed()
        room = AT_ONCE - len(self._sending)
        if room <= 0 or not self._webhook.is_on:
            return
        now = self._clock()
        until = now + LEASE_S
        for tenant, taken in await self._records.claim_notices(now, until, self._holder, room):
            task = asyncio.create_task(self._deliver(tenant, taken))
            self._sending.add(task)
            task.add_done_callback(self._sent)

    async def _turns(self) -> None:
        self._wake.set()  # somebody may have left something
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S * DICE.uniform(0.7, 1.3)):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.turn()
                self._is_out = False
            except StoreUnavailable as outage:
                if not self._is_out:
                    log.warning("webhook_held_up", reason=str(outage))
                self._is_out = True

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            # It counts as an attempt, and is made again when the lease is over.
            log.error("webhook_not_tried", **reason_of(task))

    async def _keep(self, change: Change) -> None:
        notice = self._webhook.notice(change)
        if notice is None:
            return
        try:
            await self._records.of(change.tenant).notices.add(notice)
        except StoreUnavailable as outage:
            # What was decided is decided.
            self.done["dropped"] += 1
            log.warning("webhook_dropped", tenant=change.tenant, reason=str(outage))

    async def _shed(self) -> None:
        for tenant in tuple(self._grown):
            for dropped in await self._records.of(tenant).notices.shed(MOST_UNSENT):
                self.done["dropped"] += 1
                log.warning("webhook_dropped", tenant=tenant, webhook_id=dropped)
            self._grown.discard(tenant)

    async def _deliver(self, tenant: str, taken: Notice) -> None:
        last = len(self._pauses_s) + 1
        why = LEFT if taken.tries > last else await self._webhook.send(taken)
        notices = self._records.of(tenant).notices
        try:
            if why is not None and why != GONE and taken.tries < last:
                pause_s = self._pauses_s[taken.tries - 1]
                await notices.put_off(taken, self._clock() + pause_s)
                asyncio.get_running_loop().call_later(pause_s, self._wake.set)
            elif await notices.remove(taken):
                self.done["taken" if why is None else "given_up"] += 1
                if why is not None:
                    log.warning("webhook_given_up", tenant=tenant, webhook_id=taken.id, reason=why)
        except StoreUnavailable as outage:
            # Whoever takes it next sends it again, and its receiver knows it by its id.
            log.warning("webhook_not_noted", webhook_id=taken.id, reason=str(outage))
