"""Where requests to an upstream go: redirects, other addresses of its name, and certificates."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.upstreams.conftest import (
    ADMIN,
    SERVERS,
    UpstreamUser,
    outcome_of,
    text_result,
    tool,
)
from tests.support.client import RestAnswer
from tests.support.internet import (
    DESCRIPTION,
    PUBLIC,
    Internet,
    Page,
    ReceivedRequest,
    ScriptedServer,
    page_answer,
    redirect_answer,
    result_answer,
    small_internet,
)
from tests.support.issuers import AsgiServer, Idp, Send
from tests.support.measuring import eventually
from tests.support.proxies import CertificateAuthority
from tests.support.server import Server, issuer_settings, running_server

URL, LOGIN = "https://mcp.web.test/mcp", "https://login.web.test"
SECRET = "client-secret-0123456789"
RESOURCE_METADATA = "/.well-known/oauth-protected-resource/mcp"
SERVER_METADATA = "/.well-known/oauth-authorization-server"
REDIRECT_TARGET = "/stolen"


def serve_upstream(internet: Internet, **answers: Page) -> None:
    """Serve an MCP server that signs clients in, with these pages for some of its methods."""
    results: dict[str, Any] = {
        "server/discover": DESCRIPTION,
        "tools/list": {"tools": [tool()]},
        "tools/call": text_result("done"),
    }

    async def mcp(seen: ReceivedRequest, send: Send) -> None:
        message = json.loads(seen.body)
        page = answers.get(message["method"])
        if page is None:
            body = {"jsonrpc": "2.0", "id": message.get("id"), "result": results[message["method"]]}
            page = page_answer(json.dumps(body), "application/json", connection="close")
        await page(seen, send)

    pages: dict[str, Any] = {
        RESOURCE_METADATA: {"resource": URL, "authorization_servers": [LOGIN]},
        SERVER_METADATA: {"issuer": LOGIN, "token_endpoint": f"{LOGIN}/token"},
        "/token": {"access_token": "token-0123456789", "token_type": "Bearer", "expires_in": 5},
    }
    internet.site.pages.update(
        {path: page_answer(json.dumps(page), "application/json") for path, page in pages.items()}
    )
    internet.site.pages["/mcp"] = mcp


@pytest.fixture
def internet(tmp_path: Path) -> Iterator[Internet]:
    with small_internet(tmp_path) as internet:
        serve_upstream(internet)
        yield internet


@contextmanager
def gate_in(internet: Internet, idp: Idp) -> Iterator[Server]:
    """Serve a gate with an upstream on that internet, whose sign-in it discovers."""
    credential = {
        "type": "client",
        "tenants": ["acme"],
        "client_id": "gatepost",
        "client_secret": "env:UPSTREAM_SECRET",
    }
    with running_server(
        idp,
        [issuer_settings(idp)],
        tenancy={"create_on_first_use": True},
        network=internet.network(allow_hosts=[f"localhost:{internet.secure}"]),
        prepare=internet.resolves_for,
        scopes={"admin": ADMIN},
        credentials={"crm": credential},
        upstreams=[{"name": "crm", "tenants": ["acme"], "url": URL, "credential": "crm"}],
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_SECRET", SECRET)


def upstream_user(gate: Server) -> UpstreamUser:
    return UpstreamUser(gate, gate.token(org_id="acme", scope=f"{ADMIN} mcp:crm mcp:inside"))


def refresh_upstream(user: UpstreamUser) -> RestAnswer:
    (crm,) = user.ask("GET", SERVERS).json["data"]
    return user.refresh(crm["id"])


def requested_paths(internet: Internet) -> list[str]:
    return [request.path for request in internet.site.seen]


REDIRECTED_REQUESTS = [
    RESOURCE_METADATA,
    SERVER_METADATA,
    "/token",
    "server/discover",
    "tools/list",
    "subscriptions/listen",
    "tools/call",
]


@pytest.mark.parametrize("location", ["inside", "outside"])
@pytest.mark.parametrize("which", REDIRECTED_REQUESTS)
def test_redirects_of_an_upstream_are_not_followed(
    idp: Idp, internet: Internet, location: str, which: str
) -> None:
    """A redirect could lead to an internal address or send a secret to another host."""
    inside = f"https://localhost:{internet.secure}{REDIRECT_TARGET}"
    to = inside if location == "inside" else f"https://evil.web.test{REDIRECT_TARGET}"
    page = redirect_answer(to, status=307)
    if which.startswith("/"):
        internet.site.pages[which] = page
    else:
        serve_upstream(internet, **{which: page})
    with gate_in(internet, idp) as gate:
        user = upstream_user(gate)
        heard = refresh_upstream(user)
        if which in ("tools/call", "subscriptions/listen"):
            assert heard.status == 200, heard.json
            eventually(lambda: "mcp_crm__act" in user.names(), within=20)
            expected = (500, "internal_error") if which == "tools/call" else (200, "ok")
            assert outcome_of(user.call("mcp_crm__act")) == expected
            eventually(lambda: received_method(internet, which), within=20)
        else:
            assert heard.error == (502, "upstream_unreachable"), heard.json
        assert REDIRECT_TARGET not in requested_paths(internet)
        assert SECRET not in heard.raw.body.decode()


def received_method(internet: Internet, method: str) -> bool:
    return any(f'"{method}"'.encode() in request.body for request in internet.site.seen)


def test_a_host_name_that_changes_to_an_internal_address_is_refused(
    idp: Idp, internet: Internet
) -> None:
    """Each connection resolves its name once and uses only addresses that it has checked."""
    with gate_in(internet, idp) as gate:
        user = upstream_user(gate)
        assert refresh_upstream(user).status == 200
        eventually(lambda: "mcp_crm__act" in user.names(), within=20)
        assert user.call("mcp_crm__act").status == 200
        # Begun before, it may arrive later.
        eventually(lambda: received_method(internet, "subscriptions/listen"), within=20)
        host = "mcp.web.test"
        for addresses in (["127.0.0.1"], [PUBLIC, "127.0.0.1"], ["::1"], ["169.254.169.254"]):
            before = len(internet.site.seen)
            internet.names.known[host] = [addresses]
            heard = user.call("mcp_crm__act")
            assert heard.error == (403, "denied"), heard.json
            assert refresh_upstream(user).error == (502, "upstream_unreachable")
            assert [
                request for request in internet.site.seen[before:] if request.host == host
            ] == []
        internet.names.known[host] = [[PUBLIC]]
        lookup_count = len([name for name in internet.names.asked if name == host])
        reached = len([request for request in internet.site.seen if request.host == host])
        assert user.call("mcp_crm__act").status == 200
        connections = (
            len([request for request in internet.site.seen if request.host == host]) - reached
        )
        assert (
            len([name for name in internet.names.asked if name == host]) - lookup_count
            <= connections
        )


@pytest.mark.parametrize("fault", ["expired", "of another name", "of another authority"])
def test_an_invalid_certificate_of_an_upstream_is_refused(
    idp: Idp, internet: Internet, tmp_path: Path, fault: str
) -> None:
    """The connection fails before the API key is sent, and the message names the reason."""
    other = tmp_path / "other"
    other.mkdir()
    authority = CertificateAuthority(other) if "authority" in fault else internet.company
    name = "other.example.com" if "name" in fault else "localhost"
    certificate, key = authority.certify(name, hours=-1.0 if fault == "expired" else 1.0)
    app = ScriptedServer()
    app.answers["tools/list"] = result_answer({"tools": [tool()]})
    server = AsgiServer(app, ssl_certfile=certificate, ssl_keyfile=key).start()
    host = f"localhost:{server.port}"
    try:
        with running_server(
            idp,
            [issuer_settings(idp)],
            tenancy={"create_on_first_use": True},
            network=internet.network(allow_hosts=[host]),
            scopes={"admin": ADMIN},
        ) as gate:
            user = upstream_user(gate)
            identity = user.register("inside", f"https://{host}/mcp", api_key="sk-0123456789")
            heard = user.refresh(identity)
            assert heard.error == (502, "upstream_unreachable")
            assert "certificate" in heard.json["message"], heard.json
            assert app.seen == []
    finally:
        server.stop()
