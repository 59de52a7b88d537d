"""A tool that blocks the event loop, ignores its end, or raises what coroutines end with."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.http.deadlines import Deadlines
from gatepost.runtime import watchdog
from gatepost.tools.calls.tool_deadline import ToolDeadline
from tests.support.measuring import capture_logs, each, eventually
from tests.support.server import Server, issuer_settings, running_server

unblock, module_ended, undo_ended = threading.Event(), threading.Event(), threading.Event()
WITHIN_S = 20

pack = Pack("uninterruptible")


@pack.tool()
async def echoes(ctx: CallContext) -> str:
    """Answer at once."""
    return "here"


@pack.tool()
async def blocks(ctx: CallContext) -> str:
    """Wait on the event loop as if it were a thread."""
    unblock.wait(WITHIN_S)
    return "over"


@pack.tool()
async def blocks_apart(ctx: CallContext) -> str:
    """Block the event loop in a task of its own."""

    async def block() -> None:
        unblock.wait(WITHIN_S)

    await asyncio.create_task(block())
    return "over"


@pack.tool()
async def calls_a_blocking_tool(ctx: CallContext) -> str:
    """Call a tool that blocks the event loop."""
    await ctx.call("blocks", {})
    return "over"


@pack.tool()
async def blocks_after_a_call(ctx: CallContext) -> str:
    """Block the event loop after calling another tool."""
    await ctx.call("echoes", {})
    unblock.wait(WITHIN_S)
    return "over"


@pack.tool()
def waits_in_a_thread(ctx: CallContext) -> str:
    """Wait in a thread."""
    unblock.wait(WITHIN_S)
    return "over"


@pack.tool(timeout_s=0.1)
async def refuses(ctx: CallContext) -> str:
    """Take every cancellation for an error to be tried again."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.Event().wait()


async def refuse() -> None:
    """Go on until the tests are over."""
    while not module_ended.is_set():
        with contextlib.suppress(BaseException):
            await asyncio.Event().wait()


@pack.tool(timeout_s=0.1)
async def refuses_apart(ctx: CallContext) -> str:
    """Refuse to be cancelled in a task of its own."""
    await asyncio.create_task(refuse())
    return "over"


@pack.tool(timeout_s=0.1)
async def refuses_together(ctx: CallContext) -> str:
    """Refuse to be cancelled in several tasks."""
    await asyncio.gather(refuse(), refuse())
    return "over"


@pack.tool(timeout_s=0.1)
async def refuses_both(ctx: CallContext) -> str:
    """Refuse to be cancelled in a task of its own and then in the call."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.create_task(refuse())


@pack.tool(timeout_s=0.1)
async def undoes_apart(ctx: CallContext) -> str:
    """Undo in a task of its own what it has begun, as a tool should."""

    async def undo() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            undo_ended.set()

    await asyncio.create_task(undo())
    return "over"


@pack.tool(timeout_s=5)
async def awaits(ctx: CallContext) -> list[str]:
    """Await what ends, fails and is cancelled, in tasks of their own."""

    async def fail() -> str:
        await asyncio.sleep(0)
        raise KeyError

    results = [await asyncio.create_task(asyncio.sleep(0, "task"))]
    results += await asyncio.gather(asyncio.sleep(0, "one"), asyncio.sleep(0, "two"))
    cancelled = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(cancelled.cancel)
    for work in (asyncio.create_task(fail()), cancelled):
        try:
            await work
        except (KeyError, asyncio.CancelledError) as error:
            results.append(type(error).__name__)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.create_task(asyncio.sleep(60))
        results.append("never")
    return results


@pack.tool()
async def raises_at_once(ctx: CallContext) -> str:
    """Raise what Python throws coroutines away with."""
    raise GeneratorExit


@pack.tool()
async def raises_later(ctx: CallContext) -> str:
    """Raise after a wait."""
    await asyncio.sleep(0)
    raise GeneratorExit


@pack.tool()
def raises_in_a_thread(ctx: CallContext) -> str:
    """Raise in a thread."""
    raise GeneratorExit


pytestmark = pytest.mark.usefixtures("working_directory")


@pytest.fixture(scope="module")
def logged() -> Iterator[list[Any]]:
    """Yield the log events of the server."""
    with capture_logs() as events:
        yield events


@pytest.fixture(scope="module")
def server(idp: Any, logged: list[Any]) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watchdog, "EVERY_S", 0.02)
        patch.setattr(ToolDeadline, "abandon_s", 0.05)
        # Some tools never end, so the stop waits for as long as it may.
        patch.setattr("tests.support.server.Deadlines", lambda drain_s: Deadlines(drain_s=0.5))
        load = [__name__]  # by its name: a file would be loaded a second time
        with running_server(
            idp, [issuer_settings(idp)], tools={"load": load}, tenancy={"create_on_first_use": True}
        ) as running:
            yield running
            module_ended.set()


def call(server: Server, tool: str, *, key: str = "", progress: bool = False) -> dict[str, Any]:
    """Return the result of a call."""
    fields = [("Idempotency-Key", key)] if key else []
    meta = {"_meta": {"progressToken": "p"}} if progress else {}
    params = {"name": tool, "arguments": {}, **meta}
    answer = server.client.ask(server.token(), "tools/call", params, fields=fields)
    body = answer.body.partition(b"data: ")[2] if progress and b"data: " in answer.body else None
    result: dict[str, Any] = json.loads(body or answer.body)["result"]
    return result


def events(logged: list[Any], name: str) -> list[Any]:
    """Return the log entries of that event."""
    return [entry for entry in logged if entry["event"] == name]


@contextmanager
def running_call(server: Server, tool: str, key: str = "") -> Iterator[None]:
    """Run a call until the block ends."""
    caller = threading.Thread(target=call, args=(server, tool), kwargs={"key": key})
    caller.start()
    try:
        yield
    finally:
        unblock.set()
        caller.join(20)
        assert not caller.is_alive()


@pytest.mark.parametrize(
    ("tool", "key", "named"),
    [
        ("blocks", "", "blocks"),
        ("blocks", "key-0", "blocks"),
        ("blocks_apart", "", ""),
        ("calls_a_blocking_tool", "", "blocks"),
        ("blocks_after_a_call", "key-3", "blocks_after_a_call"),
    ],
)
def test_a_blocked_event_loop_is_logged_during_the_block(
    server: Server, logged: list[Any], tool: str, key: str, named: str
) -> None:
    """The line names the tool, its request and the code; of a task that a tool began, the code."""
    logged.clear()
    unblock.clear()
    with running_call(server, tool, key):
        eventually(lambda: events(logged, "loop_blocked"), within=15)

    (line,) = events(logged, "loop_blocked")
    assert line["tool"] == named
    assert bool(line["request_id"]) == bool(named)
    assert line["where"].startswith("threading.")
    assert line["where"].count(":") == 1
    assert line["for_s"] >= 1


def test_a_tool_in_a_thread_blocks_no_other_call(server: Server, logged: list[Any]) -> None:
    """Other calls are answered while it runs."""
    logged.clear()
    unblock.clear()
    with running_call(server, "waits_in_a_thread"):
        for _ in range(3):
            assert not call(server, "echoes")["isError"]

    assert events(logged, "loop_blocked") == []


@each("key", ["", "key-1"])
@each("progress", [False, True])
@each("tool", ["refuses", "refuses_apart", "refuses_together", "refuses_both"])
def test_a_tool_that_ignores_its_end_is_abandoned(
    server: Server, logged: list[Any], tool: str, key: str, progress: bool
) -> None:
    """The caller gets the timeout, and the log names the tool."""
    logged.clear()
    result = call(server, tool, key=key and f"{key}-{progress}", progress=progress)

    assert result["isError"]
    assert "did not finish within 0.1 seconds" in result["content"][0]["text"]
    assert [line["tool"] for line in events(logged, "tool_abandoned")] == [tool]


def test_a_tool_is_awaited_while_its_task_cleans_up(server: Server, logged: list[Any]) -> None:
    """It is not abandoned, and its caller gets the timeout after the clean-up."""
    logged.clear()
    result = call(server, "undoes_apart")

    assert undo_ended.is_set()
    assert "did not finish within 0.1 seconds" in result["content"][0]["text"]
    assert events(logged, "tool_abandoned") == []


@pytest.mark.parametrize("progress", [False, True])
def test_a_tool_can_await_its_own_tasks(server: Server, progress: bool) -> None:
    """It sees their results, errors and cancellations."""
    result = call(server, "awaits", progress=progress)

    results = ["task", "one", "two", "KeyError", "CancelledError"]
    assert result["structuredContent"]["result"] == results


@pytest.mark.parametrize("key", ["", "key-2"])
@pytest.mark.parametrize("tool", ["raises_at_once", "raises_later", "raises_in_a_thread"])
def test_a_generator_exit_of_a_tool_is_its_failure(server: Server, tool: str, key: str) -> None:
    """It was once taken for the end of the request, so that the caller got no answer."""
    result = call(server, tool, key=key)

    assert result["isError"]
    assert result["content"][0]["text"].startswith("The tool failed unexpectedly. Reference: ")
