"""The program of a stdio server: what it may use, how requests share it, and how it ends."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.upstreams.connection import (
    ConnectionFailure,
    RequestOptions,
    UpstreamConnection,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.transport import stdio_connection
from gatepost.upstreams.transport.stderr_log import LINES_PER_PERIOD, StderrLog
from gatepost.upstreams.upstream_server import StdioProgram
from tests.support.connections import UPSTREAM_SECRET, ConnectingProcess
from tests.support.measuring import capture_logs, is_alive
from tests.upstreams.transport.test_http_requests import (
    failure_of,
    messages_of,
    result_of,
    wait_until,
)

PROGRAM = str(Path(__file__).with_name("stdio_program.py"))


def program_that(*behaviour: str, **more: Any) -> StdioProgram:
    """Return a program that has these behaviours (`stdio_program.py`)."""
    return StdioProgram(
        command=sys.executable,
        args=("-I", PROGRAM, msgspec.json.encode(behaviour).decode()),
        reads=(PROGRAM,),
        **more,
    )


@pytest.fixture
async def process() -> AsyncIterator[ConnectingProcess]:
    connecting = ConnectingProcess()
    yield connecting
    await connecting.aclose()


async def tool_answer(connection: UpstreamConnection, name: str, **arguments: Any) -> Any:
    """Return the answer of the program's tool."""
    call_params = {"name": name, "arguments": arguments}
    return json.loads((await result_of(connection, params=call_params))["content"][0]["text"])


@pytest.mark.parametrize("behaviour", ["modern", "session", "dies early"])
async def test_the_era_is_found_out_over_pipes(process: ConnectingProcess, behaviour: str) -> None:
    """This works for a program that exits on a request before the handshake, too."""
    description = await process.stdio(program_that(behaviour)).describe()

    assert description.era == ("modern" if behaviour == "modern" else "session")


async def test_a_program_starts_at_first_use_and_ends_when_idle(process: ConnectingProcess) -> None:
    """The next use starts another one, at once."""
    connection = process.stdio(program_that(idle_s=0.2))
    first = await tool_answer(connection, "pid")
    await wait_until(lambda: not is_alive(first))

    assert await tool_answer(connection, "pid") != first


async def test_a_program_ends_with_its_child_processes(process: ConnectingProcess) -> None:
    """Children that ignore the signal or have left the process group end, too."""
    connection = process.stdio(program_that("ignores SIGTERM"))
    pids = [await tool_answer(connection, "pid"), *(await tool_answer(connection, "children"))]
    assert all(map(is_alive, pids))
    await process.connections.forget("s")

    await wait_until(lambda: not any(map(is_alive, pids)))


async def test_a_crash_fails_all_requests_and_the_next_use_restarts_the_program(
    process: ConnectingProcess,
) -> None:
    """The outcome of those that ran is unknown; they are not sent again."""
    connection = process.stdio(program_that())
    first = await tool_answer(connection, "pid")
    silent = asyncio.create_task(failure_of_call(connection, "silence"))
    crash = await failure_of_call(connection, "crash")

    assert (crash.reason, (await silent).reason) == ("outcome_unknown", "outcome_unknown")
    assert await tool_answer(connection, "pid") != first


async def failure_of_call(connection: UpstreamConnection, name: str) -> ConnectionFailure:
    with pytest.raises(ConnectionFailure) as failed:
        await messages_of(connection, params={"name": name, "arguments": {}})
    return failed.value


async def test_a_program_that_never_starts_is_retried_only_after_a_pause(
    process: ConnectingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile requests fail at once, and say how long."""
    connection = process.stdio(program_that("never starts"))
    assert (await failure_of(connection)).reason == "unreachable"
    assert (await failure_of(connection)).retry_after_s == 5
    pause = await failure_of(connection)
    assert (pause.reason, "after a pause" in pause.message) == ("unreachable", True)
    assert 0 < (pause.retry_after_s or 0) <= stdio_connection.FIRST_PAUSE_S


async def test_concurrent_requests_share_the_pipe(process: ConnectingProcess) -> None:
    """Answers come in any order, and a slow one does not delay others."""
    connection = process.stdio(program_that())
    slow = asyncio.create_task(tool_answer(connection, "slow"))
    others = await asyncio.gather(*(tool_answer(connection, f"n{number}") for number in range(20)))

    assert others == [f"n{number}" for number in range(20)]
    assert not slow.done()
    assert await slow == "slow"


async def test_each_tenant_or_each_person_has_a_process(process: ConnectingProcess) -> None:
    """The setting `per` decides which."""
    shared, own = program_that(per="tenant"), program_that(per="person")
    people = [("alice",), ("bob",), ("alice",)]
    together = [await tool_answer(process.stdio(shared, person), "pid") for person in people]
    apart = [await tool_answer(process.stdio(own, person, id="own"), "pid") for person in people]
    other = await tool_answer(process.stdio(shared, id="t", tenant="globex"), "pid")

    assert len(set(together)) == 1
    assert apart[0] == apart[2] != apart[1]
    assert other not in together


async def test_a_program_gets_only_the_configured_environment(
    process: ConnectingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may name secrets of its own tenant; the server's variables are left out."""
    monkeypatch.setenv("GATEPOST_KEYS__RING", "hidden")
    program = program_that(env={"TOKEN": "secret:GITHUB", "MODE": "plain"})
    environment_seen = await tool_answer(process.stdio(program), "environment")
    assert (environment_seen["TOKEN"], environment_seen["MODE"]) == (UPSTREAM_SECRET, "plain")
    assert "hidden" not in str(environment_seen)
    usual = {"HOME", "LANG", "MODE", "PATH", "TMPDIR", "TOKEN"}
    assert environment_seen.keys() - {"LC_CTYPE"} == usual

    failure = await failure_of(process.stdio(program, id="t", tenant="globex"))
    assert (failure.reason, "GITHUB" in failure.message) == ("denied", True)


async def test_a_program_has_no_network_unless_allowed(process: ConnectingProcess) -> None:
    """Neither TCP nor UDP leaves the sandbox."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        env = {"PORT": str(listening.getsockname()[1])}
        closed = await tool_answer(process.stdio(program_that(env=env)), "reach")
        opened = await tool_answer(
            process.stdio(program_that(env=env, network=True), id="open"), "reach"
        )

    assert closed == ["PermissionError", "PermissionError"]
    assert opened == ["done", "done"]


async def test_a_program_reads_and_runs_only_allowed_paths(
    process: ConnectingProcess, tmp_path: Path
) -> None:
    """These are its own folders and those of the system."""
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    (tmp_path / "tool").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "tool").chmod(0o755)
    connection = process.stdio(program_that())
    other = process.stdio(with_readable(program_that(), tmp_path), id="other")

    assert await tool_answer(connection, "read", path=str(tmp_path / "secret")) == "PermissionError"
    assert await tool_answer(connection, "read", path="/etc/shadow") == "PermissionError"
    assert await tool_answer(other, "read", path=str(tmp_path / "secret")) == "done"
    assert await tool_answer(other, "run", argv=[str(tmp_path / "tool")]) == "PermissionError"


def with_readable(program: StdioProgram, folder: Path) -> StdioProgram:
    return StdioProgram(
        command=program.command, args=program.args, reads=(*program.reads, str(folder))
    )


async def test_the_memory_of_a_program_is_bounded(process: ConnectingProcess) -> None:
    """An allocation beyond the limit fails in the program."""
    connection = process.stdio(program_that(memory_bytes=200_000_000))

    assert await tool_answer(connection, "memory") == "MemoryError"


async def test_stray_output_is_skipped(process: ConnectingProcess) -> None:
    """Lines that are no JSON are skipped, too; a message beyond the limit fails its request."""
    connection = process.stdio(program_that())

    assert await tool_answer(connection, "print") == "printed"
    large = {"name": "large", "arguments": {}}
    with pytest.raises(ConnectionFailure) as failed:
        await messages_of(connection, params=large, max_bytes=1_000_000)
    assert failed.value.reason == "invalid"
    assert await tool_answer(connection, "echo") == "echo"


async def test_a_client_request_is_accepted_only_during_a_single_request(
    process: ConnectingProcess,
) -> None:
    """With several running requests the wrong person could be asked."""
    connection = process.stdio(program_that())
    call = {"name": "ask", "arguments": {}}
    async with connection.exchange("tools/call", call, RequestOptions()) as exchange:
        messages = exchange.messages()
        input_request = await anext(messages)
        assert isinstance(input_request, UpstreamRequest)
        await exchange.respond(input_request.id, {"result": {"action": "accept"}})
        last = await anext(messages)
    assert isinstance(last, UpstreamResult)
    assert "accept" in str(last.value)

    silent = asyncio.create_task(
        messages_of(connection, params={"name": "silence", "arguments": {}})
    )
    await tool_answer(connection, "echo")
    assert (await tool_answer(connection, "ask"))["code"] == -32601
    silent.cancel()
    await asyncio.wait([silent])


async def test_changes_of_a_program_are_followed_while_it_runs(process: ConnectingProcess) -> None:
    """The stream of changes ends with the program."""
    connection = process.stdio(program_that())
    async with connection.notifications() as changes:
        await tool_answer(connection, "change")
        assert (await anext(changes)).method == "notifications/tools/list_changed"
        await failure_of_call(connection, "crash")
        with pytest.raises(ConnectionFailure):
            await anext(changes)


async def test_standard_error_is_logged_without_secrets(process: ConnectingProcess) -> None:
    """The event is `upstream_stderr`; this program writes there when a request is cancelled."""
    connection = process.stdio(program_that())
    with capture_logs() as logs:
        await tool_answer(connection, "log", line=f"token {UPSTREAM_SECRET}")
        async with connection.exchange(
            "tools/call", {"name": "silence", "arguments": {}}
        ) as exchange:
            waiting = asyncio.ensure_future(anext(exchange.messages()))
            await asyncio.wait([waiting], timeout=0.2)
            await exchange.cancel("nobody waits")
            await asyncio.wait([waiting])
            waiting.exception()
        await wait_until(lambda: any("cancelled" in str(event.get("line")) for event in logs))
    lines = [event["line"] for event in logs if event["event"] == "upstream_stderr"]

    assert "token [secret]" in lines


def test_the_log_of_standard_error_is_bounded() -> None:
    """The number and length of lines have limits; omitted lines are counted."""
    now = [0.0]
    logged = StderrLog("crm", "acme", lambda tenant, text: text, lambda: now[0])
    with capture_logs() as logs:
        logged.take(b"y" * 20_000 + b"\n" + (b"x" * 5_000 + b"\n") * (LINES_PER_PERIOD + 10))
        now[0] = 11.0
        logged.take(b"again\n")

    lines = [event["line"] for event in logs if event["event"] == "upstream_stderr"]
    assert len(lines) == LINES_PER_PERIOD + 1
    assert {len(line) for line in lines} == {1_000, 5}
    (dropped,) = [event for event in logs if event["event"] == "upstream_stderr_dropped"]
    assert dropped["lines"] == 11


async def test_a_missing_program_is_unreachable(process: ConnectingProcess) -> None:
    """The sentence names the server and no path."""
    failure = await failure_of(process.stdio(StdioProgram(command="/nowhere/server")))

    assert (failure.reason, "/nowhere" in failure.message) == ("unreachable", False)
