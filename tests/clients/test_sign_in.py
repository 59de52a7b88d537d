"""The official clients sign in: at `gatepost dev`, and at an issuer of others (oidc-provider)."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest

from gatepost.doctor import DoctorCredentials, examine
from gatepost_keys.imitation import IMITATIONS
from tests.clients.conftest import CSV, run_python_client
from tests.support import commands
from tests.support.commands import Gatepost
from tests.support.processes import free_port
from tests.support.programs import BrowserUser, run_typescript_client
from tests.support.sign_in import (
    MACHINE,
    RESOURCE_SERVER,
    SECRET,
    ProofKey,
    RunningOidcProvider,
    TokenForm,
    authorization_server,
)

CONFIG = """
resource = "{resource}"
mode = "development"

[listen]
port = {port}

[[issuers]]
issuer = "{issuer}"
preset = "oidc-provider"
tenant = {{ claim = "org_id" }}
{introspection}

[scopes]
baseline = ["files:read"]

[tools]
packs = ["demo"]
"""
INTROSPECTION = (
    f'introspection = {{ client_id = "{RESOURCE_SERVER}", client_secret = "env:TEST_SECRET" }}'
)
BASELINE = ["files:read"]
ENVIRONMENT = {"TEST_SECRET": SECRET, **commands.FAST_LIMITS}
SCOPES = [*BASELINE, "files:write"]


DEMO_TOOLS = {"echo", "whoami", "save_csv", "delete_csv", "count_slowly"}


def expect_discovery(report: dict[str, Any], url: str) -> None:
    """Assert that the client was refused, followed the challenge, and registered by itself."""
    first, metadata = report["exchanges"][:2]
    assert (first["method"], first["url"], first["status"]) == ("POST", url, 401)
    assert first["challenge"].startswith('Bearer resource_metadata="')
    assert first["challenge"].split('"')[1] == metadata["url"]
    assert metadata["status"] == 200
    assert [each["status"] for each in registrations(report)] == [201]


def registrations(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the POSTs that are neither calls nor token requests."""
    return [
        each
        for each in report["exchanges"]
        if each["method"] == "POST"
        and not each["grant_type"]
        and urlsplit(each["url"]).path.rsplit("/", 1)[-1] in {"register", "reg"}
    ]


def expect_grants(report: dict[str, Any], person: BrowserUser, resource: str) -> None:
    """Assert that all requests had PKCE with S256 and `resource`, and a refresh token was used."""
    for request in person.asked:
        assert request["code_challenge_method"] == "S256"
        assert request["resource"] == resource
    tokens = [each for each in report["exchanges"] if each.get("grant_type")]
    assert {each["status"] for each in tokens} == {200}
    assert {each["resource"] for each in tokens} == {resource}
    assert tokens[-1]["grant_type"] == "refresh_token"
    assert [each["grant_type"] for each in tokens].count("authorization_code") == len(person.asked)


def expect_calls(report: dict[str, Any], *, tenant: str) -> None:
    """Assert that the tools are there, answer, and know who called."""
    assert set(report["tools"]) >= DEMO_TOOLS
    assert report["echo"] == "grüß Gott"
    assert tenant in str(report["whoami"])
    assert [step["progress"] for step in report["progress"]] == [1, 2, 3]
    assert "invoices.csv" in report["saved"]
    assert report["after_refresh"] == "again"


def expect_step_up(report: dict[str, Any], person: BrowserUser, url: str) -> None:
    """Assert that saving was refused for its scope, and the person was asked for it once more."""
    refused = [each for each in report["exchanges"] if each["status"] == 403]
    assert {each["url"] for each in refused} == {url}, refused
    for each in refused:
        assert 'error="insufficient_scope"' in each["challenge"]
        scope = re.search(r'scope="([^"]*)"', each["challenge"])
        assert scope is not None
        assert "files:write" in scope[1].split()
    assert len(person.asked) == 2
    assert "files:write" in person.asked[-1]["scope"].split()


def expect_no_step_up(report: dict[str, Any], person: BrowserUser) -> None:
    """Assert that a client that asked for everything at first was never refused or asked again."""
    assert 403 not in {each["status"] for each in report["exchanges"]}
    assert len(person.asked) == 1


def expect_all(
    report: dict[str, Any], person: BrowserUser, url: str, *, tenant: str, steps_up: bool = True
) -> None:
    """Assert every step, from discovery to the granted scopes."""
    for exchange in report["exchanges"]:
        exchange.setdefault("grant_type", None)
    expect_discovery(report, url)
    expect_grants(report, person, url)
    expect_calls(report, tenant=tenant)
    if steps_up:
        expect_step_up(report, person, url)
    else:
        expect_no_step_up(report, person)
    assert "files:write" in report["granted"].split()


@pytest.mark.parametrize(
    ("script", "mode", "protocol"),
    [
        ("client_v1.mjs", "legacy", "2025-11-25"),
        ("client_v2.mjs", "legacy", "2025-11-25"),
        ("client_v2.mjs", "auto", "2026-07-28"),
        ("client_v2.mjs", "2026-07-28", "2026-07-28"),
    ],
)
def test_the_typescript_clients_sign_in_at_gatepost_dev(
    dev: Gatepost, script: str, mode: str, protocol: str
) -> None:
    """Discovery, registration, sign-in, tools, step-up and refresh work in both revisions."""
    person = BrowserUser("bob")

    report = run_typescript_client(script, person, url=dev.url, mode=mode, csv=CSV)

    assert report["protocol"] == protocol
    # The metadata name every scope of the tools, and this client asks for all that it reads there.
    expect_all(report, person, dev.url, tenant="globex", steps_up=False)


@pytest.mark.parametrize(
    ("mode", "protocol"),
    [("legacy", "2025-11-25"), ("auto", "2026-07-28"), ("2026-07-28", "2026-07-28")],
)
async def test_the_python_client_signs_in_at_gatepost_dev(
    dev: Gatepost, mode: str, protocol: str
) -> None:
    """Discovery, registration, sign-in, tools and refresh work in both revisions."""
    person = BrowserUser("alice")

    report = await run_python_client(dev.url, person, mode=mode, csv=CSV)

    assert report["protocol"] == protocol
    # Where the resource names no scopes, this SDK asks for all that the issuer has.
    expect_all(report, person, dev.url, tenant="acme", steps_up=False)


class GatepostAndIssuer(NamedTuple):
    """A Gatepost and the authorization server whose tokens it accepts."""

    gatepost: Gatepost
    issuer: RunningOidcProvider
    form: TokenForm


@pytest.fixture(scope="module", params=["jwt", "opaque"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatepostAndIssuer]:
    form: TokenForm = request.param
    port = free_port()
    resource = f"http://127.0.0.1:{port}/mcp"
    with ExitStack() as stack:
        issuer = stack.enter_context(
            authorization_server(
                {resource: form},
                scopes=SCOPES,
                tenants={"alice": "acme", MACHINE: "globex"},
            )
        )
        config = CONFIG.format(
            resource=resource,
            port=port,
            issuer=issuer.issuer,
            introspection=INTROSPECTION if form == "opaque" else "",
        )
        folder = tmp_path_factory.mktemp(form)
        running = stack.enter_context(commands.serve(config, folder, env=ENVIRONMENT))
        yield GatepostAndIssuer(running, issuer, form)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_python_client_signs_in_at_another_issuer(
    pair: GatepostAndIssuer, mode: str
) -> None:
    """The steps are those with the development issuer, with oidc-provider's tokens."""
    person = BrowserUser("alice")

    report = await run_python_client(pair.gatepost.url, person, mode=mode, csv=CSV)

    expect_all(report, person, pair.gatepost.url, tenant="acme")


@pytest.mark.parametrize(
    ("script", "mode"),
    [("client_v1.mjs", "legacy"), ("client_v2.mjs", "auto")],
)
def test_the_typescript_clients_sign_in_at_another_issuer(
    pair: GatepostAndIssuer, script: str, mode: str
) -> None:
    """The clients take the same steps as at the development issuer, with oidc-provider tokens."""
    person = BrowserUser("alice")

    report = run_typescript_client(script, person, url=pair.gatepost.url, mode=mode, csv=CSV)

    expect_all(report, person, pair.gatepost.url, tenant="acme")


def whoami(pair: GatepostAndIssuer, token: str) -> httpx2.Response:
    """Make one authenticated call of 2026-07-28 over plain HTTP."""
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "whoami",
            "arguments": {},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {token}",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "whoami",
    }
    return httpx2.post(pair.gatepost.url, json=message, headers=headers)


def test_a_machine_calls_with_its_own_token(pair: GatepostAndIssuer) -> None:
    """A client credentials token is accepted, and the call runs for the machine's tenant."""
    answer = whoami(pair, pair.issuer.machine_token(pair.gatepost.url, BASELINE))

    assert answer.status_code == 200, answer.text
    assert "globex" in json.dumps(answer.json()["result"])


@pytest.mark.requirement("D08")
def test_a_dpop_bound_token_is_refused_as_a_bearer_token(pair: GatepostAndIssuer) -> None:
    """A thief of the token lacks the key, and gets 401 invalid_token."""
    token = pair.issuer.machine_token(pair.gatepost.url, BASELINE, proof_key=ProofKey())

    answer = whoami(pair, token)

    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "result" not in answer.text


async def test_the_doctor_gets_a_token_and_makes_the_first_call(pair: GatepostAndIssuer) -> None:
    """It uses the client credentials of a machine."""
    machine = DoctorCredentials(client_id=MACHINE, client_secret=SECRET, scopes=" ".join(BASELINE))

    report = await examine(pair.gatepost.url, credentials=machine)

    assert report.sentence == f"No problems found at {pair.gatepost.url}."
    assert (report.steps[-1].name, report.steps[-1].level) == ("first call", "ok")


def test_a_token_for_another_resource_is_refused(
    pair: GatepostAndIssuer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A token that the same server issued for another resource is refused by this one."""
    other = "http://127.0.0.1:9/mcp"
    with authorization_server({other: pair.form}, scopes=SCOPES, tenants={}) as elsewhere:
        answer = whoami(pair, elsewhere.machine_token(other, BASELINE))

    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, shape in IMITATIONS.items() if "registration" in shape.endpoints]
)
async def test_the_python_client_signs_in_where_the_provider_registers_clients(
    tmp_path: Path, name: str
) -> None:
    """The client does discovery, registration, sign-in, calls and refresh by itself."""
    folder = tmp_path / name
    folder.mkdir()
    with commands.dev(folder, "--as", name) as gatepost:
        report = await run_python_client(gatepost.url, BrowserUser("alice"), mode="auto", csv=CSV)

    assert "files:write" in report["granted"].split()
    assert report["after_refresh"] == "again"
