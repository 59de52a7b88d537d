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
def talk(tmp_path: Path) -> Iterator[StdioClient]:
    """Yield a new process that must exit without an error when its client leaves."""
    with stdio_process(tmp_path) as talk:
        yield talk
        assert talk.hang_up() == 0, talk.output
        assert "Traceback" not in talk.stderr


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
def test_a_session_of_each_older_revision(talk: StdioClient, version: str) -> None:
    """Handshake, list, call, ping: one session per process, without any header."""
    opened = talk.open(version)
    tools = talk.of(talk.say("tools/list", identity=1))["result"]["tools"]
    called = talk.say("tools/call", {"name": "echo", "arguments": {"text": "é"}}, identity=2)

    assert opened["protocolVersion"] == version
    assert {"echo", "chatter"} <= {tool["name"] for tool in tools}
    assert answered_text(talk.of(called)) == "é"
    assert talk.of(talk.say("ping", identity=3))["result"] == {}
    again = talk.say("initialize", {"protocolVersion": version, "capabilities": {}}, identity=4)
    assert talk.of(again)["error"]["code"] == -32600


def test_requests_of_the_newest_revision_need_no_handshake(talk: StdioClient) -> None:
    """There are no headers to compare; the caller is the configured one."""
    result = talk.of(talk.modern("server/discover", identity="d"))["result"]
    who = talk.of(talk.call("whoami", identity="w"))["result"]["structuredContent"]

    assert result["supportedVersions"][0] == "2026-07-28"
    assert (who["tenant"], who["subject"], who["scopes"]) == ("acme", "alice", ["files:write"])
    assert answered_text(talk.of(talk.call("route", identity="r", region="eu"))) == "eu"


def test_requests_of_older_revisions_need_no_handshake(talk: StdioClient) -> None:
    """The printed requests, in one line each and without anything before them."""
    tools = talk.of(talk.say("tools/list", identity=1))["result"]["tools"]
    echo = {"name": "echo", "arguments": {"text": "é"}}
    called = talk.of(talk.say("tools/call", echo, identity=2))["result"]
    talk.write_line('[{"jsonrpc":"2.0","id":3,"method":"ping"}]')
    result = talk.of(talk.say("tools/call", {"name": "ask_colour"}, identity=4))

    assert "echo" in {tool["name"] for tool in tools}
    assert (called["isError"], called["content"][0]["text"]) == (False, "é")
    assert result["result"]["isError"] is True
    eventually(
        lambda: [{"jsonrpc": "2.0", "id": 3, "result": {}}] in talk.messages(), within=WITHIN_S
    )


def test_ids_come_back_unchanged(talk: StdioClient) -> None:
    """Strings and numbers, as they were sent."""
    for identity in (0, -7, 1.5, 1.0, 2**53 + 1, "", "x", 'é "quoted" \n', "7", 7):
        talk.modern("server/discover", identity=identity)

        assert "result" in talk.of(identity)


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


def test_every_line_is_answered_and_the_connection_goes_on(talk: StdioClient) -> None:
    """Each malformed line gets its error code, and the process keeps running."""
    for number, (line, code) in enumerate(MALFORMED_LINES):
        talk.write_line(line)
        eventually(lambda count=number: len(talk.messages()) > count, within=WITHIN_S)
        assert talk.messages()[number]["error"]["code"] == code, line

    assert "result" in talk.of(talk.modern("server/discover", identity="still there"))


def test_the_five_errors_of_json_rpc(talk: StdioClient) -> None:
    """-32700, -32600, -32601, -32602 and -32603."""
    talk.write_line("{")
    talk.write_line('{"jsonrpc":"2.0"}')
    eventually(lambda: len(talk.messages()) == 2, within=WITHIN_S)
    codes = [message["error"]["code"] for message in talk.messages()]
    for method, params in (
        ("no/method", {}),
        ("tools/call", {"name": "no_tool"}),
        ("tools/call", {"name": "break_protocol", "arguments": {}}),
    ):
        identity = talk.modern(method, params, identity=f"{method} {params}")
        codes.append(talk.of(identity)["error"]["code"])

    assert codes == [-32700, -32600, -32601, -32602, -32603]


def test_standard_output_has_only_protocol_messages(talk: StdioClient) -> None:
    """Tools and their child processes print to standard error and read an empty input."""
    assert answered_text(talk.of(talk.call("chatter", identity=1))) == "read ''"

    heard = talk.stderr
    for line in ("said by print", "said by the system", "said by a child", "tools says hello"):
        assert line in heard
    assert [message["id"] for message in talk.messages()] == [1]


def test_notifications_and_stray_responses_are_never_answered(talk: StdioClient) -> None:
    """Known, unknown and malformed ones (J-05)."""
    talk.open()
    before = len(talk.messages())
    for method in ("notifications/initialized", "notifications/nonsense", "tools/list"):
        talk.say(method)
    talk.say("notifications/cancelled", {"requestId": "nobody's"})
    talk.say("notifications/cancelled", {"requestId": {}})
    talk.write_line('{"jsonrpc":"2.0","id":"stray","result":{}}')
    talk.write_line('{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}')
    talk.write_line("")
    talk.of(talk.say("ping", identity="after"))

    assert len(talk.messages()) == before + 1


def test_a_batch_is_answered_by_a_batch(talk: StdioClient) -> None:
    """Only 2025-03-26 has batches."""
    talk.open("2025-03-26")
    parts = [{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in (1, 2)]
    talk.write_line(json.dumps([*parts, {"jsonrpc": "2.0", "method": "notifications/x"}]))
    eventually(lambda: len(talk.messages()) == 2, within=WITHIN_S)

    assert [response["id"] for response in talk.messages()[1]] == [1, 2]


def test_an_idempotency_key_in_meta_counts(talk: StdioClient) -> None:
    """Stdio has no headers, so the key is in `_meta`."""
    for identity in (1, 2):
        talk.modern(
            "tools/call",
            {"name": "count", "arguments": {}},
            identity=identity,
            **{"io.gatepost/idempotency-key": "k"},
        )
        assert answered_text(talk.of(identity)) == "1"


def test_permissions_apply_over_stdio(talk: StdioClient) -> None:
    """A scope that `[stdio]` does not grant is named in an error that the client can read."""
    error = talk.of(talk.call("guarded", identity=1))["error"]

    assert (error["code"], error["data"]["scopes"]) == (-31002, ["more"])


STOPPED_TEXT = "the wait was stopped"


def test_a_signal_lets_calls_finish(tmp_path: Path) -> None:
    """SIGTERM: the answer goes out, and the exit code is 0."""
    with stdio_process(tmp_path) as talk:
        talk.of(talk.modern("server/discover", identity=0))
        talk.call("wait", identity=1, seconds=1)
        talk.of(talk.modern("server/discover", identity=2))
        talk.process.send_signal(signal.SIGTERM)

        assert answered_text(talk.of(1)) == "waited"
        assert talk.process.wait(WITHIN_S) == 0


def test_the_end_of_input_lets_calls_finish(tmp_path: Path) -> None:
    """A script may write its requests and close the pipe, even without a last line end."""
    with stdio_process(tmp_path) as talk:
        talk.call("wait", identity=1, seconds=0.5)
        assert talk.process.stdin is not None
        talk.process.stdin.write('{"jsonrpc":"2.0","id":2,"method":"ping"}')

        assert talk.hang_up() == 0
        assert answered_text(talk.of(1)) == "waited"
        assert talk.of(2)["result"] == {}


def test_a_signal_after_the_end_of_input_stops_the_process_at_once(tmp_path: Path) -> None:
    """The closed pipe alone would wait for running calls."""
    with stdio_process(tmp_path, drain_s=100) as talk:
        talk.call("wait", identity=1, seconds=50)
        talk.of(talk.modern("server/discover", identity=2))
        assert talk.process.stdin is not None
        talk.process.stdin.close()
        talk.process.send_signal(signal.SIGTERM)

        assert talk.process.wait(WITHIN_S) == 0
        eventually(lambda: STOPPED_TEXT in talk.stderr, within=WITHIN_S)


def test_a_call_that_exceeds_the_drain_time_is_stopped(tmp_path: Path) -> None:
    """`listen.drain_s` bounds the time after the end of input."""
    with stdio_process(tmp_path, drain_s=1) as talk:
        talk.call("wait", identity=1, seconds=50)
        talk.of(talk.modern("server/discover", identity=2))

        assert talk.hang_up() == 0
        eventually(lambda: STOPPED_TEXT in talk.stderr, within=WITHIN_S)


def test_a_client_that_stops_reading_ends_the_process(tmp_path: Path) -> None:
    """The next answer finds the output closed; the process ends without a traceback."""
    with stdio_process(tmp_path) as talk:
        talk.hang_up()  # another process, of this test's own, with the same configuration
        reading, writing = os.pipe()
        with subprocess.Popen(
            talk.command,
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
    with stdio_process(tmp_path, STDIO_CONFIG.replace(before, after)) as talk:
        assert talk.process.wait(WITHIN_S) == 1
        assert problem in talk.stderr
        assert talk.stdout == ""


def test_check_reports_an_incomplete_caller(tmp_path: Path) -> None:
    """An incomplete `[stdio]` caller is an error in every mode; a missing one is not."""
    half = STDIO_CONFIG.replace('subject = "alice"\n', "").replace("load = [{kit}]\n", "")
    (tmp_path / "gatepost.toml").write_text(half.replace("{drain_s}", "1"))
    checked = run("check", "--config", "gatepost.toml", cwd=tmp_path)
    checked.process.wait(WITHIN_S)
    checked.wait_for("config.E045")
    checked.kill()


def test_the_id_of_a_running_request_can_be_reused(talk: StdioClient) -> None:
    """The server does not forbid it: each request is answered."""
    talk.call("wait", identity=1, seconds=0.2)
    talk.call("wait", identity=1, seconds=0.2)
    eventually(lambda: len(talk.messages()) == 2, within=WITHIN_S)

    assert [message["id"] for message in talk.messages()] == [1, 1]


def test_meta_of_both_eras_may_come_in_one_session(talk: StdioClient) -> None:
    """A request that names a version in `_meta` is handled on its own within a session."""
    talk.open()
    tools = talk.of(talk.modern("tools/list", identity=1))["result"]
    other = talk.of(talk.say("tools/list", identity=2))["result"]
    unserved = talk.say("ping", {}, identity=3, meta={META + "protocolVersion": "2030-01-01"})

    assert tools["resultType"] == "complete"
    assert "resultType" not in other
    assert talk.of(unserved)["error"]["code"] == -32022
