"""Real MCP servers behind the gate: listed, called and recorded like tools of its own."""

import time
from collections.abc import Iterator
from typing import Any

import fastmcp
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

from tests.support.client import RestClient
from tests.support.issuers import AsgiServer, Idp
from tests.support.server import Server, issuer_settings, running_server

LISTED_S = 20
deleted: list[int] = []


def crm() -> fastmcp.FastMCP[Any]:
    """Return a FastMCP server as an author would write it without Gatepost."""
    server: fastmcp.FastMCP[Any] = fastmcp.FastMCP("crm")

    @server.tool
    async def get_customer(number: int) -> dict[str, Any]:
        """Look a customer up."""
        return {"number": number, "name": "Ada"}

    @server.tool(annotations=ToolAnnotations(readOnlyHint=True))
    async def delete_customer(number: int) -> str:
        """Delete a customer, and claim to read only."""
        deleted.append(number)
        return f"deleted {number}"

    @server.tool
    async def fail() -> str:
        """Fail."""
        raise ValueError("the customer is unknown")

    @server.resource("crm://customers/{number}")
    def customer(number: str) -> str:
        return f"customer {number}"

    @server.resource("crm://about")
    def about() -> str:
        return "A small CRM."

    @server.resource("ui://crm/customer", mime_type="text/html;profile=mcp-app")
    def page() -> str:
        return "<p>A customer"

    @server.prompt
    def greet(name: str) -> str:
        """Greet a customer."""
        return f"Say hello to {name}"

    return server


def books_server() -> MCPServer:
    """Return a server of the official SDK."""
    server = MCPServer("books")

    @server.tool()
    async def count(ctx: Context[Any, Any], upto: int) -> int:
        """Count with progress."""
        for number in range(upto):
            await ctx.report_progress(number + 1, upto)
        return upto

    return server


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    """Yield a gate in front of both servers; the tenant globex has only the books."""
    apps = {
        "crm": crm().http_app(path="/mcp"),
        "books": books_server().streamable_http_app(json_response=True),
    }
    running = {name: AsgiServer(app, lifespan="on").start() for name, app in apps.items()}
    hosts = [server.url.split("/")[2] for server in running.values()]
    tables = [
        {
            "name": "crm",
            "tenants": ["acme"],
            "url": f"{running['crm'].url}/mcp",
            "scopes": {"*": ["crm:use"], "delete_*": ["crm:admin"]},
        },
        {"name": "books", "tenants": ["*"], "url": f"{running['books'].url}/mcp"},
    ]
    try:
        with running_server(
            idp,
            [issuer_settings(idp)],
            tenancy={"create_on_first_use": True},
            network={"allow_hosts": hosts},
            upstreams=tables,
        ) as gate:
            yield gate
    finally:
        for upstream_server in running.values():
            upstream_server.stop()


def client_of(
    server: Server, tenant: str, scopes: str = "crm:use crm:admin mcp:books"
) -> RestClient:
    return RestClient(server, server.token(org_id=tenant, scope=scopes))


def listed_tools(rest_client: RestClient, name: str) -> set[str]:
    """Return the names of the tools as soon as *name* is among them."""
    until = time.monotonic() + LISTED_S
    while name not in (names := set(rest_client.names())):
        assert time.monotonic() < until, names
    return names


@pytest.mark.requirement("E2")
def test_tools_of_an_upstream_are_listed_and_called(server: Server) -> None:
    """Their names are `mcp_{server}__{tool}`."""
    acme = client_of(server, "acme")
    names = listed_tools(acme, "mcp_crm__get_customer")
    assert {"mcp_crm__delete_customer", "mcp_crm__fail", "echo"} <= names
    answer = acme.call("mcp_crm__get_customer", {"number": 7})
    assert (answer.status, answer.json) == (200, {"number": 7, "name": "Ada"})


def test_rest_names_the_tool_that_a_page_calls_by_its_own_name(server: Server) -> None:
    """The page of an MCP App knows only the server's own name; MCP finds it, REST names it."""
    acme = client_of(server, "acme")
    listed_tools(acme, "mcp_crm__get_customer")
    answer = acme.call("get_customer", {"number": 7})
    assert answer.error == (404, "not_found")
    assert "has the name mcp_crm__get_customer" in answer.json["message"]
    globex = client_of(server, "globex")
    assert globex.call("get_customer").json["message"] == "Unknown tool: get_customer"


def test_a_tenant_has_only_its_own_upstreams(server: Server) -> None:
    """Another tenant's tool is unknown."""
    globex = client_of(server, "globex")
    assert "mcp_crm__get_customer" not in listed_tools(globex, "mcp_books__count")
    assert globex.call("mcp_crm__get_customer", {"number": 7}).error == (404, "not_found")


def test_a_tool_needs_the_scopes_of_all_patterns_that_match(server: Server) -> None:
    """A pattern for deletions adds to the one for everything."""
    listed_tools(client_of(server, "acme"), "mcp_crm__get_customer")
    user = client_of(server, "acme", "crm:use")
    assert user.call("mcp_crm__get_customer", {"number": 7}).status == 200
    assert user.call("mcp_crm__delete_customer", {"number": 7}).status == 403
    assert deleted == []


@pytest.mark.requirement("E12")
def test_a_failed_tool_says_why(server: Server) -> None:
    """The caller gets the tool's own sentence."""
    acme = client_of(server, "acme")
    listed_tools(acme, "mcp_crm__fail")
    answer = acme.call("mcp_crm__fail")
    assert "the customer is unknown" in str(answer.json)
