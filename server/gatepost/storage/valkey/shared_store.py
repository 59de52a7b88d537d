"""The shared store over Valkey, or Redis from version 7; needs the `redis` extra."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

from redis import __version__ as redis_version
from redis.asyncio import Redis
from redis.asyncio.connection import BlockingConnectionPool, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.rate_limits import ConcurrencyLimit, QuotaBucket, Spending
from gatepost.storage.shared_store import DeliverMessage, LogEvent
from gatepost.storage.valkey.channels import ANSWER_S, Channels, ValkeySubscription
from gatepost.storage.valkey.concurrency import (
    LARGE_LIMIT,
    LEVELS,
    TAKE_SCRIPT,
    ValkeyConcurrency,
    ValkeyLimits,
)
from gatepost.storage.valkey.script_connection import ScriptConnection

CONNECTIONS = 16
MAX_KEYS = 20_000
"""The number of keys that are cached, because the callers of a tenant need the same."""
MAX_EVENTS = 2**63
"""The first number that no event has."""
KEYS_PER_SCAN = 1000
"""The keys of all tenants that the server examines in one step of a search."""
_GLOB_CHARACTERS = re.compile(rb"[*?\[\]\\^-]")
T = TypeVar("T")


class ValkeySharedStore:
    """The `SharedStore` over a Valkey server."""

    def __init__(self, url: str) -> None:
        # RESP2, because a connection with subscriptions uses it in every version. Nothing is
        # retried: a message that was sent but not acknowledged would arrive twice.
        common: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": ANSWER_S,
            "retry": Retry(NoBackoff(), 0),
            # Otherwise each connection would search the installed packages for it.
            "driver_info": DriverInfo(lib_version=redis_version),
        }
        self._pool = BlockingConnectionPool.from_url(
            url, max_connections=CONNECTIONS, timeout=ANSWER_S, socket_timeout=ANSWER_S, **common
        )
        self.client = Redis(connection_pool=self._pool)
        self._levels = self.client.register_script(LEVELS)
        # A subscribed channel may be silent for any time.
        self._listening = ConnectionPool.from_url(url, socket_timeout=None, **common)
        self._take = ScriptConnection(TAKE_SCRIPT, self._listening.make_connection)
        self.concurrency = ValkeyConcurrency(self._run)
        self.channels = Channels(self._listening.make_connection)
        # Databases separate keys, but not channels.
        self.topics = b"topic@%d" % int(self._pool.connection_kwargs.get("db", 0))

    def for_tenant(self, tenant: str) -> "ValkeyTenantSharedStore":
        """Return the shared store of one tenant."""
        return ValkeyTenantSharedStore(self, tenant)

    async def ping(self) -> None:
        """Raise StoreUnavailable unless the shared store answers."""
        with answering():
            await self.client.ping()

    async def aclose(self) -> None:
        """Close all connections, also if closing one of them fails; subscriptions end."""
        async with contextlib.AsyncExitStack() as closing:
            for close in (self._pool.aclose, self.client.aclose, self._take.aclose):
                closing.enter_context(contextlib.suppress(RedisError, OSError))
                closing.push_async_callback(close)
            closing.push_async_callback(self.concurrency.aclose)
            closing.push_async_callback(self.channels.aclose)

    async def levels(self, keys: list[bytes], buckets: int) -> list[float]:
        """Return the seconds missing in each bucket, then the running calls of each limit."""
        with answering():
            return [float(level) for level in await self._levels(keys=keys, args=[buckets])]

    async def _run(self, keys: Sequence[bytes], argument: bytes) -> bytes:
        with answering():
            return await self._take.run(keys, argument)


class ValkeyTenantSharedStore:
    """The `TenantSharedStore` of one tenant, over a Valkey server."""

    __slots__ = ("_channels", "_client", "_shared_store", "_tenant", "_topics")

    def __init__(self, shared_store: ValkeySharedStore, tenant: str) -> None:
        self._client, self._channels, self._topics = (
            shared_store.client,
            shared_store.channels,
            shared_store.topics,
        )
        self._shared_store = shared_store
        self._tenant = _bytes(tenant)

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to all subscribers of a topic, in all processes."""
        with answering():
            await self._client.publish(self._key(self._topics, topic), message)

    async def follow(self, topic: str, deliver: DeliverMessage) -> ValkeySubscription:
        """Subscribe to a topic; messages published after this returns are delivered."""
        return await self._channels.follow(self._key(self._topics, topic), deliver)

    async def put(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """Store a note under a key."""
        with answering():
            await self._client.set(self._key(b"note", key), value, px=_milliseconds(ttl_s))

    async def take(self, key: str) -> bytes | None:
        """Return a note and delete it; of several concurrent callers, one gets it."""
        with answering():
            return cast("bytes | None", await self._client.getdel(self._key(b"note", key)))

    async def spend(self, bucket: str, *, rate: float, burst: float) -> float:
        """Take a token from a bucket that gains *rate* tokens a second and holds *burst*."""
        denial = await self.limits((Spending(bucket, rate, burst),)).take()
        return 0.0 if denial is None else denial.wait_s

    def limits(
        self,
        spendings: Sequence[Spending] = (),
        concurrency: Sequence[ConcurrencyLimit] = (),
        quotas: Sequence[QuotaBucket] = (),
    ) -> ValkeyLimits:
        """Return limits that calls take together; their names differ from each other."""
        buckets = [*(limit.bucket for limit in spendings), *(quota.bucket for quota in quotas)]
        rates = [argument for limit in spendings for argument in (0, limit.rate, limit.burst)]
        maxima = [argument for limit in concurrency for argument in (0, limit.maximum)]
        return ValkeyLimits(
            counts=self._shared_store.concurrency,
            bucket_keys=tuple(self._key(b"bucket", bucket) for bucket in buckets),
            rates=_interned(tuple(rates)),
            rooms_s=_interned(tuple(quota.room_s for quota in quotas)),
            limit_keys=_interned(tuple(self._key(b"limit", limit.name) for limit in concurrency)),
            maxima=_interned(tuple(maxima)),
            are_large=all(limit.maximum >= LARGE_LIMIT for limit in concurrency),
        )

    async def levels(
        self, spendings: Sequence[Spending], concurrency: Sequence[ConcurrencyLimit]
    ) -> list[float]:
        """Return the tokens in each bucket, then the running calls of each limit; takes nothing."""
        keys = [self._key(b"bucket", spending.bucket) for spending in spendings]
        keys += [self._key(b"limit", limit.name) for limit in concurrency]
        levels = await self._shared_store.levels(keys, len(spendings))
        tokens = [
            spending.burst - s * spending.rate
            for spending, s in zip(spendings, levels, strict=False)
        ]
        return [*tokens, *levels[len(spendings) :]]

    async def append(self, log: str, data: bytes, *, ttl_s: float, max_events: int) -> int:
        """
        Append to a log and return the entry's number; only the *max_events* newest entries stay.
        """
        key = self._key(b"log", log)
        with answering():
            async with self._client.pipeline(transaction=True) as pipe:
                # The server counts: it remembers the last number of a stream, even if the stream
                # was trimmed.
                pipe.xadd(key, {b"": data}, id="0-*", maxlen=max_events, approximate=False)
                pipe.pexpire(key, _milliseconds(ttl_s))
                identity, _ = await pipe.execute()
        return _number(identity)

    async def read(self, log: str, after: int) -> list[LogEvent] | None:
        """Return the entries after a number; None if the log is unknown or has lost some."""
        if not 0 <= after < MAX_EVENTS:
            return None
        key = self._key(b"log", log)
        with answering():
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.xrevrange(key, count=1)
                pipe.xrange(key, min=f"0-{after + 1}")
                newest, entries = await pipe.execute()
        if not newest:
            return None
        events = [LogEvent(_number(identity), fields[b""]) for identity, fields in entries]
        return events if len(events) == _number(newest[0][0]) - after else None

    async def forget(self, log: str) -> None:
        """Delete a log."""
        with answering():
            await self._client.delete(self._key(b"log", log))

    async def clear(self) -> None:
        """Delete all notes and logs of the tenant."""
        for kind in (b"note", b"log"):
            pattern = _GLOB_CHARACTERS.sub(rb"\\\g<0>", self._key(kind, "")) + b"*"
            with answering():
                async for key in self._client.scan_iter(match=pattern, count=KEYS_PER_SCAN):
                    await self._client.unlink(key)

    def _key(self, kind: bytes, name: str) -> bytes:
        return _key(kind, self._tenant, name)


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Tell the client's errors as StoreUnavailable, by name: their text holds an address."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        name = type(error).__name__
        raise StoreUnavailable(f"the shared store does not serve: {name}") from None


async def opened(url: str) -> ValkeySharedStore:
    """Return the shared store at a URL; it connects when it is first used."""
    return ValkeySharedStore(url)


@lru_cache(maxsize=MAX_KEYS)
def _key(kind: bytes, tenant: bytes, name: str) -> bytes:
    # The length comes first, so that no tenant's name can be confused with what follows it.
    return b"gatepost:%b:%d:%b:%b" % (kind, len(tenant), tenant, _bytes(name))


# Callers share one object: a hundred thousand of them have limits.
@lru_cache(maxsize=MAX_KEYS)
def _interned(arguments: tuple[T, ...]) -> tuple[T, ...]:
    return arguments


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _number(identity: bytes) -> int:
    """Return the second half of a stream entry's id."""
    return int(identity.partition(b"-")[2])
