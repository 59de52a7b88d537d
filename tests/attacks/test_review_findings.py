"""What an adversary found by reading and trying; each stays found."""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gatepost import CallContext
from gatepost.check.pack_loading import Toolbox, load
from gatepost.check.problems import problems
from gatepost.cli import doctor
from gatepost.config.settings import Config, Listen, ToolsSettings
from gatepost.dev.composition import IssuerHabits, dev_config, dev_issuer, forget_state, write_state
from gatepost.mcp import jsonrpc
from gatepost.mcp.sessions.session import McpSessions
from gatepost.secrets.keyring import KeyRing, KeyRingError, rotate
from gatepost.tools.pack import Pack
from gatepost_authz.caller import TenantContext
from gatepost_authz.config import Issuer, TenantRule
from gatepost_authz.errors import InvalidToken
from gatepost_authz.headers import LONGEST_REMEMBERED
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.tenant import tenant_of
from tests.attacks.conftest import AttackedServer, serving
from tests.http.conftest import HOST, Front, ask
from tests.support.client import RawAnswer, exchange, modern, request
from tests.support.measuring import each, steps

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"record_call"}}'
OPEN = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}'
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
    identity = post(server, OPEN).field("mcp-session-id")
    assert identity
    return ("Mcp-Session-Id", identity)


def code_of(answer: RawAnswer) -> int:
    code: int = json.loads(answer.body)["error"]["code"]
    return code


@pytest.mark.parametrize("realm", ["acme", "evil"])
@pytest.mark.parametrize("tenants", [{}, {"acme": "acme"}])
def test_one_issuer_of_a_template_cannot_claim_the_tenant_of_another(
    realm: str, tenants: dict[str, str]
) -> None:
    """Who runs a realm writes its claims: only the realm itself tells realms apart."""
    template = "https://sso.example/realms/{realm}"
    settings = Issuer(issuer=template, tenant=TenantRule(claim="org_id"), tenants=tenants)
    issuer = f"https://sso.example/realms/{realm}"
    found = IssuerRegistry([settings]).find(issuer)
    assert found is not None

    with pytest.raises(InvalidToken) as refused:
        tenant_of({"org_id": "acme"}, found[0].rules, issuer=issuer, captured=found[1])

    assert refused.value.reason == "tenant_not_exclusive"


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
            one = post(closed, CALL, ("Mcp-Session-Id", identity))
            many = post(closed, b"[" + CALL + b"]", ("Mcp-Session-Id", identity))

    assert [code_of(one), code_of(many)] == [jsonrpc.TENANT_SUSPENDED] * 2


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
    front = Front()

    for number in range(10):
        name = b"%d-" % number + b"x" * 100_000
        assert (await ask(front.edge, headers=(HOST, (name, b"")))).status == 431

    names = front.checks._impersonates._verdicts
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


@pytest.mark.parametrize("scopes", ["files", {"a b"}, {'a"'}, {"a\r\nX: y"}, {""}])
def test_a_tool_cannot_ask_for_what_no_challenge_can_name(scopes: Any) -> None:
    """It would be found out by the first caller who lacks it, as a 500."""
    pack = Pack("odd")

    with pytest.raises((TypeError, ValueError)):

        @pack.tool(scopes=scopes)
        async def odd(ctx: CallContext) -> None:
            """Never registered."""


@pytest.mark.parametrize(
    "source", ["import sys\nsys.exit(3)\n", "class Odd(Exception): ...\nraise Odd('no')\n"]
)
def test_a_tool_file_that_fails_in_its_own_way_is_a_problem_and_no_traceback(
    tmp_path: Path, source: str
) -> None:
    """Also `sys.exit()`, after which the command used to end without a word."""
    file = tmp_path / "tools.py"
    file.write_text(source)

    found = load(ToolsSettings(load=(str(file),))).problems

    assert [(one.id, one.setting) for one in found] == [("config.E011", "tools.load[0]")]


def test_an_origin_that_is_no_url_is_a_problem_and_no_traceback() -> None:
    """`gatepost check` says all problems, whatever is written in a setting."""
    listen = Listen(allowed_origins=("https://[",))
    config = Config(resource="https://mcp.example.com/mcp", listen=listen)

    found = problems(config, Toolbox((), ()))

    assert "listen.allowed_origins[0]" in [one.setting for one in found]


def test_a_token_that_no_header_can_carry_is_wrong_use_of_the_doctor() -> None:
    """A pasted typographic character ended in a traceback."""
    arguments = ["http://127.0.0.1:1/mcp", "--token", "\u00fc"]

    result = CliRunner().invoke(doctor.command, arguments)

    assert result.exit_code == 2
    assert "--token" in result.output


def test_a_damaged_key_ring_is_not_rotated_into_one_that_no_server_loads(tmp_path: Path) -> None:
    """The command said that the ring signs with a new key; the next start refused the ring."""
    ring = tmp_path / "keyring.json"
    ring.write_text('{"keys":[{"id":"a","secret":"zzzz","created":1}]}')
    ring.chmod(0o600)

    with pytest.raises(KeyRingError, match="damaged"):
        rotate(ring, keep=3)


def test_a_development_server_forgets_only_its_own_state(tmp_path: Path) -> None:
    """The first of two with one state directory took the second's with it when it ended."""
    config = dev_config(8000, tools=(), state=tmp_path)
    first, second = (dev_issuer(config, frozenset(), IssuerHabits()) for _ in range(2))
    path = write_state(tmp_path, config, first)
    write_state(tmp_path, config, second)

    forget_state(path, first)
    kept = path.exists()
    forget_state(path, second)

    assert (kept, path.exists()) == (True, False)
