"""Where the REST routes are: beside the endpoint, and once for each tenant."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gatepost_authz.protected_resource import Resource, SiblingPaths
from tests.support.client import RestClient, challenge_of
from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.server import Server, check_errors, issuer_settings, running_server

BASE_URLS = [
    ("https://h.example/mcp", ""),
    ("https://h.example", ""),
    ("https://h.example/", ""),
    ("https://h.example/a/b/mcp", "/a/b"),
    ("https://h.example/a/mcp/", "/a/mcp"),
    ("https://h.example/t/{tenant}/mcp", "/t/{tenant}"),
    ("https://h.example/mcp/{tenant}", "/mcp/{tenant}"),
    ("https://h.example/{tenant}", "/{tenant}"),
]


@pytest.mark.parametrize(("url", "base"), BASE_URLS)
def test_the_routes_are_at_paths_relative_to_the_endpoint(url: str, base: str) -> None:
    """`tools`, seen from the endpoint; below it where the tenant is its last segment."""
    assert SiblingPaths(Resource(url)).base == base


TENANTS = [
    ("/t/acme/tools", "acme"),
    ("/t/acme/tool/echo/call", "acme"),
    ("/t/Acme/tools", None),
    ("/t/acme", None),
    ("/t/acme/", None),
    ("/t/acme//tools", None),
    ("/t//tools", None),
    ("/x/acme/tools", None),
    ("/t/acme/tools\n", None),
    ("/t/acme\n/tools", None),
]


@each(("path", "tenant"), TENANTS)
def test_a_path_next_to_a_tenants_endpoint_belongs_to_that_tenant(
    path: str, tenant: str | None
) -> None:
    """Any other path belongs to no tenant."""
    target = SiblingPaths(Resource("https://h.example/t/{tenant}/mcp")).locate(path)

    assert (target.tenant if target else None) == tenant


@pytest.fixture(scope="module")
def tenants(idp: Idp) -> Iterator[Server]:
    """Yield a server with a resource for each tenant."""
    free = {"create_on_first_use": True}
    with running_server(idp, [issuer_settings(idp)], "/t/{tenant}/mcp", tenancy=free) as server:
        yield server


def test_each_tenant_has_the_routes_at_its_own_resource(tenants: Server) -> None:
    """The token's audience stays the resource; the neighbour's routes refuse it."""
    token = tenants.token(tenant="acme")
    own = RestClient(tenants, token, base="/t/acme")
    neighbour = RestClient(tenants, token, base="/t/globex")

    assert own.call("whoami").json["tenant"] == "acme"
    assert own.call("whoami").json["resource"].endswith("/t/acme/mcp")
    assert "echo" in own.names()
    assert neighbour.tools().error == neighbour.call("whoami").error == (401, "invalid_token")
    assert RestClient(tenants, token).tools().error == (401, "invalid_token")


def test_challenges_name_the_tenants_own_document(tenants: Server) -> None:
    """The client then signs in at this tenant's issuer."""
    refused = RestClient(tenants, "", base="/t/acme").tools()
    token = tenants.token(tenant="acme", scope="")
    stepping = RestClient(tenants, token, base="/t/acme").call("save_csv", {})

    for answer, status in ((refused, 401), (stepping, 403)):
        assert answer.status == status
        assert "/t/acme/mcp/.well-known/oauth-protected-resource" in challenge_of(answer.raw)


def test_the_public_document_names_no_tenant_and_no_tool(tenants: Server, server: Server) -> None:
    """Any client may read it, so it describes the routes and nothing behind them."""
    templated = RestClient(tenants, "").send("GET", "/openapi.json").json
    single = RestClient(server, "").send("GET", "/openapi.json").json

    assert set(templated["paths"]) == {
        "/t/{tenant}/tools", "/t/{tenant}/tool/{name}/call", "/health",
    }  # fmt: skip
    assert set(single["paths"]) == {"/tools", "/tool/{name}/call", "/health"}
    for document in (templated, single):
        text = json.dumps(document)
        assert not [word for word in ("acme", "globex", "create_ticket", "echo") if word in text]


CLASHING_PATHS: list[Any] = [
    "/tools", "/t/{tenant}/tools", "/health", "/readyz", "/openapi.json", "/favicon.ico",
]  # fmt: skip


@pytest.mark.parametrize("path", CLASHING_PATHS)
def test_check_refuses_an_endpoint_at_the_path_of_another_route(idp: Idp, path: str) -> None:
    """Requests would never reach one of the two."""
    assert "config.E040" in check_errors([issuer_settings(idp)], path)
    assert "config.E040" not in check_errors([issuer_settings(idp)], f"{path}/mcp")
