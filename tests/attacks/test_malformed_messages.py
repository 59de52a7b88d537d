"""Requests, batches, headers and bodies that are no valid MCP messages."""

import contextlib
import json
import socket
import time

import pytest

from gatepost.mcp import jsonrpc
from gatepost.mcp.sessions.session import McpSessions
from gatepost.secrets.keyring import KeyRing
from gatepost_authz.caller import TenantContext
from gatepost_authz.headers import LONGEST_REMEMBERED
from tests.attacks.conftest import AttackedServer, serving
from tests.support.client import RawAnswer, exchange, modern_request, request
from tests.support.connections import HOST, RecordedEdge, ask
from tests.support.measuring import count_lines, each

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"record_call"}}'
INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}'
)
META = (
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{}}'
)


def post(server: AttackedServer, body: bytes, *fields: tuple[str, str]) -> RawAnswer:
    """Post a message of the older revisions with a good token."""
    head = [
        ("Host", server.client.authority),
        ("Authorization", f"Bearer {server.tokens().token()}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        *fields,
    ]
    return exchange(server.client.port, request("POST", server.client.path, head, body))


def modern_call(
    server: AttackedServer, message: bytes, *fields: tuple[str, str], tool: str
) -> RawAnswer:
    """Send a 2026-07-28 call of *tool* with a good token and exactly this body."""
    token = ("Authorization", f"Bearer {server.tokens().token()}")
    return server.raw([token, *fields], body=message, tool=tool)


def session_of(server: AttackedServer) -> tuple[str, str]:
    identity = post(server, INITIALIZE).field("mcp-session-id")
    assert identity
    return ("Mcp-Session-Id", identity)


def code_of(answer: RawAnswer) -> int:
    code: int = json.loads(answer.body)["error"]["code"]
    return code


def test_a_suspended_tenant_cannot_call_in_a_batch(server: AttackedServer) -> None:
    """A session from before the suspension is still open, so each call of a batch is checked."""
    keyring = KeyRing.ephemeral()
    with serving(server.idp, "h11", keyring=keyring, tenancy={"suspended": ["acme"]}) as closed:
        caller = TenantContext(
            tenant_id="acme",
            issuer=server.idp.issuer("main"),
            subject="alice",
            subject_kind="user",
            client_id="client-1",
            resource=closed.client.resource,
            expires_at=int(time.time()) + 300,
        )
        params = b'{"protocolVersion":"2025-03-26"}'
        _, identity = McpSessions(keyring).start(params, caller)

        with closed.nothing_runs():
            response = post(closed, CALL, ("Mcp-Session-Id", identity))
            many = post(closed, b"[" + CALL + b"]", ("Mcp-Session-Id", identity))

    assert [code_of(response), code_of(many)] == [jsonrpc.TENANT_SUSPENDED] * 2


@pytest.mark.parametrize("field", ["Authorization", "Mcp-Name"])
def test_trailer_fields_are_not_used_as_headers(server: AttackedServer, field: str) -> None:
    """A trailer would bypass what a proxy checks or strips in the head (RFC 9110 6.5.1)."""
    fields, body = modern_request("tools/call", {"name": "record_call", "arguments": {}})
    fields += [("Host", server.client.authority), ("Content-Type", "application/json")]
    fields += [("Authorization", f"Bearer {server.tokens().token()}"), ("Connection", "close")]
    late = next(f"{name}: {value!s}" for name, value in fields if name == field)
    head = [pair for pair in fields if pair[0] != field] + [("Transfer-Encoding", "chunked")]
    chunked = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(body), body, late.encode())

    with server.nothing_runs():
        answer = exchange(server.client.port, request("POST", server.client.path, head, chunked))

    assert answer.status == (401 if field == "Authorization" else 400)


def test_endless_trailer_fields_end_the_connection(server: AttackedServer) -> None:
    """The size limits of head and body do not cover trailers, so they have their own."""
    head = [("Host", server.client.authority), ("Content-Type", "application/json")]
    head += [
        ("Authorization", f"Bearer {server.tokens().token()}"),
        ("Transfer-Encoding", "chunked"),
    ]
    sent = 0

    with socket.create_connection(("127.0.0.1", server.client.port), timeout=10) as connection:
        connection.sendall(request("POST", server.client.path, head, b"1\r\n{\r\n0\r\nX: "))
        with contextlib.suppress(ConnectionError):
            while sent < 20_000_000:
                connection.sendall(b"x" * 65_536)
                sent += 65_536

    assert sent < 20_000_000


async def test_long_header_names_from_clients_are_not_cached() -> None:
    """An unauthenticated client could fill the cache with long header names."""
    recorded = RecordedEdge()

    for number in range(10):
        name = b"%d-" % number + b"x" * 100_000
        assert (await ask(recorded.edge, headers=(HOST, (name, b"")))).status == 431

    names = recorded.checks._impersonates._verdicts
    assert all(len(name) <= LONGEST_REMEMBERED for name in names)


@each(
    "body",
    [
        b'{"jsonrpc":"2.0","id":"\xff","method":"tools/call"}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\xff",' + META + b"}}",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":'
        b'{"io.modelcontextprotocol/protocolVersion":"\xff"}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"\xff"}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"\xff"}]',
    ],
)
def test_a_body_that_is_not_utf_8_is_no_json(server: AttackedServer, body: bytes) -> None:
    """J-01: a 500 for such a body would let a client fill the log with tracebacks."""
    answer = post(server, body)

    assert (answer.status, code_of(answer)) == (400, jsonrpc.PARSE_ERROR)
    assert json.loads(answer.body)["id"] is None


def test_invalid_entries_of_a_batch_are_refused_and_the_others_are_served(
    server: AttackedServer,
) -> None:
    """JSON-RPC 2.0 section 6 requires an error for each invalid entry."""
    answer = post(server, b'[1,[],null,"a",{},' + CALL + b"]", session_of(server))

    assert answer.status == 200
    *refused, served = json.loads(answer.body)
    assert [error["error"]["code"] for error in refused] == [jsonrpc.INVALID_REQUEST] * 5
    assert served["result"]["content"]


@pytest.mark.parametrize("number", ["1e999", "9" * 4000])
def test_ambiguous_arguments_cannot_bypass_the_routing_header(
    server: AttackedServer, number: str
) -> None:
    """A proxy routes by the header, which must match the arguments (H-10)."""
    call = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"record_routed",'
        b'"arguments":{"region":"restricted","data":{"n":%b}},%b}}' % (number.encode(), META)
    )

    with server.nothing_runs():
        answer = modern_call(server, call, ("Mcp-Param-Region", "public"), tool="record_routed")

    assert answer.status == 400
    assert code_of(answer) in {jsonrpc.INVALID_PARAMS, jsonrpc.HEADER_MISMATCH}


@pytest.mark.parametrize("depth", [61, 62, 63, 64, 65, 66, 70])
@pytest.mark.parametrize("filler", ['"["', '"\\\\"', '"\\"{"', "[[],{}]"])
def test_brackets_in_strings_do_not_count_as_nesting(depth: int, filler: str) -> None:
    """The nesting limit is exact, although the depth is counted without a parser."""
    inside = depth - 2 - 2 * filler.startswith("[")
    body = '{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":'
    body += "[" * inside + filler + "]" * inside + "}}"

    try:
        jsonrpc.read(body.encode())
        accepted = True
    except jsonrpc.JsonRpcError:
        accepted = False

    assert accepted == (depth <= jsonrpc.NESTING)


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":['
        + (b"[" * 60 + b"]" * 60 + b",") * 33_000
        + b"[]]}",
        b"[" + b"1," * 1_900_000 + b"1]",
    ],
)
def test_reading_the_largest_body_takes_no_python_step_per_token(body: bytes) -> None:
    """A body of 4 MB blocked the event loop for a second."""

    def read() -> None:
        with contextlib.suppress(jsonrpc.JsonRpcError):
            jsonrpc.read(body)

    assert 0 < count_lines(read) < len(body) / 20
