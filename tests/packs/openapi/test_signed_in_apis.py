"""Tools sign in at other servers with a table of `[credentials]`, an API's tools among them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gatepost import CallContext, Pack
from tests.packs.conftest import PackServer, open_server
from tests.support.issuers import AsgiServer
from tests.support.measuring import capture_logs
from tests.support.server import check_problems

CLIENT_SECRET = "the-client-secret-of-this-test"
pack = Pack("stranger")


@pack.tool(read_only=True)
async def ask_as(ctx: CallContext, name: str, url: str) -> dict[str, Any]:
    """Ask a server that the caller chooses, with a credential that the caller names."""
    signed = await ctx.signed_headers(name, url)
    reply = await ctx.http.send("GET", f"{url}/things", headers=signed.headers)
    return {"sent": dict(signed.headers), "status": reply.status}


class SignedInApi:
    """An API that accepts the newest token only, and the endpoint that issues tokens."""

    def __init__(self) -> None:
        self.issued: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.revoked = 0
        """Tokens up to this number count no more."""
        routes = [
            Route("/token", self._token, methods=["POST"]),
            Route("/things", self._things, methods=["GET", "POST"]),
        ]
        self.server = AsgiServer(Starlette(routes=routes)).start()
        self.host = self.server.url.removeprefix("http://")

    @property
    def document(self) -> str:
        """Return the description of the API."""
        operations = {"get": {"operationId": "list_things"}, "post": {"operationId": "add_thing"}}
        return json.dumps(
            {
                "openapi": "3.1.0",
                "info": {"title": "Things", "version": "1"},
                "servers": [{"url": self.server.url}],
                "paths": {"/things": operations},
            }
        )

    async def _token(self, request: Request) -> Response:
        form = parse_qs((await request.body()).decode())
        self.issued.append({"authorization": request.headers["authorization"], **form})
        token = f"issued-token-number-{len(self.issued)}"
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 600})

    async def _things(self, request: Request) -> Response:
        sent = request.headers.get("authorization", "")
        self.asked.append(sent)
        valid = [f"Bearer issued-token-number-{n + 1}" for n in range(len(self.issued))]
        if sent not in valid[self.revoked :]:
            return JSONResponse({"error": "no"}, 401)
        return JSONResponse({"sent": sent})


@pytest.fixture
def api() -> Iterator[SignedInApi]:
    """Yield the API, with requests of this test only."""
    api = SignedInApi()
    yield api
    api.server.stop()


@pytest.fixture
def server(
    api: SignedInApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PackServer]:
    """Yield a server whose API and whose third-party pack use the same tables."""
    monkeypatch.setenv("TEST_CLIENT_SECRET", CLIENT_SECRET)
    (tmp_path / "things.json").write_text(api.document, encoding="utf-8")
    table = {
        "type": "client",
        "tenants": ["acme"],
        "client_id": "gatepost",
        "client_secret": "env:TEST_CLIENT_SECRET",
        "token_endpoint": f"{api.server.url}/token",
    }
    entry = {"document": str(tmp_path / "things.json"), "credential": "things"}
    with open_server(
        tmp_path,
        [],
        tools={"packs": [], "load": [__name__]},
        packs={"openapi": {"apis": {"things": entry}}},
        credentials={
            "things": table | {"hosts": [api.host]},
            "elsewhere": table | {"hosts": ["things.example.com"]},
            "upstreams_only": table,
        },
        network={"allow_hosts": [api.host]},
    ) as server:
        yield server


def test_an_apis_tools_sign_in_with_the_credential(api: SignedInApi, server: PackServer) -> None:
    """One token serves all calls of a tenant; answers show neither secret nor token."""
    agent = server.agent("rest", "acme")
    answers = [agent.call("list_things"), agent.call("add_thing")]

    assert api.asked == ["Bearer issued-token-number-1"] * 2
    assert api.issued[0]["resource"] == [api.server.url]
    assert len(api.issued) == 1
    assert "issued-token" not in str(answers)
    assert [answer.failure for answer in answers] == [None, None]


@pytest.mark.parametrize("tool", ["list_things", "add_thing"])
def test_a_refused_token_is_renewed_once(api: SignedInApi, server: PackServer, tool: str) -> None:
    """After a 401 the call had no effect, so the request is sent once more."""
    agent = server.agent("rest", "acme")
    agent.call(tool)
    api.revoked = 1
    again = agent.call(tool)
    api.revoked = 2
    refused = agent.call(tool)

    assert again.failure is None
    assert refused.kind == "denied"
    sent = [int(token.rpartition("-")[2]) for token in api.asked]
    assert sent == [1, 1, 2, 2]
    assert len(api.issued) == 2


def test_another_tenant_cannot_use_the_credential(api: SignedInApi, server: PackServer) -> None:
    """The table names the allowed tenants; for others no token is requested."""
    refused = server.agent("rest", "globex").call("list_things")

    assert refused.kind == "denied"
    assert "globex" in str(refused.failure)
    assert (api.issued, api.asked) == ([], [])


def test_a_third_party_pack_signs_in_too(api: SignedInApi, server: PackServer) -> None:
    """The credential is redacted in its results."""
    answer = server.agent("rest", "acme").call("ask_as", name="things", url=api.server.url)

    assert answer.value["status"] == 200
    assert api.asked == ["Bearer issued-token-number-1"]
    assert "issued-token" not in str(answer)
    assert "REDACTED" in answer.value["sent"]["authorization"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("elsewhere", "is bound to things.example.com and is not sent to"),
        ("upstreams_only", "names no hosts"),
        ("nothing", "There is no credential 'nothing'"),
    ],
)
def test_a_caller_cannot_send_a_credential_elsewhere(
    api: SignedInApi, server: PackServer, name: str, says: str
) -> None:
    """The table names the hosts; for another host no token is requested."""
    refused = server.agent("rest", "acme").call("ask_as", name=name, url=api.server.url)

    assert refused.kind == "denied"
    assert says in str(refused.failure)
    assert CLIENT_SECRET not in str(refused)
    assert (api.issued, api.asked) == ([], [])


def test_the_use_of_a_credential_is_logged(api: SignedInApi, server: PackServer) -> None:
    """The log line has tenant, name and request id, and no token."""
    agent = server.agent("rest", "acme")
    with capture_logs() as lines:
        agent.call("list_things")
        agent.call("ask_as", name="elsewhere", url=api.server.url)

    uses = [(line["event"], line["tenant"], line["credential"]) for line in lines]
    assert uses == [
        ("credential_used", "acme", "things"),
        ("credential_withheld", "acme", "elsewhere"),
    ]
    assert all(line["request_id"] for line in lines)
    assert "issued-token" not in str(lines)
    assert CLIENT_SECRET not in str(lines)


def test_an_api_has_one_way_to_sign_in(tmp_path: Path) -> None:
    """`auth` beside `credential` would leave open which one counts."""
    (tmp_path / "a.json").write_text("{}", encoding="utf-8")
    entry = {"document": str(tmp_path / "a.json"), "auth": "secret:A", "credential": "things"}
    issuers = [{"issuer": "https://id.example", "tenant": {"claim": "org_id"}}]
    reported_problems = check_problems(issuers, packs={"openapi": {"apis": {"a": entry}}})

    messages = [problem.message for problem in reported_problems if problem.id == "config.E060"]
    assert messages == ["the API has both `auth` and `credential`"]
