"""Answers that wait for what must be durable first: they leave with it, in order, or not at all."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from starlette.types import Message, Receive, Scope, Send

from gatepost.http.httptools_protocol import HttptoolsProtocol
from gatepost.storage.commit import CommitFailed, CommitFuture
from tests.support.connections import WITHIN_S, WireConnection, connected, serving

GET_REQUEST = b"GET %b HTTP/1.1\r\nhost: h\r\n\r\n"
LAST_REQUEST = b"GET %b HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"


class WaitingApp:
    """Answers with the path's own name; `/held…` waits for the commit, as the runner does."""

    def __init__(self) -> None:
        self.commit = CommitFuture()
        self.asked = asyncio.Semaphore(0)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        self.asked.release()
        status, body = 200, path.encode() + (b"." * 20_000 if path.endswith("large") else b"")
        if path.startswith("/held"):
            try:
                await self.commit
            except CommitFailed:
                status, body = 503, b"not on record: " + path.encode()
        fields = [] if path.endswith("chunked") else [(b"content-length", b"%d" % len(body))]
        start: Message = {"type": "http.response.start", "status": status, "headers": fields}
        await send(start)
        await send({"type": "http.response.body", "body": body})

    async def until_asked(self, times: int = 1) -> None:
        for _ in range(times):
            await asyncio.wait_for(self.asked.acquire(), WITHIN_S)


@pytest.fixture
def waiting_app() -> WaitingApp:
    return WaitingApp()


@pytest.fixture
async def wire(waiting_app: WaitingApp) -> AsyncIterator[WireConnection]:
    async with serving(waiting_app.app, HttptoolsProtocol) as port, connected(port) as wire:
        yield wire


async def is_silent(wire: WireConnection) -> bool:
    """Return whether no bytes have come so far."""
    try:
        await asyncio.wait_for(wire.reader.read(1), 0.05)
    except TimeoutError:
        return True
    return False


HELD_PATHS = [b"/held", b"/held/large", b"/held/chunked"]


@pytest.mark.parametrize("path", HELD_PATHS)
@pytest.mark.parametrize("request_", [GET_REQUEST, LAST_REQUEST], ids=["stays", "closes"])
async def test_an_answer_is_sent_once_its_commit_is_resolved(
    waiting_app: WaitingApp, wire: WireConnection, path: bytes, request_: bytes
) -> None:
    """No byte is sent before; the connection then serves the next request."""
    await wire.send(request_ % path)
    await waiting_app.until_asked()
    early = not await is_silent(wire)
    waiting_app.commit.resolve()
    answer = await wire.until(path)

    assert not early
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    if request_ is LAST_REQUEST:
        assert b"HTTP/1.1" not in await wire.rest()


@pytest.mark.parametrize("path", HELD_PATHS)
async def test_a_failed_commit_is_answered_with_503_instead_of_the_answer(
    waiting_app: WaitingApp, wire: WireConnection, path: bytes
) -> None:
    """The client must not act on a call without a record."""
    await wire.send(GET_REQUEST % path)
    await waiting_app.until_asked()
    waiting_app.commit.resolve("no disk")
    answer = await wire.until(b"not on record: " + path)

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"200" not in answer


async def test_answers_stay_in_the_order_of_their_requests(
    waiting_app: WaitingApp, wire: WireConnection
) -> None:
    """A pipelined request waits for the answer before it, even without a commit of its own."""
    await wire.send(GET_REQUEST % b"/held" + GET_REQUEST % b"/next" + LAST_REQUEST % b"/last")
    await waiting_app.until_asked()
    early = not await is_silent(wire)
    waiting_app.commit.resolve()
    answer = await wire.rest()

    assert not early
    places = [answer.index(b"\r\n\r\n" + path) for path in (b"/held", b"/next", b"/last")]
    assert places == sorted(places)


async def test_a_resolved_commit_does_not_delay_a_later_answer(
    waiting_app: WaitingApp, wire: WireConnection
) -> None:
    """A late call of the same batch is answered at once."""
    waiting_app.commit.resolve()
    await wire.send(LAST_REQUEST % b"/held")

    assert (await wire.rest()).endswith(b"/held")


async def test_no_answer_is_written_to_a_disconnected_client(waiting_app: WaitingApp) -> None:
    """Resolving the commit afterwards raises no error."""
    async with serving(waiting_app.app, HttptoolsProtocol) as port:
        async with connected(port) as gone:
            await gone.send(GET_REQUEST % b"/held")
            await waiting_app.until_asked()
        async with connected(port) as wire:
            await wire.send(LAST_REQUEST % b"/other")
            await wire.rest()
            waiting_app.commit.resolve()


async def test_a_stop_waits_for_an_answer_whose_commit_is_pending(waiting_app: WaitingApp) -> None:
    """The server treats it like any running request."""
    server = serving(waiting_app.app, HttptoolsProtocol)
    async with connected(await server.__aenter__()) as wire:
        await wire.send(GET_REQUEST % b"/held")
        await waiting_app.until_asked()
        asyncio.get_running_loop().call_later(0.1, lambda: waiting_app.commit.resolve())
        await server.__aexit__(None, None, None)

        assert (await wire.rest()).endswith(b"/held")


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("late", [True, False])
async def test_awaiting_a_commit_gives_its_outcome(committed: bool, late: bool) -> None:
    """The commit may be resolved before or after the wait begins."""
    commit = CommitFuture()
    settle = partial(commit.resolve, None if committed else "no disk")

    async def waits() -> None:
        await commit

    if late:
        settle()
    waiting = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    if not late:
        settle()
    done, _ = await asyncio.wait({waiting}, timeout=WITHIN_S)

    assert done
    assert (waiting.exception() is None) == committed
    if not committed:
        assert isinstance(waiting.exception(), CommitFailed)


async def test_a_cancelled_waiter_does_not_affect_other_waiters_of_a_commit() -> None:
    """The others continue in order when a client disconnects."""
    commit, heard = CommitFuture(), list[str]()

    async def waits(name: str) -> None:
        await commit
        heard.append(name)

    tasks = [asyncio.create_task(waits(name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait({tasks[1]}, timeout=WITHIN_S)
    commit.resolve()
    await asyncio.wait(tasks, timeout=WITHIN_S)

    assert heard == ["a", "c"]
    assert tasks[1].cancelled()
