"""Rate limits over Valkey: one request for many callers, and no caller left waiting."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import pytest

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.rate_limits import Denial
from gatepost.storage.valkey.rate_limits import REQUESTS_PER_RUN, RateLimitRequest, ValkeyRateLimits
from gatepost.storage.valkey.shared_store import opened


class GatedValkey:
    """Answers when its gate is open, and records how many calls each request was about."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.batch_sizes: list[int] = []
        self.failure: Exception | None = None

    async def ask(self, requests: list[RateLimitRequest]) -> list[Denial | None]:
        self.batch_sizes.append(len(requests))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return [Denial(0, request.rates[1]) for request in requests]

    def shared_limits(self) -> ValkeyRateLimits:
        return ValkeyRateLimits(self.ask, lambda request: None)


async def wait_of(shared_limits: ValkeyRateLimits, rate: float) -> float:
    """Return the wait in seconds that Valkey answers, which gives away the bucket's rate."""
    request = RateLimitRequest(
        (b"alice",), [0, rate, 1], (), (), asyncio.get_running_loop().create_future()
    )
    shared_limits.put(request)
    denial = await request.answer
    assert denial is not None
    return denial.wait_s


def spend(shared_limits: ValkeyRateLimits, rate: float) -> "asyncio.Task[float]":
    return asyncio.create_task(wait_of(shared_limits, rate))


async def test_calls_during_a_running_query_share_the_next_one() -> None:
    """Each gets its own answer, and a query has a bounded number of calls."""
    server = GatedValkey()
    shared_limits = server.shared_limits()
    tasks = [spend(shared_limits, 0)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks += [spend(shared_limits, rate) for rate in range(1, 2 * REQUESTS_PER_RUN + 1)]
    await asyncio.sleep(0)
    server.gate.set()

    assert await asyncio.gather(*tasks) == list(range(2 * REQUESTS_PER_RUN + 1))
    assert server.batch_sizes == [1, REQUESTS_PER_RUN, REQUESTS_PER_RUN]
    assert await wait_of(shared_limits, 7) == 7


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), ValueError("a fault of ours")])
async def test_a_failure_reaches_every_waiting_call(failure: Exception) -> None:
    """It also ends the calls of the next query, which would wait twice as long."""
    server = GatedValkey()
    server.failure = failure
    shared_limits = server.shared_limits()
    tasks = [spend(shared_limits, 1)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks += [spend(shared_limits, 2), spend(shared_limits, 3)]
    await asyncio.sleep(0)
    server.gate.set()

    assert await asyncio.gather(*tasks, return_exceptions=True) == [failure] * 3
    assert server.batch_sizes == [1]
    server.failure = None
    assert await wait_of(shared_limits, 7) == 7


async def test_a_cancelled_wait_ends_alone() -> None:
    """A cancelled wait ends alone, whichever question it is part of."""
    server = GatedValkey()
    shared_limits = server.shared_limits()
    gone, stays = spend(shared_limits, 1), spend(shared_limits, 2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = spend(shared_limits, 3)
    gone.cancel()
    await asyncio.sleep(0)
    server.gate.set()

    assert await asyncio.gather(stays, later) == [2, 3]
    assert gone.cancelled()
    await shared_limits.aclose()


async def test_many_concurrent_calls_spend_exactly_the_available_tokens(valkey: str) -> None:
    """Together they get no more out of a bucket than one after the other."""
    shared_store = await opened(valkey)
    acme = shared_store.for_tenant("acme")
    waits = await asyncio.gather(
        *(acme.spend(bucket, rate=0.001, burst=30) for bucket in ["a", "b"] * 50)
    )

    assert [waits[0::2].count(0.0), waits[1::2].count(0.0)] == [30, 30]
    assert all(wait == 0 or 900 < wait <= 1100 for wait in waits)
    await shared_store.aclose()


class ByteProxy:
    """Passes what Valkey answers byte by byte; can close all connections."""

    def __init__(self, valkey: str) -> None:
        self._to = urlsplit(valkey)
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve during a block; yields the URL to use instead."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            yield urlunsplit(self._to).replace(f":{self._to.port}/", f":{port}/")
            self.hang_up()

    def hang_up(self) -> None:
        """Close all connections."""
        while self._writers:
            self._writers.pop().close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        valkey = await asyncio.open_connection("127.0.0.1", self._to.port)
        self._writers += [writer, valkey[1]]
        await asyncio.gather(_pass(reader, valkey[1]), _pass(valkey[0], writer, 1))


async def _pass(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, most: int = 65_536
) -> None:
    while data := await source.read(most):
        sink.write(data)
        await asyncio.sleep(0)
    sink.close()


async def test_an_answer_may_come_in_pieces(valkey: str) -> None:
    """The first request of a script too, which Valkey does not know then."""
    async with ByteProxy(valkey).serving() as url:
        shared_store = await opened(url)
        waits = [
            await shared_store.for_tenant("acme").spend("a", rate=0.001, burst=2) for _ in range(3)
        ]
        await shared_store.aclose()

    assert waits[:2] == [0, 0]
    assert 900 < waits[2] <= 1000


async def test_an_idle_connection_closed_by_valkey_fails_no_call(valkey: str) -> None:
    """Valkey closes idle connections after `timeout` seconds and when it restarts."""
    proxy = ByteProxy(valkey)
    async with proxy.serving() as url:
        shared_store = await opened(url)
        acme = shared_store.for_tenant("acme")
        assert await acme.spend("a", rate=1, burst=9) == 0
        proxy.hang_up()
        await acme.put("note", b"", ttl_s=1)  # over another connection, after this one's end
        assert await acme.spend("a", rate=1, burst=9) == 0
        await shared_store.aclose()
