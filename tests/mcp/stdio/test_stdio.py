"""`gatepost stdio` as a process, in the words of every revision (P1)."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run
from tests.support.connections import (
    STDIO_CONFIG,
    WITHIN_S,
    StdioClient,
    answered_text,
    stdio_process,
)
from tests.support.endpoint import META
from tests.support.measuring import eventually
from tests.support.processes import python_environment

pytestmark = pytest.mark.requirement("P1")

ELICIT: dict[str, Any] = {"elicitation": {"form": {}}}


@pytest.fixture
def stdio_client(tmp_path: Path) -> Iterator[StdioClient]:
    """Yield a new process that must exit without an error when its client leaves."""
    with stdio_process(tmp_path) as stdio_client:
        yield stdio_client
        assert stdio_client.hang_up() == 0, stdio_client.output
        assert "Traceback" not in stdio_client.stderr


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
def test_a_session_of_each_older_revision(stdio_client: StdioClient, version: str) -> None:
    """Handshake, list, call, ping: one session per process, without any header."""
    opened = stdio_client.open(version)
    tools = stdio_client.of(stdio_client.say("tools/list", identity=1))["result"]["tools"]
    called = stdio_client.say(
        "tools/call", {"name": "echo", "arguments": {"text": "é"}}, identity=2
    )

    assert opened["protocolVersion"] == version
    assert {"echo", "chatter"} <= {tool["name"] for tool in tools}
    assert answered_text(stdio_client.of(called)) == "é"
    assert stdio_client.of(stdio_client.say("ping", identity=3))["result"] == {}
    again = stdio_client.say(
        "initialize", {"protocolVersion": version, "capabilities": {}}, identity=4
    )
    assert stdio_client.of(again)["error"]["code"] == -32600


def test_requests_of_the_newest_revision_need_no_handshake(stdio_client: StdioClient) -> None:
    """There are no headers to compare; the caller is the configured one."""
    result = stdio_client.of(stdio_client.modern("server/discover", identity="d"))["result"]
    who = stdio_client.of(stdio_client.call("whoami", identity="w"))["result"]["structuredContent"]

    assert result["supportedVersions"][0] == "2026-07-28"
    assert (who["tenant"], who["subject"], who["scopes"]) == ("acme", "alice", ["files:write"])
    assert (
        answered_text(stdio_client.of(stdio_client.call("route", identity="r", region="eu")))
        == "eu"
    )


def test_requests_of_older_revisions_need_no_handshake(stdio_client: StdioClient) -> None:
    """The printed requests, in one line each and without anything before them."""
    tools = stdio_client.of(stdio_client.say("tools/list", identity=1))["result"]["tools"]
    echo = {"name": "echo", "arguments": {"text": "é"}}
    called = stdio_client.of(stdio_client.say("tools/call", echo, identity=2))["result"]
    stdio_client.write_line('[{"jsonrpc":"2.0","id":3,"method":"ping"}]')
    result = stdio_client.of(stdio_client.say("tools/call", {"name": "ask_colour"}, identity=4))

    assert "echo" in {tool["name"] for tool in tools}
    assert (called["isError"], called["content"][0]["text"]) == (False, "é")
    assert result["result"]["isError"] is True
    eventually(
        lambda: [{"jsonrpc": "2.0", "id": 3, "result": {}}] in stdio_client.messages(),
        within=WITHIN_S,
    )


def test_ids_come_back_unchanged(stdio_client: StdioClient) -> None:
    """Strings and numbers, as they were sent."""
    for identity in (0, -7, 1.5, 1.0, 2**53 + 1, "", "x", 'é "quoted" \n', "7", 7):
        stdio_client.modern("server/discover", identity=identity)

        assert "result" in stdio_client.of(identity)


MALFORMED_LINES: list[tuple[str, int]] = [
    ("{", -32700),
    ("nonsense", -32700),
    ('{"jsonrpc":"2.0","id":1,"method":"ping"', -32700),
    ("\x00", -32700),
    ("[]", -32600),
    ("1", -32600),
    ('"text"', -32600),
    ("null", -32600),
    ('{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
    ('{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
    ('{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600),
    ('{"jsonrpc":"2.0","id":1}', -32600),
    ('{"jsonrpc":"2.0","id":1,"method":7}', -32600),
    ('{"jsonrpc":"2.0","id":1,"method":"ping","params":' + "[" * 70 + "]" * 70 + "}", -32600),
    ("x" * 20_001, -32600),
]


def test_every_line_is_answered_and_the_connection_goes_on(stdio_client: StdioClient) -> None:
    """Each malformed line gets its error code, and the process keeps running."""
    for number, (line, code) in enumerate(MALFORMED_LINES):
        stdio_client.write_line(line)
        eventually(lambda count=number: len(stdio_client.messages()) > count, within=WITHIN_S)
        assert stdio_client.messages()[number]["error"]["code"] == code, line

    assert "result" in stdio_client.of(
        stdio_client.modern("server/discover", identity="still there")
    )


def test_the_five_errors_of_json_rpc(stdio_client: StdioClient) -> None:
    """-32700, -32600, -32601, -32602 and -32603."""
    stdio_client.write_line("{")
    stdio_client.write_line('{"jsonrpc":"2.0"}')
    eventually(lambda: len(stdio_client.messages()) == 2, within=WITHIN_S)
    codes = [message["error"]["code"] for message in stdio_client.messages()]
    for method, params in (
        ("no/method", {}),
        ("tools/call", {"name": "no_tool"}),
        ("tools/call", {"name": "break_protocol", "arguments": {}}),
    ):
        identity = stdio_client.modern(method, params, identity=f"{method} {params}")
        codes.append(stdio_client.of(identity)["error"]["code"])

    assert codes == [-32700, -32600, -32601, -32602, -32603]


def test_standard_output_has_only_protocol_messages(stdio_client: StdioClient) -> None:
    """Tools and their child processes print to standard error and read an empty input."""
    assert answered_text(stdio_client.of(stdio_client.call("chatter", identity=1))) == "read ''"

    heard = stdio_client.stderr
    for line in ("said by print", "said by the system", "said by a child", "tools says hello"):
        assert line in heard
    assert [message["id"] for message in stdio_client.messages()] == [1]


def test_notifications_and_stray_responses_are_never_answered(stdio_client: StdioClient) -> None:
    """Known, unknown and malformed ones (J-05)."""
    stdio_client.open()
    before = len(stdio_client.messages())
    for method in ("notifications/initialized", "notifications/nonsense", "tools/list"):
        stdio_client.say(method)
    stdio_client.say("notifications/cancelled", {"requestId": "nobody's"})
    stdio_client.say("notifications/cancelled", {"requestId": {}})
    stdio_client.write_line('{"jsonrpc":"2.0","id":"stray","result":{}}')
    stdio_client.write_line('{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}')
    stdio_client.write_line("")
    stdio_client.of(stdio_client.say("ping", identity="after"))

    assert len(stdio_client.messages()) == before + 1


def test_a_batch_is_answered_by_a_batch(stdio_client: StdioClient) -> None:
    """Only 2025-03-26 has batches."""
    stdio_client.open("2025-03-26")
    parts = [{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in (1, 2)]
    stdio_client.write_line(json.dumps([*parts, {"jsonrpc": "2.0", "method": "notifications/x"}]))
    eventually(lambda: len(stdio_client.messages()) == 2, within=WITHIN_S)

    assert [response["id"] for response in stdio_client.messages()[1]] == [1, 2]


def test_an_idempotency_key_in_meta_counts(stdio_client: StdioClient) -> None:
    """Stdio has no headers, so the key is in `_meta`."""
    for identity in (1, 2):
        stdio_client.modern(
            "tools/call",
            {"name": "count", "arguments": {}},
            identity=identity,
            **{"io.gatepost/idempotency-key": "k"},
        )
        assert answered_text(stdio_client.of(identity)) == "1"


def test_permissions_apply_over_stdio(stdio_client: StdioClient) -> None:
    """A scope that `[stdio]` does not grant is named in an error that the client can read."""
    error = stdio_client.of(stdio_client.call("guarded", identity=1))["error"]

    assert (error["code"], error["data"]["scopes"]) == (-31002, ["more"])


STOPPED_TEXT = "the wait was stopped"


def test_a_signal_lets_calls_finish(tmp_path: Path) -> None:
    """SIGTERM: the answer goes out, and the exit code is 0."""
    with stdio_process(tmp_path) as stdio_client:
        stdio_client.of(stdio_client.modern("server/discover", identity=0))
        stdio_client.call("wait", identity=1, seconds=1)
        stdio_client.of(stdio_client.modern("server/discover", identity=2))
        stdio_client.process.send_signal(signal.SIGTERM)

        assert answered_text(stdio_client.of(1)) == "waited"
        assert stdio_client.process.wait(WITHIN_S) == 0


def test_the_end_of_input_lets_calls_finish(tmp_path: Path) -> None:
    """A script may write its requests and close the pipe, even without a last line end."""
    with stdio_process(tmp_path) as stdio_client:
        stdio_client.call("wait", identity=1, seconds=0.5)
        assert stdio_client.process.stdin is not None
        stdio_client.process.stdin.write('{"jsonrpc":"2.0","id":2,"method":"ping"}')

        assert stdio_client.hang_up() == 0
        assert answered_text(stdio_client.of(1)) == "waited"
        assert stdio_client.of(2)["result"] == {}


def test_a_signal_after_the_end_of_input_stops_the_process_at_once(tmp_path: Path) -> None:
    """The closed pipe alone would wait for running calls."""
    with stdio_process(tmp_path, drain_s=100) as stdio_client:
        stdio_client.call("wait", identity=1, seconds=50)
        stdio_client.of(stdio_client.modern("server/discover", identity=2))
        assert stdio_client.process.stdin is not None
        stdio_client.process.stdin.close()
        stdio_client.process.send_signal(signal.SIGTERM)

        assert stdio_client.process.wait(WITHIN_S) == 0
        eventually(lambda: STOPPED_TEXT in stdio_client.stderr, within=WITHIN_S)


def test_a_call_that_exceeds_the_drain_time_is_stopped(tmp_path: Path) -> None:
    """`listen.drain_s` bounds the time after the end of input."""
    with stdio_process(tmp_path, drain_s=1) as stdio_client:
        stdio_client.call("wait", identity=1, seconds=50)
        stdio_client.of(stdio_client.modern("server/discover", identity=2))

        assert stdio_client.hang_up() == 0
        eventually(lambda: STOPPED_TEXT in stdio_client.stderr, within=WITHIN_S)


def test_a_client_that_stops_reading_ends_the_process(tmp_path: Path) -> None:
    """The next answer finds the output closed; the process ends without a traceback."""
    with stdio_process(tmp_path) as stdio_client:
        stdio_client.hang_up()  # another process, of this test's own, with the same configuration
        reading, writing = os.pipe()
        with subprocess.Popen(
            stdio_client.command,
            stdin=subprocess.PIPE,
            stdout=writing,
            stderr=subprocess.PIPE,
            env=python_environment(),
            cwd=tmp_path,
        ) as process:
            os.close(writing)
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"{\n")
            process.stdin.flush()
            assert b"-32700" in os.read(reading, 1000)
            os.close(reading)
            process.stdin.write(b"{\n")
            process.stdin.flush()

            assert process.wait(WITHIN_S) == 0
            assert b"Traceback" not in process.stderr.read()


REFUSED_CONFIGS = [
    ('tenant = "acme"\n', "", "config.E045"),
    ('subject = "alice"\n', "", "config.E045"),
    ('tenant = "acme"', 'tenant = "Acme!"', "config.E046"),
    ('[stdio]\ntenant = "acme"\nsubject = "alice"\nscopes = ["files:write"]\n', "", "config.E045"),
]


@pytest.mark.parametrize(("before", "after", "problem"), REFUSED_CONFIGS)
def test_a_server_without_a_configured_caller_does_not_start(
    tmp_path: Path, before: str, after: str, problem: str
) -> None:
    """It needs a tenant and a subject."""
    with stdio_process(tmp_path, STDIO_CONFIG.replace(before, after)) as stdio_client:
        assert stdio_client.process.wait(WITHIN_S) == 1
        assert problem in stdio_client.stderr
        assert stdio_client.stdout == ""


def test_check_reports_an_incomplete_caller(tmp_path: Path) -> None:
    """An incomplete `[stdio]` caller is an error in every mode; a missing one is not."""
    half = STDIO_CONFIG.replace('subject = "alice"\n', "").replace("load = [{kit}]\n", "")
    (tmp_path / "gatepost.toml").write_text(half.replace("{drain_s}", "1"))
    checked = run("check", "--config", "gatepost.toml", cwd=tmp_path)
    checked.process.wait(WITHIN_S)
    checked.wait_for("config.E045")
    checked.kill()


def test_the_id_of_a_running_request_can_be_reused(stdio_client: StdioClient) -> None:
    """The server does not forbid it: each request is answered."""
    stdio_client.call("wait", identity=1, seconds=0.2)
    stdio_client.call("wait", identity=1, seconds=0.2)
    eventually(lambda: len(stdio_client.messages()) == 2, within=WITHIN_S)

    assert [message["id"] for message in stdio_client.messages()] == [1, 1]


def test_meta_of_both_eras_may_come_in_one_session(stdio_client: StdioClient) -> None:
    """A request that names a version in `_meta` is handled on its own within a session."""
    stdio_client.open()
    tools = stdio_client.of(stdio_client.modern("tools/list", identity=1))["result"]
    other = stdio_client.of(stdio_client.say("tools/list", identity=2))["result"]
    unserved = stdio_client.say(
        "ping", {}, identity=3, meta={META + "protocolVersion": "2030-01-01"}
    )

    assert tools["resultType"] == "complete"
    assert "resultType" not in other
    assert stdio_client.of(unserved)["error"]["code"] == -32022
