"""What a suspension and an erasure end of a tenant's upstreams, and what `/metrics` counts."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from gatepost.policy.revocation.revocation_records import suspension
from gatepost.runtime.erasure import TenantErasure
from gatepost.telemetry.exposition import registry_of
from gatepost.upstreams.catalogue import Catalogue
from gatepost.upstreams.management_audit import ManagementActor
from gatepost.upstreams.registration_changes import ServerChanges
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.measuring import eventually, is_alive
from tests.support.server import Server, issuer_settings, running_server

PROGRAM = """
import os
from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")


@server.tool()
def pid() -> int:
    return os.getpid()


server.run()
"""
WITHIN_S = 40


@pytest.fixture(scope="module")
def server(idp: Idp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a gate with one stdio server, which has one process for each of two tenants."""
    script = tmp_path_factory.mktemp("program") / "notes.py"
    script.write_text(PROGRAM, encoding="utf-8")
    table = {
        "name": "notes",
        "tenants": ["acme", "globex"],
        "command": sys.executable,
        "args": [str(script)],
    }
    with running_server(
        idp,
        [issuer_settings(idp)],
        tenancy={"create_on_first_use": True},
        upstreams=[table],
        scopes={"admin": "gatepost:admin"},
    ) as gate:
        yield gate


def process_of(server: Server, tenant: str) -> int:
    """Return the process that serves a tenant, which its tool names."""
    rest_client = RestClient(server, server.token(org_id=tenant, scope="mcp:notes"))
    eventually(lambda: "mcp_notes__pid" in rest_client.names(), within=WITHIN_S)
    answer = rest_client.call("mcp_notes__pid")
    assert answer.status == 200, answer.json
    return int(answer.json["result"])


def test_calls_are_counted_by_the_names_of_the_configuration(server: Server) -> None:
    """`/metrics` shows the counts, and early refreshes depend on them."""
    (notes,) = server.services.upstreams.services.configured.servers("acme")

    def is_counted() -> bool:
        # Counted since the last fetch, which may come between.
        process_of(server, "acme")
        return server.services.upstreams.services.refresher._plans["acme"][notes.id].calls >= 1

    eventually(is_counted, within=WITHIN_S)
    server.run(server.services.upstreams.sample(server.services.meter))
    metrics_page = generate_latest(registry_of(server.shared_metrics, version="1")).decode()

    assert 'gatepost_upstream_calls_total{result="answered",upstream="notes"}' in metrics_page
    assert 'gatepost_upstream_circuits_open{upstream="notes"} 0.0' in metrics_page


def test_a_registered_server_counts_as_other(server: Server) -> None:
    """Its name belongs to its tenant and is no label."""
    upstreams = server.services.upstreams.services
    breaker = upstreams.calls.health.breaker_for("acme", "somebody-elses")
    for _ in range(5):
        breaker.failed("unreachable", "It is down.", upstreams.calls.health.clock() - 60)
    server.run(server.services.upstreams.sample(server.services.meter))
    metrics_page = generate_latest(registry_of(server.shared_metrics, version="1")).decode()

    assert 'gatepost_upstream_calls_total{result="failed",upstream="other"} 5.0' in metrics_page
    assert 'gatepost_upstream_circuits_open{upstream="other"} 1.0' in metrics_page
    assert "somebody-elses" not in metrics_page


def test_a_suspension_ends_the_programs_of_its_tenant_alone(server: Server) -> None:
    """No call starts them again, and an erasure then removes all data of the tenant."""
    ours, theirs = process_of(server, "acme"), process_of(server, "globex")
    upstreams, records = server.services.upstreams.services, server.services.records
    registered = server.run(register(server, "globex"))
    assert server.run(records.tenant_data.count("globex")).get("entries", 0) > 3

    order = suspension("globex", now=time.time(), by="test", reason="")
    server.run(records.revocations.put(order))
    server.run(server.services.revocations.read_changes())
    eventually(lambda: not is_alive(theirs), within=WITHIN_S)
    server.run(upstreams.refresher.start_due())

    assert is_alive(ours)
    assert "globex" not in upstreams.refresher._plans

    root = Path(server.config.workspace.root)
    erasure = TenantErasure("globex", records, server.services.shared_store, root)
    server.run(erasure.run(lambda line: None))

    assert server.run(records.tenant_data.count("globex")).keys() <= {"audit_records"}
    assert server.run(upstreams.store.server("globex", registered)) is None
    assert server.run(upstreams.store.catalogues.get("globex", registered)) is None


async def register(server: Server, tenant: str) -> str:
    """Register a server with encrypted values, a catalogue and pins; return its id."""
    upstreams = server.services.upstreams.services
    changes = ServerChanges(
        name="crm",
        url="https://mcp.example.com/mcp",
        status="disabled",
        api_key="a-key-of-the-tenant",
        headers={"X-Team": "a-value-of-the-tenant"},
    )
    registered_server = await upstreams.administration.add(
        tenant, changes, ManagementActor(operator="test")
    )
    await upstreams.store.catalogues.put(
        tenant, Catalogue(server_id=registered_server.id, fetched_at=1.0)
    )
    return registered_server.id
