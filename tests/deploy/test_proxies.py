"""The files of docs/proxies.md work as they are: calls, streams, addresses, client certificates."""

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.audit.batches import RingLinker
from gatepost.audit.record import search
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditQuery
from gatepost.storage.backends import open_records
from tests.deploy.test_rolling_restarts import (
    PROXIES,
    SWITCHED_OFF,
    WITHIN_S,
    Deployment,
    authority,
    deployment,
    two_replicas,
)
from tests.support.client import ResourceClient, failure, modern_request, request, result

__all__ = ["authority", "deployment", "two_replicas"]  # fixtures

pytestmark = pytest.mark.slow

FORGED_ADDRESS = "203.0.113.9"
PROXY_ADDRESS = "127.0.0.2"
"""Where the client connects from; the proxy connects from 127.0.0.1."""


class Proxied:
    """A deployment and one proxy in front of it."""

    def __init__(self, deployment: Deployment, name: str, port: int) -> None:
        self.deployment, self.name, self.port = deployment, name, port
        self.client = deployment.client(port)

    @property
    def token(self) -> str:
        return self.deployment.tokens.token()


@pytest.fixture(scope="module", params=sorted(PROXIES))
def proxied(
    request: pytest.FixtureRequest,
    deployment: Deployment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Proxied]:
    """Yield the deployment behind each proxy in turn."""
    with deployment.behind(request.param, tmp_path_factory.mktemp(request.param)) as port:
        yield Proxied(deployment, request.param, port)


@contextmanager
def connected(client: ResourceClient, source: str = PROXY_ADDRESS) -> Iterator[ssl.SSLSocket]:
    """Open a TLS connection from that address."""
    assert client.tls is not None
    with (
        socket.create_connection(
            ("127.0.0.1", client.port), timeout=WITHIN_S, source_address=(source, 0)
        ) as plain,
        client.tls.wrap_socket(plain, server_hostname=client.host) as connection,
    ):
        yield connection


def raw_post(client: ResourceClient, token: str, fields: Any, body: bytes) -> bytes:
    """Return a whole request."""
    head = [
        ("Host", client.authority),
        ("Authorization", f"Bearer {token}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        *fields,
    ]
    return request("POST", client.path, head, body)


def test_a_call_through_the_proxy_is_answered(proxied: Proxied) -> None:
    """Without a token, the challenge has the public URL."""
    served = result(proxied.client.call(proxied.token, "whoami"))
    refused = proxied.client.call(None, "whoami")

    assert served["structuredContent"]["tenant"] == "acme"
    assert refused.status == 401
    assert f'resource_metadata="{proxied.client.metadata_url}"' in str(
        refused.field("www-authenticate")
    )


def test_a_stream_arrives_event_by_event(proxied: Proxied) -> None:
    """The first event arrives while the tool is still waiting."""
    go = proxied.deployment.folder / f"go-{proxied.name}"
    params = {"name": "reports", "arguments": {"name": proxied.name}}
    fields, body = modern_request("tools/call", params, progress=1)
    with connected(proxied.client) as connection:
        connection.sendall(raw_post(proxied.client, proxied.token, fields, body))
        received = read_until(connection, b"notifications/progress")
        assert b"text/event-stream" in received
        assert b"reported" not in received
        go.touch()
        read_until(connection, b"reported")


def read_until(connection: ssl.SSLSocket, text: bytes) -> bytes:
    """Return the bytes up to and including that text."""
    received = b""
    while text not in received:
        chunk = connection.recv(65_536)
        assert chunk, received
        received += chunk
    return received


@pytest.mark.parametrize("name", ["X-Forwarded-For", "x-forwarded-for", "X_Forwarded_For"])
def test_a_forged_address_does_not_get_into_the_audit_record(proxied: Proxied, name: str) -> None:
    """The record has the address that the proxy saw."""
    text = "x" * (10 + len(proxied.name))
    params = {"name": "wrote", "arguments": {"text": text}}
    fields, body = modern_request("tools/call", params)
    forged = [
        (name, FORGED_ADDRESS),
        ("Forwarded", f"for={FORGED_ADDRESS}"),
        ("X-Real-IP", FORGED_ADDRESS),
    ]
    sent = raw_post(
        proxied.client, proxied.token, [*fields, *forged, ("Connection", "close")], body
    )
    with connected(proxied.client) as connection:
        connection.sendall(sent)
        answer = b""
        while chunk := connection.recv(65_536):
            answer += chunk

    if b" 200 " in answer.partition(b"\r\n")[0]:
        assert addresses(proxied.deployment)[0] == PROXY_ADDRESS
    else:
        assert name == "X_Forwarded_For", answer  # Envoy refuses such names
    assert FORGED_ADDRESS not in addresses(proxied.deployment)


def addresses(deployment: Deployment) -> list[str]:
    """Return the addresses in the newest audit records, the newest first."""

    async def read() -> list[str]:
        records = await open_records(f"sqlite:///{deployment.folder}/gatepost.db")
        ring = KeyRing.load(f"file:{deployment.folder}/keyring.json")
        audit_store = records.open_audit(RingLinker(ring))
        try:
            read_records = await search(audit_store, "acme", AuditQuery())
            return [record.caller.peer for record in read_records if record.caller]
        finally:
            await records.aclose()

    return asyncio.run(read())


def test_a_forged_x_forwarded_proto_is_overwritten(proxied: Proxied) -> None:
    """A client that sends `http` over TLS is served as an https request."""
    fields = [("X-Forwarded-Proto", "http")]

    assert proxied.client.call(proxied.token, "whoami", fields=fields).status == 200


def test_gatepost_and_not_the_proxy_limits_the_size_of_a_body(proxied: Proxied) -> None:
    """The proxy passes on every body that Gatepost accepts."""
    fits = proxied.client.call(proxied.token, "wrote", {"text": "x" * 3_900_000})
    assert result(fits)["content"][0]["text"] == "3900000"

    try:
        larger = proxied.client.call(proxied.token, "wrote", {"text": "x" * 4_050_000})
    except OSError:
        # Envoy passes the answer on and closes, while a slow client still sends.
        assert proxied.name == "envoy"
    else:
        assert larger.status == 413
        assert failure(larger)["data"]["error"] == "body_too_large"


def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    deployment: Deployment, tmp_path: Path, proxied: Proxied
) -> None:
    """The test enables lines that each file has as comments."""
    with deployment.behind(proxied.name, tmp_path, with_client_certificates) as port:
        trusted = deployment.client(port, certificate=deployment.agent)
        assert result(trusted.call(proxied.token, "whoami"))["structuredContent"]["tenant"]

        stranger = deployment.client(port)
        try:
            status = stranger.call(proxied.token, "whoami").status
        except (ssl.SSLError, ConnectionError):
            status = 400  # TLS 1.3 tells a client after the handshake
        assert status == 400


def with_client_certificates(text: str) -> str:
    """Return the text of a file with its disabled lines for client certificates enabled."""
    changed = SWITCHED_OFF.sub(r"\1", text)
    if (lines := re.findall(r"^ +bind .*$", changed, re.MULTILINE)) and len(lines) == 2:
        changed = changed.replace(f"{lines[0]}\n", "")
    return changed
