"""Connections are kept, limited and closed; a cancelled request takes none with it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import FrameType
from typing import Any

import httpx2
import pytest

from gatepost_authz.address_policy import IssuerAddressPolicy
from gatepost_authz.pinning import PinningTransport

WITHIN_S = 10.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run on uvloop, as servers do, and on asyncio's own loop, as other users of the package do."""
    return "asyncio", {"use_uvloop": request.param}


class KeepAliveServer:
    """Answers *answer* to each request as soon as *answers* is set."""

    def __init__(self, answer: bytes = OK, *, closes: bool = False) -> None:
        self.answer, self._closes = answer, closes
        self.answers = asyncio.Event()
        self.answers.set()
        self.requests: list[str] = []
        self.connections = self.open = self.most = 0
        self._changed = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most = max(self.most, self.open)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head.split()[1].decode())
                self._changed.set()
                await self.answers.wait()
                writer.write(self.answer)
                await writer.drain()
                if self._closes:
                    break
        writer.close()
        self.open -= 1
        self._changed.set()

    async def reaches(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* holds after a request or the end of a connection."""
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def served(server: KeepAliveServer) -> AsyncIterator[str]:
    """Run *server*, and yield its URL."""
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        server.answers.set()
        listener.close()


@asynccontextmanager
async def pooled(
    most: int | None = 4, idle: int | None = 4, idle_s: float | None = WITHIN_S
) -> AsyncIterator[PinningTransport]:
    """Yield a transport with these limits, which is closed in the end."""
    limits = httpx2.Limits(
        max_connections=most, max_keepalive_connections=idle, keepalive_expiry=idle_s
    )
    transport = PinningTransport(
        address_policy=IssuerAddressPolicy(development=True), limits=limits
    )
    try:
        yield transport
    finally:
        await transport.aclose()


def request_to(url: str, pool_s: float = WITHIN_S) -> httpx2.Request:
    timeout = dict.fromkeys(("connect", "read", "write"), WITHIN_S) | {"pool": pool_s}
    return httpx2.Request("POST", url, extensions={"timeout": timeout})


async def fetch(transport: PinningTransport, url: str, pool_s: float = WITHIN_S) -> bytes:
    answer = await transport.handle_async_request(request_to(url, pool_s))
    try:
        return await answer.aread()
    finally:
        await answer.aclose()


def fetching(transport: PinningTransport, url: str) -> asyncio.Task[bytes]:
    return asyncio.create_task(fetch(transport, url))


async def test_requests_one_after_another_share_a_connection() -> None:
    server = KeepAliveServer()
    async with served(server) as url, pooled() as transport:
        for _ in range(3):
            assert await fetch(transport, url) == b"ok"
        assert transport.open_connections == 1

    assert server.connections == 1


async def test_no_more_connections_are_open_than_the_limit_says() -> None:
    """Further requests wait for one that becomes free."""
    server = KeepAliveServer()
    server.answers.clear()
    async with served(server) as url, pooled(most=3) as transport:
        running = [fetching(transport, url) for _ in range(10)]
        await server.reaches(lambda: len(server.requests) == 3)
        server.answers.set()
        answers = await asyncio.gather(*running)

        assert answers == [b"ok"] * 10
        assert (server.connections, server.most, transport.open_connections) == (3, 3, 3)


async def test_the_request_that_has_waited_longest_is_served_first() -> None:
    """Also if the connection that becomes free leads to another server."""
    server, other = KeepAliveServer(), KeepAliveServer()
    order: list[str] = []

    async def noted(target: str) -> None:
        await fetch(transport, target)
        order.append(target)

    async with served(server) as url, served(other) as elsewhere, pooled(most=1) as transport:
        server.answers.clear()
        targets = [f"{url}/0", f"{elsewhere}/1", f"{url}/2", f"{url}/3", f"{elsewhere}/4"]
        running = [asyncio.create_task(noted(target)) for target in targets]
        await server.reaches(lambda: bool(server.requests))
        server.answers.set()
        await asyncio.gather(*running)

    assert order == targets
    assert (server.requests, other.requests) == (["/0", "/2", "/3"], ["/1", "/4"])
    assert (server.connections, other.connections) == (2, 2)


async def test_waiting_for_a_connection_has_a_time_limit() -> None:
    """The request that gave up is not served afterwards, and blocks no other."""
    server = KeepAliveServer()
    server.answers.clear()
    async with served(server) as url, pooled(most=1) as transport:
        first = fetching(transport, f"{url}/first")
        await server.reaches(lambda: bool(server.requests))
        with pytest.raises(httpx2.PoolTimeout):
            await fetch(transport, f"{url}/late", pool_s=0.01)
        server.answers.set()
        await first
        await fetch(transport, f"{url}/next")

    assert server.requests == ["/first", "/next"]


async def test_an_idle_connection_makes_room_for_another_server() -> None:
    """The one that was not used for longest is closed."""
    servers = [KeepAliveServer(), KeepAliveServer(), KeepAliveServer()]
    async with (
        served(servers[0]) as first,
        served(servers[1]) as second,
        served(servers[2]) as third,
        pooled(most=2) as transport,
    ):
        for url in (first, second, first, third, first):
            await fetch(transport, url)

        assert [server.connections for server in servers] == [1, 1, 1]
        await servers[1].reaches(lambda: servers[1].open == 0)
        assert transport.open_connections == 2


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
async def test_each_origin_has_connections_of_its_own(name: str) -> None:
    """A port or a spelling of the same host is another origin."""
    server, other = KeepAliveServer(), KeepAliveServer()
    async with served(server) as url, served(other) as elsewhere, pooled() as transport:
        await fetch(transport, url.replace("127.0.0.1", "localhost"))
        await fetch(transport, elsewhere)
        await fetch(transport, url.replace("127.0.0.1", name))

    assert (server.connections, other.connections) == (1 + (name != "localhost"), 1)


@pytest.mark.parametrize("answer", [OK, b"HTTP/1.1 200 OK\r\n\r\nok"])
async def test_a_connection_that_the_server_closed_is_not_used_again(answer: bytes) -> None:
    """Not even for a request that must not be repeated, nor if the end is that of the response."""
    server = KeepAliveServer(answer, closes=True)
    async with served(server) as url, pooled() as transport:
        for _ in range(3):
            assert await fetch(transport, url) == b"ok"
            await server.reaches(lambda: server.open == 0)

    assert server.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: upgrade, Close\r\nContent-Length: 2\r\n\r\nok",
    ],
)
async def test_a_connection_that_the_response_ends_is_closed(answer: bytes) -> None:
    """HTTP/1.0 and `Connection: close`; the server may wait for the client to close it."""
    server = KeepAliveServer(answer)
    async with served(server) as url, pooled() as transport:
        assert await fetch(transport, url) == b"ok"
        assert transport.open_connections == 0
        await server.reaches(lambda: server.open == 0)


async def test_a_response_that_is_not_read_to_its_end_closes_its_connection() -> None:
    """The rest would be taken for the next response."""
    server = KeepAliveServer(b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\nok")
    async with served(server) as url, pooled() as transport:
        answer = await transport.handle_async_request(request_to(url))
        assert transport.open_connections == 1
        await answer.aclose()
        await answer.aclose()

        assert transport.open_connections == 0
        await server.reaches(lambda: server.open == 0)


@pytest.mark.parametrize("surplus", [OK.replace(b"ok", b"no"), b"HTTP/1.1 200 OK\r\nX: ", b"\r\n"])
async def test_bytes_behind_a_response_never_answer_the_next_request(surplus: bytes) -> None:
    """A server that can be made to send two responses would choose what another caller gets."""
    server = KeepAliveServer(OK + surplus)
    async with served(server) as url, pooled() as transport:
        for _ in range(3):
            assert await fetch(transport, url) == b"ok"
        await server.reaches(lambda: server.open == 0)

    assert server.connections == 3


async def test_a_broken_response_frees_its_place() -> None:
    """A server that always fails does not use up the limit."""
    server = KeepAliveServer(b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\nok", closes=True)
    async with served(server) as url, pooled(most=1) as transport:
        for _ in range(3):
            with pytest.raises(httpx2.RemoteProtocolError):
                await fetch(transport, url)
        assert transport.open_connections == 0


async def test_a_connection_that_cannot_be_opened_frees_its_place() -> None:
    """And another request that waits for the place gets it."""
    server = KeepAliveServer()
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    refused = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()
    async with served(server) as url, pooled(most=1) as transport:
        failing, waiting = fetching(transport, refused), fetching(transport, url)
        with pytest.raises(httpx2.ConnectError):
            await failing
        assert await waiting == b"ok"
        with pytest.raises(httpx2.ConnectError):
            await fetch(transport, refused)

        assert transport.open_connections == 0


@pytest.mark.parametrize(("idle", "idle_s"), [(4, 0.0), (0, WITHIN_S)])
async def test_a_connection_is_not_used_after_its_idle_time(idle: int, idle_s: float) -> None:
    """And not kept at all if no idle one may be."""
    server = KeepAliveServer()
    async with served(server) as url, pooled(idle=idle, idle_s=idle_s) as transport:
        await fetch(transport, url)
        await fetch(transport, url)
        await server.reaches(lambda: server.open == transport.open_connections)

    assert server.connections == 2


async def test_no_more_idle_connections_are_kept_than_the_limit_says() -> None:
    server = KeepAliveServer()
    server.answers.clear()
    async with served(server) as url, pooled(most=None, idle=2, idle_s=None) as transport:
        running = [fetching(transport, url) for _ in range(5)]
        await server.reaches(lambda: len(server.requests) == 5)
        server.answers.set()
        await asyncio.gather(*running)
        await server.reaches(lambda: server.open == 2)

        assert transport.open_connections == 2


@pytest.mark.parametrize("waiting", [0, 1, 3])
async def test_a_request_cancelled_at_any_step_leaves_its_connection_to_others(
    waiting: int,
) -> None:
    """Each turn of the loop is a step; with *waiting* requests before it, it also waits itself."""
    server = KeepAliveServer()
    async with served(server) as url, pooled(most=1) as transport:
        for turns in range(40):
            before = [fetching(transport, url) for _ in range(waiting)]
            cancelled = fetching(transport, url)
            behind = fetching(transport, url)
            for _ in range(turns):
                await asyncio.sleep(0)
            cancelled.cancel()
            async with asyncio.timeout(WITHIN_S):
                assert set(await asyncio.gather(*before, behind)) == {b"ok"}
            with suppress(asyncio.CancelledError):
                await cancelled
            assert transport.open_connections <= 1
        await server.reaches(lambda: server.open <= 1)

    assert server.most <= 2  # the server notices the end of one after the beginning of the next


async def test_closing_ends_all_connections_and_the_requests_that_wait() -> None:
    server = KeepAliveServer()
    server.answers.clear()
    async with served(server) as url, pooled(most=2) as transport:
        running = [fetching(transport, url) for _ in range(2)]
        await server.reaches(lambda: len(server.requests) == 2)
        waiting = fetching(transport, url)
        await asyncio.sleep(0)
        await transport.aclose()
        async with asyncio.timeout(WITHIN_S):
            failures = await asyncio.gather(*running, waiting, return_exceptions=True)

        assert [type(failure) for failure in failures[:2]] == [httpx2.RemoteProtocolError] * 2
        assert isinstance(failures[2], httpx2.ConnectError)
        assert transport.open_connections == 0
        server.answers.set()
        await server.reaches(lambda: server.open == 0)


@pytest.mark.parametrize("turns", range(4))
async def test_closing_that_is_cancelled_still_closes_every_connection(turns: int) -> None:
    server = KeepAliveServer()
    server.answers.clear()
    async with served(server) as url, pooled() as transport:
        running = [fetching(transport, url) for _ in range(4)]
        await server.reaches(lambda: len(server.requests) == 4)
        server.answers.set()
        await asyncio.gather(*running)
        closing = asyncio.create_task(transport.aclose())
        await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()

        await server.reaches(lambda: server.open == 0)


def test_a_request_costs_no_more_with_many_idle_connections() -> None:
    """A pool that looks at each of them makes the busiest tenants slow."""
    with asyncio.Runner() as runner:
        few = runner.run(_lines_of_request(2))
        many = runner.run(_lines_of_request(60))

    assert many < 1.2 * few


async def _lines_of_request(idle: int) -> int:
    """Return the lines of Python that run for one request with so many idle connections."""
    server = KeepAliveServer()
    async with served(server) as url, pooled(most=None, idle=None) as transport:
        server.answers.clear()
        running = [fetching(transport, url) for _ in range(idle)]
        await server.reaches(lambda: len(server.requests) == idle)
        server.answers.set()
        await asyncio.gather(*running)
        assert transport.open_connections == idle
        lines = 0

        def count(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            await asyncio.create_task(fetch(transport, url))
        finally:
            sys.settrace(before)
        return lines
