"""A certificate is renewed while the server runs: it takes up the new one without a restart."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.conftest import WITHIN_S, Secure, secure
from tests.support.client import WELL_KNOWN
from tests.support.commands import REFUSED
from tests.support.issuers import Idp

pytestmark = pytest.mark.requirement("O7")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with Idp() as idp, secure(idp, tmp_path_factory.mktemp("secure")) as server:
        yield server


def shown(server: Secure, **versions: ssl.TLSVersion) -> bytes:
    """The certificate that a client gets to see; one that knows no name for the server, too."""
    seen = set()
    for name in ("localhost", None):
        tls = ssl.create_default_context(cafile=str(server.authority.bundle))
        tls.check_hostname = name is not None
        for limit, version in versions.items():
            setattr(tls, limit, version)
        with (
            socket.create_connection(("127.0.0.1", server.process.client.port), WITHIN_S) as plain,
            tls.wrap_socket(plain, server_hostname=name) as connection,
        ):
            seen.add(connection.getpeercert(binary_form=True) or b"")
    (one,) = seen
    return one


def test_a_renewed_certificate_is_shown_from_the_reload_on(server: Secure) -> None:
    """New connections get it in both TLS versions, open ones go on; so does the next renewal."""
    with server.kept() as kept:
        kept.warm()
        seen = [shown(server)]
        for _ in range(2):
            server.authority.certify("localhost")
            assert shown(server) == seen[-1], "it is taken up by a reload, and not half written"
            server.process.hang_up()
            seen.append(shown(server))
            assert shown(server, maximum_version=ssl.TLSVersion.TLSv1_2) == seen[-1]
        assert len(set(seen)) == 3
        assert kept.said() == "acme"


BROKEN = {
    "a key that does not fit": lambda folder, server: folder.write_bytes(other_key(server)),
    "no key": lambda folder, server: folder.unlink(),
    "half a key": lambda folder, server: folder.write_bytes(folder.read_bytes()[:60]),
}


def other_key(server: Secure) -> bytes:
    return Path(server.authority.certify("other")[1]).read_bytes()


@pytest.mark.parametrize("case", BROKEN)
def test_a_certificate_that_cannot_be_used_changes_nothing(server: Secure, case: str) -> None:
    """The reload is refused with a sentence, and the one before is shown still."""
    before, key = shown(server), Path(server.process.configured["listen"]["tls_key"])
    good = key.read_bytes()
    BROKEN[case](key, server)
    try:
        server.process.hang_up(REFUSED)
        assert shown(server) == before
        assert "config.E014" in server.process.process.output
        metadata = f"{server.process.client.path}{WELL_KNOWN}"
        server.process.client.tls = server.tls
        assert server.process.client.send("GET", metadata).status == 200
    finally:
        key.write_bytes(good)
        server.process.hang_up()
