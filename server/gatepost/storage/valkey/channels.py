"""Subscribe to channels of Valkey over one connection for all subscriptions of this process."""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from gatepost.background import TaskSet, started
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import DeliverMessage

# Not the generator that all code in the process shares, and that a tool may have seeded.
RANDOM = random.SystemRandom()
ANSWER_S = 3.0
"""How long the server may take to confirm a subscription."""
PING_S = 10.0
SILENCE_S = 25.0
"""A connection that receives nothing for so long, not even an answer to a ping, is dead."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0

log = logging.getLogger(__name__)


class Channels:
    """
    The subscribed channels with their followers; the first follower subscribes, the last one
    unsubscribes.

    A lost connection is opened again while there are followers; messages published meanwhile are
    lost. No message is stored here: it is delivered at once or dropped.
    """

    def __init__(self, connection: Callable[[], AbstractConnection]) -> None:
        self._make = connection
        self._connection: AbstractConnection | None = None
        self._followed: dict[bytes, _Channel] = {}
        self._unconfirmed: Counter[bytes] = Counter()
        self._reader: asyncio.Task[None] | None = None
        self._ending = TaskSet()

    async def follow(self, name: bytes, deliver: DeliverMessage) -> "ValkeySubscription":
        """Deliver the messages of a channel from now on; raises StoreUnavailable."""
        following = ValkeySubscription(self, name, deliver)
        channel = self._followed.get(name)
        first = channel is None
        if channel is None:
            channel = self._followed[name] = _Channel()
        channel.followers.add(following)
        if self._reader is None:
            self._reader = started("shared_store", self._read_always)
        try:
            async with asyncio.timeout(ANSWER_S):
                if first:
                    await self._ask("SUBSCRIBE", name)
                await channel.effective.wait()
        except (RedisError, OSError, TimeoutError):
            following.end()
            raise StoreUnavailable("the shared store does not take up a channel") from None
        except asyncio.CancelledError:
            following.end()
            raise
        return following

    def unfollow(self, following: "ValkeySubscription") -> None:
        """Remove one subscriber in a task: removing it and unsubscribing are one step there."""
        self._ending.start(self._unfollow(following), context=Context())

    async def _unfollow(self, following: "ValkeySubscription") -> None:
        channel = self._followed.get(following.name)
        if channel is None or following not in channel.followers:
            return
        channel.followers.discard(following)
        if not channel.followers:
            del self._followed[following.name]
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    await self._ask("UNSUBSCRIBE", following.name)

    async def aclose(self) -> None:
        """Follow nothing any more."""
        self._followed.clear()
        await self._ending.wait()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])

    async def _ask(self, command: str, *names: bytes) -> None:
        """Write a command; its confirmation comes to the reader."""
        connection = self._connection
        # If there is no connection, the reader subscribes to everything as soon as it has one. A
        # closed connection would connect again by itself, unnoticed by the reader.
        if connection is None or not connection.is_connected or not names:
            return
        if command == "SUBSCRIBE":
            self._unconfirmed.update(names)
        await connection.send_command(command, *names, check_health=False)

    async def _read_always(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            connection = self._make()
            try:
                await self._read(connection)
            except (RedisError, OSError, TimeoutError) as error:
                if self._connection is not None:
                    pause = FIRST_PAUSE_S
                    # Log the name of the error, because its text contains an address.
                    log.warning("pubsub_lost", extra={"error": type(error).__name__})
            finally:
                self._connection = None
                for channel in self._followed.values():
                    channel.effective.clear()
                with contextlib.suppress(RedisError, OSError, TimeoutError):
                    await connection.disconnect(nowait=True)
            # Random, so that not all processes connect at the same moment.
            await asyncio.sleep(pause * RANDOM.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _read(self, connection: AbstractConnection) -> None:
        """Deliver messages until the connection is lost, and raise its error."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S) as timeout:
            await connection.connect()  # type: ignore[no-untyped-call]  # the method has no types
            self._unconfirmed.clear()
            self._connection = connection
            await self._ask("SUBSCRIBE", *self._followed)
            pinging = asyncio.create_task(_ping(connection))
            try:
                while True:
                    timeout.reschedule(loop.time() + SILENCE_S)
                    self._take(await connection.read_response(disconnect_on_error=False))
                    # Let other tasks run, so that a flood of messages neither delays them nor piles
                    # up.
                    await asyncio.sleep(0)
            finally:
                pinging.cancel()

    def _take(self, message: Any) -> None:
        if not isinstance(message, list):
            return
        kind, name, *payload = message
        channel = self._followed.get(name)
        if kind == b"subscribe":
            self._unconfirmed[name] -= 1
            # The confirmation may belong to an earlier subscription whose end is on the way.
            if self._unconfirmed[name] <= 0 and channel is not None:
                channel.effective.set()
        elif kind == b"message" and channel is not None:
            loop = asyncio.get_running_loop()
            for following in channel.followers:
                # Called by the loop, so that an exception in one follower does not end the reader.
                loop.call_soon(following.receive, payload[0])


class _Channel:
    __slots__ = ("effective", "followers")

    def __init__(self) -> None:
        self.followers: set[ValkeySubscription] = set()
        self.effective = asyncio.Event()
        """Set while the server has confirmed the subscription."""


class ValkeySubscription:
    """A `Subscription` to one Valkey channel."""

    __slots__ = ("_channels", "_deliver", "name")

    def __init__(self, channels: Channels, name: bytes, deliver: DeliverMessage) -> None:
        self._channels = channels
        self._deliver: DeliverMessage | None = deliver
        self.name = name

    def receive(self, message: bytes) -> None:
        """Hand a message over."""
        if self._deliver is not None:
            self._deliver(message)

    def end(self) -> None:
        """Implement `Subscription`."""
        self._deliver = None
        self._channels.unfollow(self)


async def _ping(connection: AbstractConnection) -> None:
    """Ping the server regularly; the reader notices a missing answer."""
    with contextlib.suppress(RedisError, OSError):
        while connection.is_connected:
            await asyncio.sleep(PING_S)
            await connection.send_command("PING", check_health=False)
