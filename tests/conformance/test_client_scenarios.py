"""
The official suite's authorization scenarios for clients, against the client of upstreams.

`python -m tests.conformance.test_client_scenarios URL` is the client under test: it lists
the tools of the server at URL, and signs in with the credential that the suite gives it.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest

from gatepost.config.credentials import CredentialSettings
from gatepost.config.settings import Config
from gatepost.credentials.tenant_credentials import CredentialRegistry
from gatepost.credentials.token_client import CredentialServices
from gatepost.secrets.cache import SecretCache
from gatepost.secrets.keyring import KeyRing
from gatepost.secrets.store import SecretStore
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.upstreams.connection import UpstreamResult
from tests.architecture.source import ROOT
from tests.conformance.test_official_suite import PROGRAM, Check, checks_in
from tests.support.connections import ConnectingProcess
from tests.support.processes import python_environment
from tests.support.programs import Program, environment, loaded

RUN_WITHIN_S = 90
METADATA = "/.well-known/oauth-protected-resource"

APPLICABLE_SCENARIOS = {
    "auth/client-credentials-basic": "client-credentials-basic-auth",
    "auth/client-credentials-jwt": "client-credentials-jwt-verified",
    "auth/resource-mismatch": "resource-mismatch-rejected",
    "auth/metadata-issuer-mismatch": "",
}
"""Scenario = the check that decides; empty: all that it makes."""

CODE = "it needs the authorization code grant, which signs in a person"
REGISTRATION = "it needs a client that registers itself, and a person who signs in"
NOT_YET = {
    "auth/metadata-default": CODE,
    "auth/metadata-var1": CODE,
    "auth/metadata-var2": CODE,
    "auth/metadata-var3": CODE,
    "auth/basic-cimd": "it needs a client id metadata document and a person who signs in",
    "auth/scope-from-www-authenticate": CODE,
    "auth/scope-from-scopes-supported": CODE,
    "auth/scope-omitted-when-undefined": CODE,
    "auth/scope-step-up": "the operator names the scopes; no challenge of a stranger widens them",
    "auth/scope-retry-limit": CODE,
    "auth/token-endpoint-auth-basic": REGISTRATION,
    "auth/token-endpoint-auth-post": REGISTRATION,
    "auth/token-endpoint-auth-none": REGISTRATION,
    "auth/pre-registration": CODE,
    "auth/2025-03-26-oauth-metadata-backcompat": "a server without RFC 9728 needs `issuer`",
    "auth/2025-03-26-oauth-endpoint-fallback": "endpoints are never guessed: `token_endpoint`",
    "auth/offline-access-scope": "client credentials have no refresh token",
    "auth/offline-access-not-supported": "client credentials have no refresh token",
    "auth/authorization-server-migration": REGISTRATION,
    "auth/iss-supported": CODE,
    "auth/iss-not-advertised": CODE,
    "auth/iss-supported-missing": CODE,
    "auth/iss-wrong-issuer": CODE,
    "auth/iss-unexpected": CODE,
    "auth/iss-normalized": CODE,
    "auth/enterprise-managed-authorization": "it exchanges a person's identity assertion",
    "auth/dpop": "upstreams get bearer tokens only",
    "auth/dpop-nonce": "upstreams get bearer tokens only",
    "auth/wif-jwt-bearer": "it needs the JWT bearer grant of a workload identity",
}
"""Scenario = why the client of upstreams does not do it."""


@pytest.fixture(scope="module")
def suite() -> Iterator[Program]:
    """Load the suite, with the environment that it passes to our client."""
    path = {"PYTHONPATH": ":".join([str(ROOT), *sys.path])}
    with loaded(PROGRAM, python_environment(environment() | path)) as program:
        yield program


def scenarios(suite: Program) -> set[str]:
    """Return the authorization scenarios for clients that the pinned release has."""
    done = suite.run("list", within_s=RUN_WITHIN_S)
    assert done.code == 0, done.stderr
    clients = done.stdout.partition("Client scenarios")[2]
    return set(re.findall(r"^  - (auth/[a-z0-9-]+)", clients, re.MULTILINE))


def run(suite: Program, scenario: str, folder: Path) -> list[Check]:
    """Run one scenario with our client and return its checks."""
    program = f"{sys.executable} -m {__name__}"
    words = ("client", "--command", program, "--scenario", scenario, "-o", str(folder))
    done = suite.run(*words, within_s=RUN_WITHIN_S)
    reports = [*folder.rglob("checks.json")]
    assert len(reports) == 1, done.stdout + done.stderr
    return checks_in(reports[0])


def test_every_authorization_scenario_is_run_or_has_a_reason(suite: Program) -> None:
    """A new release of the suite cannot add one that this table does not decide about."""
    assert scenarios(suite) == {*APPLICABLE_SCENARIOS, *NOT_YET}
    assert not {*APPLICABLE_SCENARIOS} & {*NOT_YET}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", APPLICABLE_SCENARIOS)
def test_the_upstream_client_passes_its_scenarios(
    suite: Program, scenario: str, tmp_path: Path
) -> None:
    """It finds the token endpoint, authenticates as the suite asks, and refuses wrong metadata."""
    checks = run(suite, scenario, tmp_path)

    assert [check for check in checks if check.status == "FAILURE"] == []
    decisive = [check.id for check in checks if check.status == "SUCCESS"]
    assert (
        APPLICABLE_SCENARIOS[scenario] in decisive if APPLICABLE_SCENARIOS[scenario] else decisive
    )


async def main(url: str) -> None:
    """List the tools of the server at *url*; the exit code says whether there was an answer."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    process = ConnectingProcess(*await local_hosts(url))
    records = MemoryRecords()
    keyring = KeyRing.ephemeral()
    registry = CredentialRegistry(
        CredentialServices(
            records=records,
            shared_store=MemorySharedStore(),
            secrets=SecretCache(SecretStore(records, keyring)),
            keyring=keyring,
            outbound=process.client,
        )
    )
    table = msgspec.convert(settings(context), CredentialSettings)
    registry.apply(Config(resource="https://mcp.example.com/mcp", credentials={"suite": table}))
    process.credential = registry.named("acme", "suite", url)
    try:
        async with process.http(url).exchange("tools/list", {}) as exchange:
            answers = [message async for message in exchange.messages()]
        assert isinstance(answers[-1], UpstreamResult), answers
    finally:
        await process.connections.aclose()
        await registry.aclose()
        await process.client.aclose()


def settings(context: dict[str, Any]) -> dict[str, Any]:
    """Return the table of a credential from what the suite gives its clients."""
    os.environ["SUITE_SECRET"] = context.get("client_secret", "a-secret-that-nobody-asked-for")
    usual = {
        "type": "client",
        "tenants": ["acme"],
        "client_id": context.get("client_id", "conformance-test-client"),
    }
    if "private_key_pem" not in context:
        return {**usual, "client_secret": "env:SUITE_SECRET"}
    os.environ["SUITE_KEY"] = context["private_key_pem"]
    return {**usual, "method": "private_key_jwt", "private_key": "env:SUITE_KEY"}


async def local_hosts(url: str) -> set[str]:
    """Return the local hosts that an operator would have allowed: the suite picks the ports."""
    parts = urlsplit(url)
    hosts_named = {parts.netloc}
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{parts.scheme}://{parts.netloc}{METADATA}{parts.path}")
        if answer.status_code == 200:
            servers = answer.json().get("authorization_servers", [])
            hosts_named |= {urlsplit(server).netloc for server in servers}
    return hosts_named


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
