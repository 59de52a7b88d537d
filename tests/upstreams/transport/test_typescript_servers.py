"""What servers of the TypeScript SDKs answer when a session or a revision is not theirs."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from gatepost.upstreams.connection import UpstreamError
from gatepost.upstreams.transport.era import refuses_session, refuses_version
from tests.support.connections import ConnectingProcess
from tests.support.measuring import each
from tests.support.processes import Process, free_port
from tests.support.programs import NODE, command, environment, install
from tests.upstreams.transport.test_http_requests import failure_of, result_of

STARTS_WITHIN_S = 60
ACT_REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "act"}}
ACCEPT_HEADER = {"accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Yield the URL where `session_servers.mjs` answers."""
    process = Process(command("session_servers.mjs"), env=environment())
    try:
        port = process.wait_for(r"port (\d+)", timeout_s=STARTS_WITHIN_S)[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()


@pytest.fixture
async def process(servers: str) -> AsyncIterator[ConnectingProcess]:
    connecting = ConnectingProcess(servers.removeprefix("http://"))
    yield connecting
    await connecting.aclose()


@pytest.mark.parametrize("sdk", ["v1", "v2"])
@pytest.mark.requirement("E4")
async def test_a_server_that_has_forgotten_its_sessions_gets_a_new_one(
    process: ConnectingProcess, servers: str, sdk: str
) -> None:
    """The request that found out fails and was not run; the next one opens a session."""
    connection = process.http(f"{servers}/{sdk}")
    await result_of(connection)
    httpx2.post(f"{servers}/restart").raise_for_status()

    assert (await failure_of(connection)).reason == "session_lost"
    assert (await result_of(connection))["content"][0]["text"] == "done"


@pytest.mark.requirement("E4")
async def test_a_server_made_after_the_examples_gets_a_new_session() -> None:
    """Such a server answers 400 instead of 404."""
    port = free_port()
    script_path = install() / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    program = [str(NODE), str(script_path), "streamableHttp"]
    process = ConnectingProcess(f"127.0.0.1:{port}")
    connection = process.http(f"http://127.0.0.1:{port}/mcp")
    echo = {"name": "echo", "arguments": {"message": "hello"}}
    try:
        for restarted in (False, True):
            server = Process(program, env=environment() | {"PORT": str(port)})
            try:
                server.wait_for(f"listening on port {port}", timeout_s=STARTS_WITHIN_S)
                if restarted:
                    assert (await failure_of(connection)).reason == "session_lost"
                assert "hello" in str(await result_of(connection, params=echo))
            finally:
                server.kill()
    finally:
        await process.aclose()


@pytest.mark.parametrize("sdk", ["v1", "v2"])
def test_a_revision_unknown_to_the_sdk_is_refused_before_the_call_runs(
    servers: str, sdk: str
) -> None:
    """The code is that of other errors, so the text decides."""
    headers = ACCEPT_HEADER | {"mcp-protocol-version": "2099-01-01"}
    reply = httpx2.post(f"{servers}/{sdk}/stateless", json=ACT_REQUEST, headers=headers)
    error = reply.json()["error"]
    refusal = UpstreamError(error["code"], error["message"])

    assert refuses_version(reply.status_code, refusal)
    assert not refuses_session(reply.status_code, refusal)


LOST_SESSION_ERRORS = [
    (-32000, "Bad Request: Server not initialized"),
    (-32000, "Bad Request: No valid session ID provided."),
    (-32600, "Bad Request: No valid session ID provided"),
    (-32000, "Invalid or missing session ID"),
    (-32600, "Invalid session ID"),
    (-32000, "Session not found"),
    (-32000, "Bad Request: No valid session ID provided for non-initialize request"),
    (-32000, "Bad Request: Invalid session ID provided"),
]


@each(("code", "message"), LOST_SESSION_ERRORS)
def test_a_lost_session_is_recognized(code: int, message: str) -> None:
    """The texts are those of the SDKs and of servers made after their examples."""
    assert refuses_session(400, UpstreamError(code, message))


OTHER_ERRORS = [
    (400, -32000, "Conflict: Only one SSE stream is allowed per session"),
    (400, -32000, "Bad Request: Mcp-Session-Id header is required"),
    (400, -32000, "The session of the user has no budget left"),
    (400, -32602, "Bad Request: No valid session ID provided"),
    (400, -32000, "Unknown session_id in the arguments"),
    (400, -32000, "The tool needs an unsupported protocol version of the printer"),
    (500, -32000, "Bad Request: No valid session ID provided"),
    (200, -32000, "Bad Request: Unsupported protocol version: 1"),
]


@each(("status", "code", "message"), OTHER_ERRORS)
def test_other_errors_end_no_session(status: int, code: int, message: str) -> None:
    """A tool's own error may have such words: it is the call's answer, and the session stays."""
    refusal = UpstreamError(code, message)

    assert not refuses_session(status, refusal)
    assert not refuses_version(status, refusal)
