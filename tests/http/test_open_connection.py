"""What changes applies to the next request of an open connection: over TLS, for real."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.test_tls import PersistentConnection
from tests.support import issuers as f
from tests.support.client import WELL_KNOWN, RawAnswer, failure
from tests.support.commands import REFUSED_EVENT, ServerProcess, completed, server_process
from tests.support.connections import PAGE, WITHIN_S
from tests.support.issuers import Idp, TokenFactory, rsa_key, signer
from tests.support.measuring import each
from tests.support.processes import free_port
from tests.support.proxies import CertificateAuthority
from tests.support.server import Settings, issuer_settings

TOOLS = '''
"""A tool that says whose call it is."""

from gatepost import CallContext, Pack

pack = Pack("again")


@pack.tool(read_only=True)
async def again(ctx: CallContext, note: str = "") -> str:
    """Say whose call this is."""
    return f"{ctx.caller.tenant_id}"
'''


class Secure:
    """The server, and the connections to it."""

    def __init__(
        self, server: ServerProcess, authority: CertificateAuthority, usual: Settings
    ) -> None:
        self.process, self.authority, self._usual = server, authority, usual
        self.tls = ssl.create_default_context(cafile=str(authority.bundle))

    @contextmanager
    def kept(self, token: str = "", **fields: str) -> Iterator[PersistentConnection]:
        """Open a connection with the same head each time; *fields* join it, `_` written for `-`."""
        connection = PersistentConnection(
            self.process, self.tls, token or self.process.token(), **fields
        )
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def changed(self, changes: Mapping[str, Any]) -> Iterator[None]:
        """Put these tables in force by a reload until the block ends, and then the usual ones."""
        try:
            self.process.reload(**changes)
            yield
        finally:
            self.process.configured = dict(self._usual)
            self.process.reload()

    def order(self, *words: str) -> str:
        """Have an operator run a command of `gatepost`; what it says."""
        code, output, complaints = completed(*words, cwd=self.process.folder)
        assert code == 0, complaints
        return output


@contextmanager
def secure(idp: Idp, folder: Path) -> Iterator[Secure]:
    """Run `gatepost serve` with a certificate until the block ends."""
    authority = CertificateAuthority(folder)
    certificate, key = authority.certify("localhost")
    port = free_port()
    (folder / "again.py").write_text(TOOLS, encoding="utf-8")
    usual = {
        "resource": f"https://localhost:{port}/mcp",
        "listen": {
            "port": port,
            "drain_s": 10,
            "tls_certificate": certificate,
            "tls_key": key,
            "allowed_origins": [PAGE.decode()],
            "trusted_proxies": ["127.0.0.1/32"],
        },
        "tools": {"packs": ["demo"], "load": ["./again.py"]},
        "storage": {"database": "sqlite:///gatepost.db"},
    }
    with server_process(idp, folder, [main_issuer(idp), second_issuer(idp)], **usual) as server:
        yield Secure(server, authority, dict(server.configured))


def main_issuer(idp: Idp, **settings: Any) -> Settings:
    """Return the usual issuer, which allows no clock skew."""
    return issuer_settings(idp, **{"tenants": {"acme": "acme"}, "leeway_s": 0} | settings)


def second_issuer(idp: Idp, **settings: Any) -> Settings:
    """Return a second issuer, with tenants of its own."""
    return issuer_settings(idp, "second", **{"tenants": {"two": "two"}, "leeway_s": 0} | settings)


@pytest.fixture(scope="module")
def server(idp: Idp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with secure(idp, tmp_path_factory.mktemp("secure")) as server:
        yield server


def listen(server: Secure, **changes: Any) -> dict[str, Any]:
    return {"listen": server.process.configured["listen"] | changes}


def status_and_error(answer: RawAnswer) -> tuple[int, str | int]:
    """Return the status, and the challenge's error or the failure's code."""
    challenge = answer.field("www-authenticate") or ""
    error = challenge.partition('error="')[2].partition('"')[0]
    return answer.status, error or failure(answer)["code"]


Changes = Callable[[Secure], dict[str, Any]]
NO_LIMITS = {"failures_per_second": 0, "requests_per_second": 0}
CONFIG_CHANGES: dict[str, tuple[Changes, tuple[int, str | int]]] = {
    "no page may call any more": (lambda server: listen(server, allowed_origins=[]), (403, -32600)),
    "another page may call": (
        lambda server: listen(server, allowed_origins=["https://other.example.com"]),
        (403, -32600),
    ),
    "the issuer is disabled": (
        lambda server: {
            "issuers": [
                main_issuer(server.process.idp, enabled=False),
                second_issuer(server.process.idp),
            ],
        },
        (401, "invalid_token"),
    ),
    "there is another issuer": (
        lambda server: {"issuers": [second_issuer(server.process.idp)]},
        (401, "invalid_token"),
    ),
    "the organisation is no tenant any more": (
        lambda server: {"issuers": [main_issuer(server.process.idp, tenants={"globex": "globex"})]},
        (401, "invalid_token"),
    ),
    "tokens must be of another kind": (
        lambda server: {"issuers": [main_issuer(server.process.idp, algorithms=["ES256"])]},
        (401, "invalid_token"),
    ),
    "the resource has another name": (
        lambda server: {
            "resource": server.process.configured["resource"].replace("/mcp", "/mcp/v2"),
            "issuers": [main_issuer(server.process.idp)],
        },
        (401, "invalid_token"),
    ),
    "the server has another name": (
        lambda server: {"resource": "https://localhost:1/mcp"},
        (421, -32600),
    ),
    "the tenant is suspended": (
        lambda server: {"tenancy": {"create_on_first_use": False, "suspended": ["acme"]}},
        (200, -31001),
    ),
    "a scope is asked of all callers": (
        lambda server: {"scopes": {"baseline": ["mcp:use"]}},
        (403, "insufficient_scope"),
    ),
    "bodies must be smaller": (
        lambda server: {"limits": NO_LIMITS | {"max_body_bytes": 100}},
        (413, -32600),
    ),
    "heads must be smaller": (
        lambda server: {"limits": NO_LIMITS | {"max_header_bytes": 1024}},
        (431, -32600),
    ),
    "the tool is gone": (lambda server: {"tools": {"packs": ["demo"]}}, (400, -32602)),
}


@pytest.mark.requirement("P3", "N18")
@each("case", CONFIG_CHANGES)
def test_a_reload_applies_to_the_next_request_of_an_open_connection(
    server: Secure, case: str
) -> None:
    """The request is refused after one reload and served after the next."""
    changes, expected = CONFIG_CHANGES[case]
    with server.kept(x_fill="x" * 1024) as connection:
        connection.warm()
        with server.changed(changes(server)):
            assert status_and_error(connection.ask()) == expected
            assert status_and_error(connection.ask()) == expected
        assert connection.said() == "acme"


@pytest.mark.requirement("P3", "N18")
def test_a_changed_tenant_table_applies_to_an_open_connection(server: Secure) -> None:
    """The same bytes become a request of another tenant."""
    with server.kept() as connection:
        connection.warm()
        renamed = {"issuers": [main_issuer(server.process.idp, tenants={"acme": "renamed"})]}
        with server.changed(renamed):
            assert [connection.said(), connection.said()] == ["renamed", "renamed"]
        assert connection.said() == "acme"


@pytest.mark.requirement("P3", "N18")
def test_a_changed_tool_file_applies_to_an_open_connection(server: Secure) -> None:
    """The connection has called the old tool before."""
    path = server.process.folder / "again.py"
    text = path.read_text(encoding="utf-8")
    with server.kept() as connection:
        connection.warm()
        path.write_text(text.replace('return f"', 'return f"new '), encoding="utf-8")
        server.process.hang_up()
        assert connection.said() == "new acme"
        path.write_text(text, encoding="utf-8")
        server.process.hang_up()
        assert connection.said() == "acme"


@pytest.mark.requirement("P3", "N18")
def test_a_new_rate_limit_applies_to_an_open_connection(server: Secure) -> None:
    """Two requests are served, and the third is refused."""
    rate = NO_LIMITS | {"requests_per_second": 0.001, "burst": 2}
    with server.kept() as connection:
        connection.warm()
        with server.changed({"limits": rate}):
            assert [connection.said(), connection.said()] == ["acme", "acme"]
            assert status_and_error(connection.ask()) == (200, -32000)
        assert connection.said() == "acme"


@pytest.mark.requirement("P3", "N18")
def test_forwarded_addresses_end_when_a_proxy_is_no_longer_trusted(server: Secure) -> None:
    """The log then has the address of the connection."""
    line = r'"peer":"{}".*"correlation":"proxied"'
    fields = {"x_forwarded_for": "203.0.113.9", "x_octopus_correlation_id": "proxied"}
    with server.kept(**fields) as connection:
        connection.warm()
        server.process.process.wait_for(line.format(r"203\.0\.113\.9"))
        with server.changed(listen(server, trusted_proxies=[])):
            assert connection.ask().status == 200
            server.process.process.wait_for(line.format(r"127\.0\.0\.1"))


@pytest.mark.requirement("P3", "N18")
def test_a_reload_applies_to_all_pipelined_requests(server: Secure) -> None:
    """They come in one TLS record, or one byte in each record."""
    with server.kept() as connection:
        connection.warm()
        with server.changed({"tenancy": {"create_on_first_use": False, "suspended": ["acme"]}}):
            connection.socket.sendall(connection.message() * 3)
            assert [status_and_error(connection.answer()) for _ in range(3)] == [(200, -31001)] * 3
            for byte in connection.message():
                connection.socket.sendall(bytes([byte]))
            assert status_and_error(connection.answer()) == (200, -31001)
        connection.socket.sendall(connection.message("x") + connection.message("longer"))
        assert [connection.answer().status, connection.answer().status] == [200, 200]
        assert connection.said() == "acme"


@pytest.mark.requirement("P3", "N18")
def test_a_token_that_expires_is_refused(server: Secure) -> None:
    """The connection has used the token before."""
    for life_s in (2, 5, 15, 45):
        # The first of these that this machine is fast enough for.
        token = server.process.token(exp=int(time.time()) + life_s)
        with server.kept(token) as connection:
            if [connection.ask().status for _ in range(3)] == [200] * 3:
                connection.until(401, b"")
                assert status_and_error(connection.ask()) == (401, "invalid_token")
                return
    raise AssertionError("no token was ever accepted")


@pytest.mark.requirement("P3", "N18")
def test_a_revoked_token_is_refused(server: Secure) -> None:
    """Another process runs `gatepost revoke`; other callers continue, and it can be undone."""
    with server.kept(server.process.token(sub="mallory")) as connection, server.kept() as other:
        connection.warm()
        other.warm()
        number = server.order("revoke", "--subject", "mallory").split()[-1]
        connection.until(401, b"")
        assert status_and_error(connection.ask()) == (401, "invalid_token")
        assert other.ask().status == 200
        server.order("revoke", "--undo", number)
        connection.until(200, b'"result"')


@pytest.mark.requirement("P3", "N18")
def test_a_suspended_tenant_is_refused(server: Secure) -> None:
    """`gatepost tenant suspend` and `resume` apply to the next request."""
    with server.kept() as connection:
        connection.warm()
        server.order("tenant", "suspend", "acme")
        connection.until(200, b"-31001")
        server.order("tenant", "resume", "acme")
        connection.until(200, b'"result"')


@pytest.mark.requirement("P3", "N18")
@pytest.mark.slow
def test_tokens_of_a_replaced_key_are_refused_on_an_open_connection(
    server: Secure, idp: Idp
) -> None:
    """A token signed by the new key makes the server fetch the keys."""
    fresh = rsa_key("fresh")
    forge = TokenFactory(idp.issuer("second"), server.process.client.resource, kid="fresh")
    new = forge.token(org_id="two", sign=signer(fresh, "RS256"))
    with (
        server.kept(server.process.token("second", org_id="two")) as connection,
        server.kept(new) as newcomer,
    ):
        connection.warm()
        idp.issuer("second", [f.jwk(fresh, "fresh")])
        try:
            newcomer.until(200, b'"result"')
            assert status_and_error(connection.ask()) == (401, "invalid_token")
        finally:
            idp.issuer("second", [f.jwk(rsa_key())])


def certificate_of(server: Secure, **versions: ssl.TLSVersion) -> bytes:
    """Return the certificate that clients see, whether or not they send the server's name."""
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
    (certificate,) = seen
    return certificate


@pytest.mark.requirement("O7")
def test_a_renewed_certificate_is_used_after_the_reload(server: Secure) -> None:
    """New connections of both TLS versions get it, and open ones continue."""
    with server.kept() as connection:
        connection.warm()
        seen = [certificate_of(server)]
        for _ in range(2):
            server.authority.certify("localhost")
            assert certificate_of(server) == seen[-1], (
                "it is taken up by a reload, and not half written"
            )
            server.process.hang_up()
            seen.append(certificate_of(server))
            assert certificate_of(server, maximum_version=ssl.TLSVersion.TLSv1_2) == seen[-1]
        assert len(set(seen)) == 3
        assert connection.said() == "acme"


BROKEN_CERTIFICATES = {
    "a key that does not fit": lambda folder, server: folder.write_bytes(other_key(server)),
    "no key": lambda folder, server: folder.unlink(),
    "half a key": lambda folder, server: folder.write_bytes(folder.read_bytes()[:60]),
}


def other_key(server: Secure) -> bytes:
    return Path(server.authority.certify("other")[1]).read_bytes()


@pytest.mark.requirement("O7")
@pytest.mark.parametrize("case", BROKEN_CERTIFICATES)
def test_an_unusable_certificate_leaves_the_previous_one_in_use(server: Secure, case: str) -> None:
    """The reload is refused with a message."""
    before, key = certificate_of(server), Path(server.process.configured["listen"]["tls_key"])
    original = key.read_bytes()
    BROKEN_CERTIFICATES[case](key, server)
    try:
        server.process.hang_up(REFUSED_EVENT)
        assert certificate_of(server) == before
        assert "config.E014" in server.process.process.output
        metadata = f"{server.process.client.path}{WELL_KNOWN}"
        server.process.client.tls = server.tls
        assert server.process.client.send("GET", metadata).status == 200
    finally:
        key.write_bytes(original)
        server.process.hang_up()
