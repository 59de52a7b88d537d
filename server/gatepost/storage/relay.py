"""
What connects the processes, narrowed to one tenant: the *relay* carries what may be lost.

It is in memory within one process, and Valkey or Redis between several. Every backend passes the
suites in `tests/storage`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec
import structlog

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.rate_limits import ConcurrencySlot, Denial, Spending

Deliver = Callable[[bytes], None]
"""Takes a message of a topic; called on the event loop, must not block and must not raise."""


class Subscription(Protocol):
    """One interest in a topic."""

    async def aclose(self) -> None:
        """Hear no more."""


class LogEvent(msgspec.Struct, frozen=True):
    """One entry of a log; numbers begin at 1 and have no gaps."""

    number: int
    data: bytes


class TenantRelay(Protocol):
    """Messages, notes and short logs of one tenant, between processes; all of it may be lost."""

    async def publish(self, topic: str, message: bytes) -> None:
        """Tell everybody who follows the topic, in this process and in the others."""

    async def follow(self, topic: str, deliver: Deliver) -> Subscription:
        """Hear what is published from now on: what comes after this returns is delivered."""

    async def put(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """Leave a note for whoever knows its key."""

    async def take(self, key: str) -> bytes | None:
        """The note, which is gone then; of several takers one gets it."""

    async def spend(self, bucket: str, *, rate: float, burst: float) -> float:
        """
        Take one from a token bucket that gains *rate* a second and holds *burst*.

        0 when it had one; else the seconds until it will, and nothing was taken. One atomic step,
        whoever else spends.
        """

    async def spend_all(
        self, spendings: Sequence[Spending], slots: Sequence[ConcurrencySlot] = ()
    ) -> Denial | None:
        """
        Take one from each bucket and a place of each slot, or nothing at all; None when taken.

        One atomic step, whoever else spends; the names of one step differ. Places count until
        `leave`, or until the process that took them has said nothing for `LEASE_S`.
        """

    def hold(self, slots: Sequence[ConcurrencySlot]) -> None:
        """Count places that are taken whether there is room or not; others hear of it soon."""

    def leave(self, slots: Sequence[ConcurrencySlot]) -> None:
        """Give places back; others hear of it soon."""

    async def levels(
        self, spendings: Sequence[Spending], slots: Sequence[ConcurrencySlot]
    ) -> list[float]:
        """What is in each bucket, and how many places of each slot are in use; takes nothing."""

    async def append(self, log: str, data: bytes, *, ttl_s: float, most: int) -> int:
        """Write to a log; answers the entry's number. Only the *most* newest entries are kept."""

    async def read(self, log: str, after: int) -> list[LogEvent] | None:
        """The entries after that number; None when the log is unknown or misses some of them."""

    async def forget(self, log: str) -> None:
        """Drop a log."""

    async def clear(self) -> None:
        """Drop every note and every log of the tenant."""


class Relay(Protocol):
    """What connects the processes."""

    def of(self, tenant: str) -> TenantRelay:
        """The relay of one tenant; costs nothing."""

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the relay answers."""

    async def aclose(self) -> None:
        """Close what was opened; followers hear no more."""


log = structlog.get_logger("gatepost.storage")


class WakeUps:
    """
    Follows one topic of a tenant's relay, and wakes one task.

    A message may be lost, and the relay may be out. So the task looks at the database whenever
    `wait` returns, and a wake-up only makes it look sooner. With *message*, no other message wakes
    it.
    """

    __slots__ = ("_message", "_relay", "_subscription", "_topic", "_woken")

    def __init__(self, relay: TenantRelay, topic: str, *, message: bytes | None = None) -> None:
        self._relay, self._topic, self._message = relay, topic, message
        self._subscription: Subscription | None = None
        self._woken = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Follow the topic during a block; go on without wake-ups while the relay is out."""
        await self.follow()
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        """End the subscription."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.aclose()

    async def follow(self) -> bool:
        """Follow the topic unless this is done already; return False while the relay is out."""
        if self._subscription is None:
            try:
                self._subscription = await self._relay.follow(self._topic, self._deliver)
            except StoreUnavailable:
                log.debug("wake_ups_unavailable")
                return False
        return True

    def wake(self) -> None:
        """Let the task look at once."""
        self._woken.set()

    async def wait(self, within_s: float) -> None:
        """Return when woken since the last wait, and after *within_s* seconds at the latest."""
        with contextlib.suppress(TimeoutError):
            # Not `wait_for`: in Python 3.11 it loses a cancellation that meets a wake-up, and a
            # stop never ends.
            async with asyncio.timeout(within_s):
                await self._woken.wait()
        self._woken.clear()

    def _deliver(self, message: bytes) -> None:
        if self._message is None or message == self._message:
            self._woken.set()
