"""Work that may be stopped while it waits, and bodies that never come."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from gatepost.execution.interruption import DeadlinePassed, Interruptible, Stop
from gatepost.http.body import Gone
from gatepost.mcp.body import read_body
from gatepost.mcp.endpoint import EndpointLimits
from gatepost.mcp.jsonrpc import JsonRpcError
from gatepost.tools.calls.tool_deadline import ToolDeadline
from gatepost_authz.middleware import CALLER
from tests.support.endpoint import EndpointClient, a_caller


class CountingCall(Interruptible[str]):
    """Counts what is asked of it."""

    stopped = DeadlinePassed

    def __init__(self, work: Awaitable[str]) -> None:
        self._work = work.__await__()
        self._stop = None
        self.calls: list[str] = []

    def begin(self, stop: Stop) -> None:
        self.calls.append("begin")
        self.stop = stop

    def end(self) -> None:
        self.calls.append("end")


async def at_once() -> str:
    return "done"


async def fails_at_once() -> str:
    raise KeyError


async def twice() -> str:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return "done"


async def fails_later() -> str:
    await asyncio.sleep(0)
    raise KeyError


async def for_ever() -> str:
    await asyncio.Event().wait()
    return "never"


async def stubborn() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "would not stop"
    return "never"


async def test_work_that_never_waits_needs_no_supervision() -> None:
    """Most work is such, and costs nothing more."""
    work = CountingCall(at_once())

    assert await work == "done"
    assert work.calls == []
    with pytest.raises(KeyError):
        await CountingCall(fails_at_once())


async def test_work_that_waits_is_supervised_once() -> None:
    """Begun at the first wait, ended however it ends."""
    done, failed = CountingCall(twice()), CountingCall(fails_later())

    assert await done == "done"
    with pytest.raises(KeyError):
        await failed
    assert done.calls == failed.calls == ["begin", "end"]


async def test_a_stop_by_deadline_differs_from_a_cancellation() -> None:
    """Ours becomes an exception of its own; the task stays usable. Others' passes through."""
    work = CountingCall(for_ever())

    async def ours() -> str:
        asyncio.get_running_loop().call_soon(lambda: work.stop.pull())
        with pytest.raises(DeadlinePassed):
            await work
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return await twice()

    assert await asyncio.create_task(ours()) == "done"
    assert work.calls == ["begin", "end"]

    theirs = asyncio.create_task(ToolDeadline(60, 60, for_ever()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    theirs.cancel()
    with pytest.raises(asyncio.CancelledError):
        await theirs


async def test_a_deadline_and_a_cancellation_at_once_are_a_cancellation() -> None:
    """The task that cancels must see the cancellation."""
    work = CountingCall(for_ever())

    async def run() -> None:
        await work

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    work.stop.pull()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_is_stopped_at_its_deadline() -> None:
    """Work that refuses to stop keeps its result."""
    with pytest.raises(DeadlinePassed):
        await ToolDeadline(0.01, 60, for_ever())
    assert await ToolDeadline(0.01, 60, stubborn()) == "would not stop"
    assert await ToolDeadline(60, 60, twice()) == "done"


class ScriptedBody:
    """A client that sends these messages, then nothing."""

    def __init__(self, *chunks: bytes, ends: bool = True, hangs_up: bool = False) -> None:
        self.messages = [
            {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
        ]
        if ends:
            self.messages.append({"type": "http.request", "body": b""})
        if hangs_up:
            self.messages.append({"type": "http.disconnect"})

    async def __call__(self) -> dict[str, object]:
        if not self.messages:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return self.messages.pop(0)


async def test_a_body_may_come_in_pieces() -> None:
    """Its size counts across the pieces."""
    assert await read_body(a_caller(), ScriptedBody(b"ab", b"", b"cd"), 4, 60) == b"abcd"
    with pytest.raises(JsonRpcError) as refused:
        await read_body(a_caller(), ScriptedBody(b"ab", b"cde"), 4, 60)
    assert refused.value.status == 413


async def test_a_body_that_never_ends_is_given_up() -> None:
    """The whole body has one deadline."""
    client = EndpointClient(limits=EndpointLimits(body_timeout_s=0.02))
    scope = {"method": "POST", "path": "/mcp", "headers": [(b"content-type", b"application/json")]}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await client.endpoint({**scope, CALLER: client.caller}, ScriptedBody(b"{", ends=False), send)

    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"]["code"] == -32600


async def test_a_client_that_hangs_up_is_not_answered() -> None:
    """No client is left to read an answer."""
    with pytest.raises(Gone):
        await read_body(a_caller(), ScriptedBody(b"{", ends=False, hangs_up=True), 100, 60)


async def goes_on(stopped: list[str], times: int) -> str:
    """Take so many cancellations for an error to be tried again."""
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except BaseException as error:  # noqa: BLE001  # which is the point
            stopped.append(type(error).__name__)
    return "done"


class ShortDeadline(ToolDeadline[str]):
    """Leaves work unfinished that goes on for a moment after it was cancelled."""

    abandon_s = 0.01
    left = 0

    def abandoned(self) -> None:
        type(self).left += 1


@pytest.mark.parametrize(("times", "remaining_count"), [(1, 0), (2, 0), (3, 1), (100, 1)])
async def test_work_that_ignores_its_end_is_abandoned(times: int, remaining_count: int) -> None:
    """It is cancelled again after a while and then left; the awaiting task stays usable."""
    stopped: list[str] = []
    before = ShortDeadline.left

    if remaining_count:
        with pytest.raises(DeadlinePassed):
            await ShortDeadline(0.01, 60, goes_on(stopped, times))
    else:
        assert await ShortDeadline(0.01, 60, goes_on(stopped, times)) == "done"

    assert ShortDeadline.left - before == remaining_count
    assert stopped[:2] == ["CancelledError"] * min(times, 2)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
