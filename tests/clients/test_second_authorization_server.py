"""An authorization server that is not ours, by configuration alone: oidc-provider from npm."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import httpx2
import pytest

from gatepost.doctor import DoctorCredentials, examine
from tests.clients import sdk_clients
from tests.clients.sdk_clients import CSV, expect_all
from tests.support import commands, node
from tests.support.browser import BrowserUser
from tests.support.commands import Gatepost
from tests.support.issuers import (
    MACHINE,
    RESOURCE_SERVER,
    SECRET,
    ProofKey,
    RunningOidcProvider,
    TokenForm,
    authorization_server,
)
from tests.support.processes import free_port

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
ENVIRONMENT = {"TEST_SECRET": SECRET, **commands.HURRIED}
SCOPES = [*BASELINE, "files:write"]


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
async def test_the_python_client_goes_all_the_way(pair: GatepostAndIssuer, mode: str) -> None:
    """The same journey as with the development issuer, with another issuer's tokens."""
    person = BrowserUser("alice")

    report = await sdk_clients.walk_python(pair.gatepost.url, person, mode=mode, csv=CSV)

    expect_all(report, person, pair.gatepost.url, tenant="acme")


@pytest.mark.parametrize(
    ("script", "mode"),
    [("client_v1.mjs", "legacy"), ("client_v2.mjs", "auto")],
)
def test_the_typescript_clients_go_all_the_way(
    pair: GatepostAndIssuer, script: str, mode: str
) -> None:
    """The same journey as with the development issuer, with another issuer's tokens."""
    person = BrowserUser("alice")

    report = node.walk_typescript(script, person, url=pair.gatepost.url, mode=mode, csv=CSV)

    expect_all(report, person, pair.gatepost.url, tenant="acme")


def whoami(pair: GatepostAndIssuer, token: str) -> httpx2.Response:
    """One authenticated call of 2026-07-28 over plain HTTP."""
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
    """A client credentials token works, and the call runs for the machine's tenant."""
    answer = whoami(pair, pair.issuer.machine_token(pair.gatepost.url, BASELINE))

    assert answer.status_code == 200, answer.text
    assert "globex" in json.dumps(answer.json()["result"])


@pytest.mark.requirement("D08")
def test_a_bound_token_is_worth_nothing_as_a_bearer_token(pair: GatepostAndIssuer) -> None:
    """The thief of a DPoP-bound token lacks its key: sent as Bearer it is 401 invalid_token."""
    token = pair.issuer.machine_token(pair.gatepost.url, BASELINE, proof_key=ProofKey())

    answer = whoami(pair, token)

    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "result" not in answer.text


async def test_the_doctor_goes_all_the_way_too(pair: GatepostAndIssuer) -> None:
    """With a machine's credentials it gets a token here, and the first call works."""
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
