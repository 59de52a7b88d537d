"""
An upstream behind `@cloudflare/workers-oauth-provider`, in the runtime of Cloudflare Workers.

The provider has no client credentials grant. A person gets a token by the authorization code flow,
and the gate sends it as a `static` credential.
"""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.support.client import RestClient
from tests.support.issuers import AsgiServer, Idp
from tests.support.processes import Process, free_port
from tests.support.programs import command, environment
from tests.support.server import Server, issuer_settings, running_server
from tests.upstreams.test_signed_in_upstream import ADD_TOOL, agent_of, crm, wait_until_listed

WITHIN_S = 20
CALLBACK = "http://127.0.0.1/callback"
ADMIN = "gatepost:admin"
SERVERS = "/v1/mcp-servers"


class WorkerUpstream:
    """The running worker, and a person who signs in there."""

    def __init__(self, issuer: str) -> None:
        self.issuer, self.resource = issuer, f"{issuer}/mcp"
        self.host = urlsplit(issuer).netloc
        self._http = httpx2.Client(base_url=issuer, trust_env=False, timeout=WITHIN_S)
        registered = self._http.post(
            "/register",
            json={
                "client_name": "a person's own client",
                "redirect_uris": [CALLBACK],
                "token_endpoint_auth_method": "client_secret_basic",
                "grant_types": ["authorization_code"],
                "response_types": ["code"],
            },
        ).json()
        self.client_id: str = registered["client_id"]
        self.client_secret: str = registered["client_secret"]

    def token(self) -> str:
        """Return an access token of the person, by the authorization code flow."""
        verifier = secrets.token_urlsafe(48)
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": CALLBACK,
            "scope": "crm:use",
            "state": "s",
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            "resource": self.resource,
        }
        back = self._http.get("/authorize", params=query).headers["location"]
        form = {
            "grant_type": "authorization_code",
            "code": parse_qs(urlsplit(back).query)["code"][0],
            "redirect_uri": CALLBACK,
            "code_verifier": verifier,
            "resource": self.resource,
        }
        token_response = self._http.post(
            "/token", data=form, auth=(self.client_id, self.client_secret)
        )
        access_token: str = token_response.json()["access_token"]
        return access_token

    def revoke(self, token: str) -> None:
        """End a token (RFC 7009)."""
        auth = (self.client_id, self.client_secret)
        assert self._http.post("/token", data={"token": token}, auth=auth).status_code == 200

    def close(self) -> None:
        """Close the person's connections."""
        self._http.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerUpstream]:
    """Yield the worker in front of a FastMCP server."""
    running = AsgiServer(crm().http_app(path="/mcp"), lifespan="on").start()
    settings = {"origin": running.url, "port": free_port()}
    process = Process(command("workers_oauth.mjs", json.dumps(settings)), env=environment())
    try:
        worker = WorkerUpstream(json.loads(process.next_line())["issuer"])
        yield worker
        worker.close()
    finally:
        process.stop()
        running.stop()


@pytest.fixture(scope="module")
def gate(
    idp: Idp, worker: WorkerUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Yield a gate with the worker as two upstreams, one for each type of credential."""
    secret = tmp_path_factory.mktemp("secret") / "client"
    secret.write_text(worker.client_secret, encoding="utf-8")
    secret.chmod(0o600)
    credentials = {
        "person": {"type": "static", "tenants": ["acme"], "api_key": "secret:CRM_TOKEN"},
        "machine": {
            "type": "client",
            "tenants": ["acme"],
            "client_id": worker.client_id,
            "client_secret": f"file:{secret}",
        },
    }
    table = {"tenants": ["acme"], "url": worker.resource}
    with running_server(
        idp,
        [issuer_settings(idp)],
        tenancy={"create_on_first_use": True},
        scopes={"admin": ADMIN},
        network={"allow_hosts": [worker.host]},
        credentials=credentials,
        upstreams=[
            {"name": "crm", **table, "credential": "person"},
            {"name": "robot", **table, "credential": "machine"},
        ],
    ) as gate:
        yield gate


def sign_in(gate: Server, worker: WorkerUpstream) -> str:
    """Give the gate a new token of the person."""
    token = worker.token()
    gate.run(gate.services.secrets.put("acme", "CRM_TOKEN", token))
    return token


def administrator(gate: Server) -> RestClient:
    return RestClient(gate, gate.token(org_id="acme", scope=ADMIN))


def server_shown(gate: Server, name: str) -> dict[str, Any]:
    """Return what an administrator sees of a server."""
    servers = administrator(gate).ask("GET", SERVERS).json["data"]
    entry_shown: dict[str, Any] = next(server for server in servers if server["name"] == name)
    return entry_shown


def test_the_gate_signs_in_with_a_persons_token(gate: Server, worker: WorkerUpstream) -> None:
    """A call goes through, fails as an outage once the token is revoked, and heals with another."""
    token = sign_in(gate, worker)
    agent = agent_of(gate)
    # Without a token, the first list could not be fetched.
    refreshed = administrator(gate).ask(
        "POST", f"{SERVERS}/{server_shown(gate, 'crm')['id']}/refresh"
    )
    assert refreshed.status == 200, refreshed
    wait_until_listed(agent)
    first = agent.call(ADD_TOOL, {"number": 1})
    worker.revoke(token)
    refused = agent.call(ADD_TOOL, {"number": 2})
    sign_in(gate, worker)
    again = agent.call(ADD_TOOL, {"number": 3})

    assert (first.status, first.json) == (200, {"result": 1})
    assert refused.error == (503, "upstream_unavailable")
    assert "does not accept the credential" in refused.json["message"]
    assert "www-authenticate" not in {name.lower() for name, _ in refused.raw.headers}
    # The refused call did not run.
    assert (again.status, again.json) == (200, {"result": 2})
    assert token not in gate.log()


def test_a_missing_grant_is_named(gate: Server, worker: WorkerUpstream) -> None:
    """The administrator sees the answer of the token endpoint."""
    until = time.monotonic() + WITHIN_S
    while not (failure := server_shown(gate, "robot")["failure"]):
        assert time.monotonic() < until
        time.sleep(0.05)

    assert f"{worker.issuer}/token issued no token" in failure
    assert "unsupported_grant_type" in failure
    assert worker.client_secret not in gate.log()
