"""The audit log names the address of the client, and only the server decides which one."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.audit.record import search
from gatepost.mcp.stdio import Stdio
from gatepost.storage.audit import AuditQuery
from tests.audit.conftest import AUDITED_TOOLS, AuditLog
from tests.audit.test_calls import AuditedServer
from tests.support.client import (
    CLIENT,
    Fields,
    RestClient,
    message,
    modern_request,
    read_answer,
    request,
    session_call,
)
from tests.support.endpoint import EndpointClient
from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.server import Server, issuer_settings, running_server

SOCKET, CLIENT_IPV4, CLIENT_IPV6 = "127.0.0.1", "203.0.113.9", "2001:db8::7"
WRITE_CALL: Any = ("write", {"text": "x"})


@contextmanager
def serving(folder: Path, **listen: Any) -> Iterator[AuditedServer]:
    url = f"sqlite:///{folder}/records.db"
    settings: dict[str, Any] = {
        "storage": {"database": url},
        "tools": {"load": [AUDITED_TOOLS]},
        "tenancy": {"create_on_first_use": True},
        "listen": listen,
    }
    with Idp() as idp, running_server(idp, [issuer_settings(idp)], **settings) as server:
        yield AuditedServer(server, url)


@pytest.fixture(scope="module")
def server_behind_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedServer]:
    """Serve behind a proxy on this machine."""
    with serving(tmp_path_factory.mktemp("behind"), trusted_proxies=[f"{SOCKET}/32"]) as audited:
        yield audited


@pytest.fixture(scope="module")
def server_without_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedServer]:
    """Serve without a trusted proxy."""
    with serving(tmp_path_factory.mktemp("alone")) as audited:
        yield audited


def forwarded_fields(*values: str) -> Fields:
    """Return the fields with which a proxy forwards an address."""
    return [("X-Forwarded-For", value) for value in values]


def call_in_session(server: Server, token: str, fields: Fields) -> object:
    session = [("Mcp-Session-Id", server.client.open(token))]
    return server.client.send(
        "POST", fields=[*session, *fields], body=session_call(*WRITE_CALL), token=token
    )


def with_progress(server: Server, token: str, fields: Fields) -> object:
    params = {"name": "write", "arguments": {"text": "x"}}
    own, body = modern_request("tools/call", params, progress=1)
    return server.client.send("POST", fields=[*own, *fields], body=body, token=token)


Way = Callable[[Server, str, Fields], object]
CALLS_BY_PROTOCOL: dict[str, Way] = {
    "MCP": lambda server, token, fields: server.client.call(token, *WRITE_CALL, fields=fields),
    "MCP, refused": lambda server, token, fields: server.client.call(token, "none", fields=fields),
    "MCP, scopes": lambda server, token, fields: server.client.call(token, "scoped", fields=fields),
    "MCP, as a stream": with_progress,
    "MCP, of a session": call_in_session,
    "MCP, a resource": lambda server, token, fields: server.client.ask(
        token, "resources/read", {"uri": "audited://log/monday"}, fields=fields
    ),
    "MCP, one that calls another": lambda server, token, fields: server.client.call(
        token, "both", fields=fields
    ),
    "REST": lambda server, token, fields: RestClient(server, token).call(*WRITE_CALL, *fields),
    "REST, refused": lambda server, token, fields: RestClient(server, token).call(
        "none", {}, *fields
    ),
    "REST, one that calls another": lambda server, token, fields: RestClient(server, token).call(
        "both", {}, *fields
    ),
    "REST, of another tenant": lambda server, token, fields: RestClient(server, token).call(
        *WRITE_CALL, ("X-Octopus-Tenant-Id", "globex"), *fields
    ),
}


def recorded_peers(audited: AuditedServer, tenant: str) -> list[str]:
    """Return the peers of all of a tenant's records, in their order."""
    callers = [record.caller for record in audited.records(tenant)]
    return ["unknown" if caller is None else caller.peer for caller in callers]


@pytest.mark.requirement("AU10")
@each("name", CALLS_BY_PROTOCOL)
def test_a_record_has_the_client_address_from_the_trusted_proxy(
    server_behind_proxy: AuditedServer, name: str
) -> None:
    """The records of nested calls have the same address."""
    tenant = f"w{[*CALLS_BY_PROTOCOL].index(name)}"
    CALLS_BY_PROTOCOL[name](
        server_behind_proxy.gatepost,
        server_behind_proxy.gatepost.token(org_id=tenant),
        forwarded_fields(f"192.0.2.1, {CLIENT_IPV4}"),
    )

    assert recorded_peers(server_behind_proxy, tenant) == [CLIENT_IPV4] * (
        2 if "another" in name and "tenant" not in name else 1
    )


ADDRESS_HEADERS = (
    "X-Forwarded-For",
    "X_Forwarded_For",
    "Forwarded",
    "X-Real-IP",
    "Client-IP",
    "True-Client-IP",
    "CF-Connecting-IP",
    "X-Client-IP",
    "X-Cluster-Client-IP",
    "X-Original-Forwarded-For",
)


@pytest.mark.requirement("AU10")
@each("name", CALLS_BY_PROTOCOL)
def test_address_headers_of_an_untrusted_client_are_not_recorded(
    server_without_proxy: AuditedServer, name: str
) -> None:
    """The record has the address of the connection's other end."""
    tenant = f"c{[*CALLS_BY_PROTOCOL].index(name)}"
    fields = [
        (header, f"for={CLIENT_IPV4}" if header == "Forwarded" else CLIENT_IPV4)
        for header in ADDRESS_HEADERS
    ]
    CALLS_BY_PROTOCOL[name](
        server_without_proxy.gatepost, server_without_proxy.gatepost.token(org_id=tenant), fields
    )
    records = server_without_proxy.records(tenant)

    assert records
    assert {record.caller.peer for record in records if record.caller} == {SOCKET}
    assert CLIENT_IPV4 not in repr(records)


HANDED_ON = {
    # what a proxy hands on, and what is on record of it
    "nothing": ([], SOCKET),
    "a word": (["unknown"], SOCKET),
    "markup": (["<script>alert(1)</script>"], SOCKET),
    "a zone": (["fe80::1%eth0"], SOCKET),
    "a text as a zone": (["::1%</code><script>"], SOCKET),
    "four numbers and one": (["203.0.113.9.9"], SOCKET),
    "too large a number": (["203.0.113.999"], SOCKET),
    "a number": (["3405803785"], SOCKET),
    "a network": ([f"{CLIENT_IPV4}/24"], SOCKET),
    "a quote": ([f'{CLIENT_IPV4}"'], SOCKET),
    "much of it": (["9" * 3000], SOCKET),
    "garbage by the proxy itself": ([f"{CLIENT_IPV4}, garbage"], SOCKET),
    "garbage by its caller": ([f"::1%garbage, {CLIENT_IPV4}"], CLIENT_IPV4),
    "an address of its caller's": ([f"192.0.2.1, {CLIENT_IPV4}"], CLIENT_IPV4),
    "an address in a field before": (["192.0.2.1", CLIENT_IPV4], CLIENT_IPV4),
    "a port": ([f"{CLIENT_IPV4}:4711"], CLIENT_IPV4),
    "IPv6": ([CLIENT_IPV6.upper()], CLIENT_IPV6),
    "IPv6 in brackets": ([f"[{CLIENT_IPV6}]:4711"], CLIENT_IPV6),
    "IPv4 in IPv6": ([f"::ffff:{CLIENT_IPV4}"], CLIENT_IPV4),
}


@pytest.mark.requirement("AU10")
@each("name", HANDED_ON)
def test_an_invalid_address_from_a_proxy_is_not_recorded(
    server_behind_proxy: AuditedServer, name: str
) -> None:
    """The record has the proxy's own address, and addresses have one canonical form."""
    values, on_record = HANDED_ON[name]
    tenant = f"g{[*HANDED_ON].index(name)}"
    token = server_behind_proxy.gatepost.token(org_id=tenant)
    server_behind_proxy.gatepost.client.call(token, *WRITE_CALL, fields=forwarded_fields(*values))
    RestClient(server_behind_proxy.gatepost, token).call(*WRITE_CALL, *forwarded_fields(*values))

    assert recorded_peers(server_behind_proxy, tenant) == [on_record] * 2


def mcp(server: Server, token: str, peer: str) -> bytes:
    own, body = modern_request("tools/call", {"name": "write", "arguments": {"text": "x"}})
    return raw_post(server, token, server.client.path, body, [*own, *forwarded_fields(peer)])


def rest(server: Server, token: str, peer: str) -> bytes:
    return raw_post(server, token, "/tool/write/call", b'{"text": "x"}', forwarded_fields(peer))


def raw_post(server: Server, token: str, path: str, body: bytes, fields: Fields) -> bytes:
    head = [
        ("Host", server.client.authority),
        ("Authorization", f"Bearer {token}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        *fields,
    ]
    return request("POST", path, head, body)


@pytest.mark.requirement("AU10")
@pytest.mark.parametrize("ask", [mcp, rest], ids=["MCP", "REST"])
def test_records_of_a_shared_proxy_connection_have_each_callers_address(
    server_behind_proxy: AuditedServer, ask: Callable[[Server, str, str], bytes]
) -> None:
    """The cache of request heads returns the address of exactly that head."""
    tenant = f"shared-{ask.__name__}"
    token = server_behind_proxy.gatepost.token(org_id=tenant)
    addresses = [CLIENT_IPV4] * 4 + [CLIENT_IPV6] * 4 + [CLIENT_IPV4, CLIENT_IPV6] * 2
    with socket.create_connection(
        (SOCKET, server_behind_proxy.gatepost.client.port), timeout=30
    ) as connection:
        for peer in addresses:
            connection.sendall(ask(server_behind_proxy.gatepost, token, peer))
            assert read_answer(connection).status == 200

    assert recorded_peers(server_behind_proxy, tenant) == addresses


async def test_a_call_over_stdio_is_recorded_without_an_address() -> None:
    """A stdio connection has no client address."""
    client = EndpointClient()
    audit_log = AuditLog(client.records)
    client.runner.recorder = audit_log.writer
    answered: asyncio.Queue[bytes] = asyncio.Queue()
    stdio = Stdio(client.endpoint, caller=client.caller, path="/mcp", write=answered.put)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": CLIENT}
    for line in (message("initialize", params), session_call("echo", {"text": "x"})):
        await stdio.take(line)
        answer = await asyncio.wait_for(answered.get(), 30)
    await stdio.stop()
    await audit_log.writer.aclose()
    (record,) = await search(audit_log.store, client.caller.tenant_id, AuditQuery())

    assert b'"result"' in answer
    assert record.caller is not None
    assert (record.outcome, record.caller.peer) == ("success", "")
