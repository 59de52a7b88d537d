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
from tests.support.client import RawAnswer, exchange, modern, request
from tests.support.connections import HOST, RecordedEdge, ask
from tests.support.measuring import each, steps

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"record_call"}}'
INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}'
)
META = (
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{}}'
)


def post(server: AttackedServer, body: bytes, *fields: tuple[str, str]) -> RawAnswer:
    """A message of the older revisions with a good token."""
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
    """A 2026-07-28 call of *tool* with a good token and exactly this body."""
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
    """A session from before the suspension still opens; a batch must meet the check as well."""
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
def test_a_field_behind_the_body_is_no_header(server: AttackedServer, field: str) -> None:
    """What a proxy checks or strips in a head must not come in by the trailer (RFC 9110 6.5.1)."""
    fields, body = modern("tools/call", {"name": "record_call", "arguments": {}})
    fields += [("Host", server.client.authority), ("Content-Type", "application/json")]
    fields += [("Authorization", f"Bearer {server.tokens().token()}"), ("Connection", "close")]
    late = next(f"{name}: {value!s}" for name, value in fields if name == field)
    head = [pair for pair in fields if pair[0] != field] + [("Transfer-Encoding", "chunked")]
    chunked = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(body), body, late.encode())

    with server.nothing_runs():
        answer = exchange(server.client.port, request("POST", server.client.path, head, chunked))

    assert answer.status == (401 if field == "Authorization" else 400)


def test_fields_behind_the_body_fill_no_memory(server: AttackedServer) -> None:
    """They count neither as head nor as body, and a value without end was gathered whole."""
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


async def test_names_of_headers_that_clients_invent_are_not_kept() -> None:
    """Four thousand names of a hundred kilobytes, before any token was looked at, are no cache."""
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
    """J-01: a client that can make a server answer 500 can fill its log with tracebacks."""
    answer = post(server, body)

    assert (answer.status, code_of(answer)) == (400, jsonrpc.PARSE_ERROR)
    assert json.loads(answer.body)["id"] is None


def test_what_is_no_message_in_a_batch_is_refused_beside_the_others(server: AttackedServer) -> None:
    """JSON-RPC 2.0 section 6: an error for each, and the good ones are served."""
    answer = post(server, b'[1,[],null,"a",{},' + CALL + b"]", session_of(server))

    assert answer.status == 200
    *refused, served = json.loads(answer.body)
    assert [error["error"]["code"] for error in refused] == [jsonrpc.INVALID_REQUEST] * 5
    assert served["result"]["content"]


@pytest.mark.parametrize("number", ["1e999", "9" * 4000])
def test_arguments_that_two_parsers_read_differently_pass_no_routing_header(
    server: AttackedServer, number: str
) -> None:
    """A proxy routed by the header: unread arguments must not leave it unchecked (H-10)."""
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
def test_nesting_is_bounded_whatever_strings_hold(depth: int, filler: str) -> None:
    """Depth is counted without a parser, so brackets in strings must not count."""
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
def test_the_largest_body_does_not_delay_other_callers(body: bytes) -> None:
    """4 MB took a second of the only loop there is: no step in Python may be taken per token."""

    def read() -> None:
        with contextlib.suppress(jsonrpc.JsonRpcError):
            jsonrpc.read(body)

    assert 0 < steps(read) < len(body) / 20
