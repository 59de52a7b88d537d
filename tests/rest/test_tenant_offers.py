"""Tools of tenants over REST, and what the dashboard and the metrics make of them."""

from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from gatepost.rest.tool_descriptions import MAX_TOOLS
from gatepost.telemetry.exposition import registry_of
from gatepost.tools.offers.tenant_offers import Agent
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server
from tests.support.tools import MemorySource, ToolUpstream

NAME = "mcp_crm__find"
source = MemorySource()
ours, theirs = ToolUpstream(word="ours"), ToolUpstream(word="theirs", server_id="id-2")


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    source.put("acme", ours.tool("find", "Find ours."))
    source.put("globex", theirs.tool("find", "Find theirs."))
    with running_server(
        idp,
        [issuer_settings(idp)],
        source_of=lambda services, config: source,
        tenancy={"create_on_first_use": True},
    ) as running:
        yield running


def client_of(server: Server, tenant: str, **claims: str) -> RestClient:
    return RestClient(server, server.token(org_id=tenant, **claims))


def description_of(rest_client: RestClient, name: str = NAME) -> str:
    [description] = [
        tool["description"] for tool in rest_client.tools().json if tool["name"] == name
    ]
    return str(description)


def test_tenants_with_the_same_names_see_their_own_offers(server: Server) -> None:
    """Neither tenant gets the descriptor or the list of the other."""
    acme, globex = client_of(server, "acme"), client_of(server, "globex")
    for _ in range(2):
        assert description_of(acme) == "Find ours."
        assert description_of(globex) == "Find theirs."
    assert acme.names() == globex.names()
    assert acme.call(NAME).json["result"] == "ours find"
    assert globex.call(NAME).json["result"] == "theirs find"
    assert client_of(server, "initech").call(NAME).error == (404, "not_found")


def test_a_changed_definition_is_shown(server: Server) -> None:
    """Its name is the same."""
    source.put("hooli", ours.tool("find", "Before."))
    hooli = client_of(server, "hooli")
    assert description_of(hooli) == "Before."
    source.put("hooli", ours.tool("find", "After."))
    assert description_of(hooli) == "After."


@pytest.mark.requirement("E9")
def test_tools_outside_an_agents_capabilities_are_unknown(server: Server) -> None:
    """The list leaves them out, and calls get the error of an unknown tool."""
    agents = {"agent": Agent(frozenset({ours.capability}))}
    source.put("pied", ours.tool("find"), agents=agents)
    agent = client_of(server, "pied", client_id="agent")

    assert agent.names() == [NAME]
    hidden, unknown = agent.call("whoami"), agent.call("nothere")
    assert hidden.error == unknown.error == (404, "not_found")
    assert hidden.raw.body.replace(b"whoami", b"X") == unknown.raw.body.replace(b"nothere", b"X")


@pytest.mark.requirement("O10")
def test_too_many_tools_name_the_capabilities_of_upstreams(server: Server) -> None:
    """An agent with fewer capabilities gets a list."""
    many = [ours.tool(f"t{number}") for number in range(MAX_TOOLS)]
    agents = {"agent": Agent(frozenset({theirs.capability}))}
    source.put("umbrella", *many, theirs.tool("last"), agents=agents)
    refused = client_of(server, "umbrella").tools()

    assert refused.error == (409, "too_many_tools")
    assert f"{ours.capability} ({MAX_TOOLS})" in refused.json["message"]
    assert f"{theirs.capability} (1)" in refused.json["message"]
    assert "pack:demo" in refused.json["message"]
    assert client_of(server, "umbrella", client_id="agent").names() == ["mcp_crm__last"]


def test_without_the_store_every_request_gets_503(server: Server) -> None:
    """This includes a tool of the configuration."""
    source.drop()
    source.down = True
    try:
        assert client_of(server, "acme").tools().error == (503, "unavailable")
        assert client_of(server, "acme").call("whoami").error == (503, "unavailable")
    finally:
        source.down = False
    assert client_of(server, "acme").call(NAME).status == 200


def test_tool_names_of_tenants_are_no_metric_labels(server: Server) -> None:
    """All tools of tenants share one label, because a tenant decides how many there are."""
    assert client_of(server, "acme").call(NAME).status == 200
    server.services.call_batch.flush()
    registry = registry_of(server.shared_metrics, version="1")
    page = generate_latest(registry).decode()

    assert 'gatepost_tool_calls_total{outcome="success",tool="other"}' in page
    assert "mcp_crm" not in page
