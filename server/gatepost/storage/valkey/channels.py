"""What this process follows in Valkey: one connection, however many follow."""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from gatepost.background import started
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import Deliver

# Not the generator that everybody in the process shares, and may have seeded.
DICE = random.SystemRandom()
ANSWER_S = 3.0
"""How long the server may take to take up a channel."""
PING_S = 10.0
SILENCE_S = 25.0
"""Without a word for so long, not even an answer to a ping, a connection is dead."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0

log = logging.getLogger("gatepost.pubsub")


class Channels:
    """
    Channels with their followers; the first follower of one subscribes, the last ends it.

    A lost connection is made again for as long as anybody follows; what was published meanwhile
    is lost. Nothing waits here: a message is handed over or it is nobody's.
    """

    def __init__(self, connection: Callable[[], AbstractConnection]) -> None:
        self._make = connection
        self._connection: AbstractConnection | None = None
        self._followed: dict[bytes, _Channel] = {}
        self._asked: Counter[bytes] = Counter()
        self._reader: asyncio.Task[None] | None = None

    async def follow(self, name: bytes, deliver: Deliver) -> "ValkeySubscription":
        """Hear what is published in a channel from now on; raises StoreUnavailable."""
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
            await following.aclose()
            raise StoreUnavailable("the shared store does not take up a channel") from None
        except asyncio.CancelledError:
            await following.aclose()
            raise
        return following

    async def unfollow(self, following: "ValkeySubscription") -> None:
        """Remove one subscriber."""
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
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])

    async def _ask(self, command: str, *names: bytes) -> None:
        """Write a command; its confirmation comes to the reader."""
        connection = self._connection
        # Without a connection the reader asks for everything as soon as it has one. A closed one
        # would connect again by itself, behind the reader's back.
        if connection is None or not connection.is_connected or not names:
            return
        if command == "SUBSCRIBE":
            self._asked.update(names)
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
                    # By name: its text holds an address.
                    log.warning("pubsub_lost", extra={"error": type(error).__name__})
            finally:
                self._connection = None
                for channel in self._followed.values():
                    channel.effective.clear()
                with contextlib.suppress(RedisError, OSError, TimeoutError):
                    await connection.disconnect(nowait=True)
            # Not all processes at the same moment.
            await asyncio.sleep(pause * DICE.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _read(self, connection: AbstractConnection) -> None:
        """Hand over what comes until the connection is lost; raises what tells so."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S) as timeout:
            await connection.connect()  # type: ignore[no-untyped-call]  # it has no types
            self._asked.clear()
            self._connection = connection
            await self._ask("SUBSCRIBE", *self._followed)
            pinging = asyncio.create_task(_ping(connection))
            try:
                while True:
                    timeout.reschedule(loop.time() + SILENCE_S)
                    self._take(await connection.read_response(disconnect_on_error=False))
                    # A flood of messages must not keep others from their turn, nor pile up here.
                    await asyncio.sleep(0)
            finally:
                pinging.cancel()

    def _take(self, message: Any) -> None:
        if not isinstance(message, list):
            return
        kind, name, *rest = message
        channel = self._followed.get(name)
        if kind == b"subscribe":
            self._asked[name] -= 1
            # An earlier subscription may be confirmed while its end is on the way.
            if self._asked[name] <= 0 and channel is not None:
                channel.effective.set()
        elif kind == b"message" and channel is not None:
            loop = asyncio.get_running_loop()
            for following in channel.followers:
                # Through the loop: one that raises must not end the reader for everybody.
                loop.call_soon(following.hear, rest[0])


class _Channel:
    __slots__ = ("effective", "followers")

    def __init__(self) -> None:
        self.followers: set[ValkeySubscription] = set()
        self.effective = asyncio.Event()
        """Set while the server has us as a subscriber."""


class ValkeySubscription:
    """A `Subscription` to one Valkey channel."""

    __slots__ = ("_channels", "_deliver", "name")

    def __init__(self, channels: Channels, name: bytes, deliver: Deliver) -> None:
        self._channels = channels
        self._deliver: Deliver | None = deliver
        self.name = name

    def hear(self, message: bytes) -> None:
        """Hand a message over."""
        if self._deliver is not None:
            self._deliver(message)

    async def aclose(self) -> None:
        """End the subscription."""
        self._deliver = None
        await self._channels.unfollow(self)


async def _ping(connection: AbstractConnection) -> None:
    """Make the server speak now and then; the reader notices when it does not."""
    with contextlib.suppress(RedisError, OSError):
        while connection.is_connected:
            await asyncio.sleep(PING_S)
            await connection.send_command("PING", check_health=False)
