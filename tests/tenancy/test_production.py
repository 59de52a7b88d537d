"""Production: nothing is answered in the clear, and issuers are found as a company finds them."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.secrets.keyring import create
from tests.support import issuers as f
from tests.support.client import WELL_KNOWN, RawAnswer, ResourceClient, challenge_of
from tests.support.commands import Gatepost, run, running, toml
from tests.support.issuers import Idp, TokenFactory, rsa_key
from tests.support.processes import free_port
from tests.support.proxies import CertificateAuthority, ConnectProxy, connect_proxy

ID, HOST = "id.company.test", "mcp.company.test"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def idp(authority: CertificateAuthority) -> Iterator[Idp]:
    """Yield the issuer https://id.company.test, whose certificate the company signed."""
    certificate, key = authority.certify(ID)
    with Idp(f"https://{ID}", ssl_certfile=certificate, ssl_keyfile=key) as idp:
        idp.issuer("main", [f.jwk(rsa_key())])
        yield idp


@pytest.fixture(scope="module")
def outbound_proxy(idp: Idp) -> Iterator[ConnectProxy]:
    with connect_proxy(idp.port) as proxy:
        yield proxy


class Production:
    """A running production server, and the door to it."""

    def __init__(self, process: Gatepost, client: ResourceClient, idp: Idp) -> None:
        self.process, self.client = process, client
        self.token = TokenFactory(idp.issuer("main"), client.resource).token()

    def answers(self, *fields: tuple[str, str]) -> list[RawAnswer]:
        """Return the answers to a call, a bare request and the metadata with these extra fields."""
        return [
            self.client.call(self.token, "whoami", fields=fields),
            self.client.call(None, fields=fields),
            self.client.send("GET", f"/mcp{WELL_KNOWN}", fields),
        ]


def settings(
    port: int,
    authority: CertificateAuthority,
    idp: Idp,
    outbound_proxy: ConnectProxy,
    **listen: Any,
) -> dict[str, Any]:
    return {
        "resource": f"https://{HOST}:{port}/mcp",
        "listen": {"port": port, **listen},
        "keys": {"ring": "file:keyring.json"},
        "network": {"ca_bundle": str(authority.bundle), "proxy": outbound_proxy.url},
        "issuers": [{"issuer": idp.issuer("main"), "tenant": {"value": "acme"}}],
        "tools": {"packs": ["demo"]},
    }


@contextmanager
def serving(
    folder: Path, tree: dict[str, Any], idp: Idp, tls: ssl.SSLContext | None = None
) -> Iterator[Production]:
    """Run `gatepost serve` with these settings."""
    create(folder / "keyring.json")
    write(folder, tree)
    with running("serve", cwd=folder) as process:
        yield Production(process, ResourceClient(tree["resource"], tls=tls), idp)


def write(folder: Path, tree: dict[str, Any]) -> None:
    lines = [f"{name} = {toml(value)}" for name, value in tree.items()]
    (folder / "gatepost.toml").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def tls_server(
    authority: CertificateAuthority,
    idp: Idp,
    outbound_proxy: ConnectProxy,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Production]:
    """Yield a server that speaks TLS itself."""
    certificate, key = authority.certify(HOST)
    listen = {"tls_certificate": certificate, "tls_key": key}
    tree = settings(free_port(), authority, idp, outbound_proxy, **listen)
    context = ssl.create_default_context(cafile=str(authority.bundle))
    with serving(tmp_path_factory.mktemp("secure"), tree, idp, context) as server:
        yield server


@pytest.fixture(scope="module")
def server_behind_proxy(
    authority: CertificateAuthority,
    idp: Idp,
    outbound_proxy: ConnectProxy,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Production]:
    """Yield a server behind a proxy on this machine that ends TLS."""
    tree = settings(free_port(), authority, idp, outbound_proxy, trusted_proxies=["127.0.0.1/32"])
    with serving(tmp_path_factory.mktemp("behind"), tree, idp) as server:
        yield server


@pytest.mark.requirement("O7", "A-15")
def test_a_token_of_a_real_issuer_is_accepted_over_tls(
    tls_server: Production, outbound_proxy: ConnectProxy
) -> None:
    """The whole way of production: our TLS, the company's CA, the company's proxy, its issuer."""
    called, bare, document = tls_server.answers()

    assert (called.status, bare.status, document.status) == (200, 401, 200)
    assert f'"{tls_server.client.metadata_url}"' in challenge_of(bare)
    assert json.loads(document.body)["authorization_servers"] == [f"https://{ID}/main"]
    assert f"CONNECT {ID}:443" in outbound_proxy.asked


@pytest.mark.requirement("O7")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_accepted(
    tls_server: Production, authority: CertificateAuthority, version: ssl.TLSVersion
) -> None:
    """1.2 and 1.3 are spoken."""
    context = ssl.create_default_context(cafile=str(authority.bundle))
    context.minimum_version = context.maximum_version = version

    assert (
        ResourceClient(tls_server.client.resource, tls=context).send("GET", "/health").status == 200
    )


@pytest.mark.requirement("O7")
def test_tls_1_1_is_refused(tls_server: Production, authority: CertificateAuthority) -> None:
    """The server hangs up on a client that offers 1.1, and serves it once it offers 1.2."""
    context = ssl.create_default_context(cafile=str(authority.bundle))
    # Else the client's own library would refuse before the server could.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        limit(context, ssl.TLSVersion.TLSv1_1)
    client = ResourceClient(tls_server.client.resource, tls=context)

    with pytest.raises(ssl.SSLError) as refusal:
        client.send("GET", "/health")
    limit(context, ssl.TLSVersion.TLSv1_2)

    # uvloop closes without waiting for the alert to be read.
    assert refusal.value.reason in {"TLSV1_ALERT_PROTOCOL_VERSION", "UNEXPECTED_EOF_WHILE_READING"}
    assert client.send("GET", "/health").status == 200


def limit(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    """Speak this version only, whichever was spoken before."""
    # Never a minimum above the maximum, whichever way this goes.
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = version
    context.minimum_version = version


@pytest.mark.requirement("O7")
def test_plain_http_gets_no_answer_from_a_tls_port(tls_server: Production) -> None:
    """No answer says what listens there."""
    with socket.create_connection(("127.0.0.1", tls_server.client.port), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            answer = connection.recv(4096)
        except ConnectionResetError:
            answer = b""

    assert not answer.startswith(b"HTTP/")


@pytest.mark.requirement("O7")
def test_a_trusted_proxy_vouches_for_https(server_behind_proxy: Production) -> None:
    """The proxy ends TLS and says so in a header."""
    assert [
        answer.status for answer in server_behind_proxy.answers(("X-Forwarded-Proto", "https"))
    ] == [
        200,
        401,
        200,
    ]


@pytest.mark.requirement("O7")
@pytest.mark.parametrize(
    "fields",
    [[], [("X-Forwarded-Proto", "http")], [("X-Forwarded-Proto", "https, http")],
     [("X-Forwarded-Proto", "https"), ("X-Forwarded-Proto", "http")],
     [("Forwarded", "proto=https")], [("X-Forwarded-Proto", "wss")],
     [("X-Forwarded-Ssl", "on")], [("X_Forwarded_Proto", "https")]],
)  # fmt: skip
def test_without_the_proxys_header_the_connection_counts_as_plain(
    server_behind_proxy: Production, fields: list[tuple[str, str]]
) -> None:
    """A token sent over plain HTTP is refused, and so is a request for the metadata."""
    answers = server_behind_proxy.answers(*fields)

    assert {answer.status for answer in answers} == {400}
    assert all(b"https_required" in answer.body for answer in answers)
    assert all(b"X-Forwarded-Proto: https" in answer.body for answer in answers)
    assert all(b"listen.trusted_proxies" in answer.body for answer in answers)
    assert server_behind_proxy.token.rsplit(".", 1)[-1] not in server_behind_proxy.process.output


@pytest.mark.requirement("O7", "W14")
def test_an_untrusted_client_cannot_vouch_for_https(
    authority: CertificateAuthority, idp: Idp, outbound_proxy: ConnectProxy, tmp_path: Path
) -> None:
    """Gatepost takes the header from the configured proxies only."""
    tree = settings(free_port(), authority, idp, outbound_proxy, trusted_proxies=["10.0.0.0/8"])
    with serving(tmp_path, tree, idp) as server:
        assert {answer.status for answer in server.answers(("X-Forwarded-Proto", "https"))} == {400}


@pytest.mark.requirement("O3", "O7")
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("host", [None, "10.1.2.3:8000"])
def test_a_probe_is_answered_over_plain_http(
    server_behind_proxy: Production, method: str, host: str | None
) -> None:
    """Orchestrators ask the pod's own address, without TLS and without a token."""
    client = ResourceClient(server_behind_proxy.client.resource)
    client.authority = host or client.authority
    answer = client.send(method, "/health")

    assert answer.status == 200
    assert answer.field("content-type") == "application/json"
    if method == "GET":
        document = json.loads(answer.body)
        assert document["status"] == "ok"
        assert document.keys() == {"status", "version"}
        assert isinstance(document["version"], str)


@pytest.mark.requirement("O7")
def test_production_does_not_start_without_tls(
    authority: CertificateAuthority, idp: Idp, outbound_proxy: ConnectProxy, tmp_path: Path
) -> None:
    """`check` and `serve` both refuse, with a sentence."""
    create(tmp_path / "keyring.json")
    write(tmp_path, settings(free_port(), authority, idp, outbound_proxy))
    for command in ("check", "serve"):
        process = run(command, cwd=tmp_path)
        try:
            assert process.process.wait(20) == 1
            process.stop()
            assert "config.E008" in process.output
        finally:
            process.kill()
