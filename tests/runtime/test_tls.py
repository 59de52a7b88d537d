"""A server that terminates TLS itself, and what the check says of its certificate."""

import contextlib
import http.client
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gatepost.secrets.keyring import create
from tests.support.commands import completed, running

TLS_CONFIG = """
resource = "https://localhost:{port}/mcp"
listen = {{ port = {port}, tls_certificate = "certificate.pem", tls_key = "key.pem" }}
keys.ring = "file:keyring.json"
tools.packs = ["demo"]
issuers = [{{ issuer = "https://id.example.com", tenant = {{ value = "acme" }} }}]
"""


def self_signed(folder: Path, *, hours: float = 1) -> ssl.SSLContext:
    """Write a certificate for localhost and its key; a client's context that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=2))
        .not_valid_after(now + timedelta(hours=hours))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return ssl.create_default_context(cafile=folder / "certificate.pem")


def test_production_serves_tls_itself(tmp_path: Path) -> None:
    """With a certificate, Gatepost answers over TLS 1.2 or newer, without a proxy."""
    context = self_signed(tmp_path)
    create(tmp_path / "keyring.json")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "gatepost.toml").write_text(TLS_CONFIG.format(port=port))
    with running("serve", cwd=tmp_path):
        connection = http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
        with contextlib.closing(connection):
            connection.request("POST", "/mcp")
            answer = connection.getresponse()
            challenge = str(answer.getheader("WWW-Authenticate"))
            answer.read()

        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("localhost", port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            assert wrapped.version() == "TLSv1.2"

    assert answer.status == 401
    assert f'resource_metadata="https://localhost:{port}/mcp/' in challenge


@pytest.mark.parametrize(("hours", "problems"), [(1, 0), (-1, 1)])
def test_check_reports_an_expired_certificate(tmp_path: Path, hours: float, problems: int) -> None:
    """An operator who has forgotten to renew it learns that from the check and each reload."""
    self_signed(tmp_path, hours=hours)
    create(tmp_path / "keyring.json")
    (tmp_path / "gatepost.toml").write_text(TLS_CONFIG.format(port=8443))

    done = completed("check", cwd=tmp_path)

    assert done.code == 0
    assert done.err.count("warning config.W124 [listen.tls_certificate]") == problems


def test_check_accepts_every_certificate_that_the_server_can_use(tmp_path: Path) -> None:
    """OpenSSL reads this form, and the library that reads the dates does not."""
    self_signed(tmp_path, hours=-1)
    certificate = tmp_path / "certificate.pem"
    text = certificate.read_text()
    certificate.write_text(text.replace("CERTIFICATE-----", "TRUSTED CERTIFICATE-----"))
    create(tmp_path / "keyring.json")
    (tmp_path / "gatepost.toml").write_text(TLS_CONFIG.format(port=8443))

    done = completed("check", cwd=tmp_path)

    assert (done.code, "Traceback" in done.err) == (0, False)
