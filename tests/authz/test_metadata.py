"""The metadata document: where it is and what it says, to every caller."""

from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Router

from gatepost_authz.metadata import MetadataRoutes
from gatepost_authz.protected_resource import Resource
from tests.support.measuring import each

WELL_KNOWN = "/.well-known/oauth-protected-resource"
TENANTS = {"acme": ("https://id.acme.example",), "globex": ("https://id.globex.example/",)}


def client(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="https://h")


def router_of_one_resource(url: str = "https://h/mcp", **more: Any) -> Router:
    return Router(
        MetadataRoutes(
            Resource(url),
            authorization_servers=lambda tenant: ("https://id.example.com/",),
            scopes=("mcp:read",),
            **more,
        ).routes()
    )


def router_of_tenants() -> Router:
    return Router(
        MetadataRoutes(
            Resource("https://h/t/{tenant}/mcp"),
            authorization_servers=lambda tenant: TENANTS.get(tenant or "", ()),
        ).routes()
    )


@pytest.mark.requirement("A4", "A-01", "A-04", "A-05")
@pytest.mark.parametrize(
    ("url", "paths"),
    [
        ("https://h/mcp", [f"/mcp{WELL_KNOWN}", f"{WELL_KNOWN}/mcp"]),
        ("https://h/a/b/", [f"/a/b{WELL_KNOWN}", f"{WELL_KNOWN}/a/b/"]),
        ("https://h", [WELL_KNOWN]),
        ("https://h/", [WELL_KNOWN]),
    ],
)
async def test_every_metadata_location_returns_the_same_document(
    url: str, paths: list[str]
) -> None:
    """Clients try different locations."""
    async with client(router_of_one_resource(url)) as http:
        answers = [await http.get(path) for path in paths]

    assert {answer.content for answer in answers} == {answers[0].content}
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == {
            "resource": url,
            "authorization_servers": ["https://id.example.com/"],
            "scopes_supported": ["mcp:read"],
            "bearer_methods_supported": ["header"],
        }


async def test_a_resource_with_a_path_has_no_metadata_at_the_root() -> None:
    """A root document would describe the whole host."""
    async with client(router_of_one_resource()) as http:
        assert (await http.get(WELL_KNOWN)).status_code == 404


@pytest.mark.requirement("A-05")
async def test_metadata_members_without_a_value_are_omitted() -> None:
    """RFC 9728 section 3.2 omits empty arrays; name and documentation are optional."""
    bare = MetadataRoutes(
        Resource("https://h/mcp"), authorization_servers=lambda tenant: ("https://i",)
    )
    async with client(Router(bare.routes())) as http:
        assert "scopes_supported" not in (await http.get(f"/mcp{WELL_KNOWN}")).json()
    named = router_of_one_resource(name="Invoices", documentation="https://docs.example.com")
    async with client(named) as http:
        document = (await http.get(f"/mcp{WELL_KNOWN}")).json()

    assert document["resource_name"] == "Invoices"
    assert document["resource_documentation"] == "https://docs.example.com"


@pytest.mark.requirement("W18")
async def test_the_metadata_can_be_read_from_every_origin() -> None:
    """The answer allows every origin and caching, and has `nosniff`."""
    async with client(router_of_one_resource()) as http:
        answer = await http.get(f"/mcp{WELL_KNOWN}", headers={"Origin": "https://any.example"})
        preflight = await http.options(
            f"/mcp{WELL_KNOWN}",
            headers={
                "Origin": "https://any.example",
                "Access-Control-Request-Method": "GET",
                "Access-Control-Request-Headers": "mcp-protocol-version",
            },
        )

    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["cache-control"] == "public, max-age=300"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert preflight.headers["access-control-allow-headers"] == "*, Authorization"
    assert preflight.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"


async def test_head_returns_the_headers_of_get_without_a_body() -> None:
    """The length is that of the document."""
    async with client(router_of_one_resource()) as http:
        whole = await http.get(f"/mcp{WELL_KNOWN}")
        head = await http.head(f"/mcp{WELL_KNOWN}")

    assert head.content == b""
    assert head.headers == whole.headers


@pytest.mark.requirement("W20")
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"])
async def test_other_methods_get_405_with_the_allowed_methods(method: str) -> None:
    """RFC 9110 section 15.5.6 requires the `Allow` header."""
    async with client(router_of_one_resource()) as http:
        answer = await http.request(method, f"/mcp{WELL_KNOWN}")

    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.requirement("W19")
@pytest.mark.parametrize("value", ["Bearer stale", "garbage", "", "Basic YTpi"])
async def test_the_metadata_ignores_credentials(value: str) -> None:
    """A client with an expired token must still find the issuer."""
    async with client(router_of_one_resource()) as http:
        plain = await http.get(f"/mcp{WELL_KNOWN}")
        answer = await http.get(f"/mcp{WELL_KNOWN}", headers={"Authorization": value})

    assert (answer.status_code, answer.content) == (200, plain.content)


@pytest.mark.requirement("W13", "W14")
async def test_the_metadata_contains_no_part_of_the_request() -> None:
    """The resource comes from the configuration, so a foreign `Host` has no effect."""
    async with client(router_of_one_resource()) as http:
        plain = await http.get(f"/mcp{WELL_KNOWN}")
        answer = await http.get(
            f"/mcp{WELL_KNOWN}",
            headers={"Host": "evil.example", "X-Forwarded-Host": "evil.example"},
        )

    assert answer.content == plain.content


async def test_each_tenant_has_its_own_metadata() -> None:
    """Both locations have the tenant's resource and issuers."""
    async with client(router_of_tenants()) as http:
        for tenant, issuers in TENANTS.items():
            answers = [
                await http.get(f"/t/{tenant}/mcp{WELL_KNOWN}"),
                await http.get(f"{WELL_KNOWN}/t/{tenant}/mcp"),
            ]

            assert {answer.content for answer in answers} == {answers[0].content}
            assert answers[0].json()["resource"] == f"https://h/t/{tenant}/mcp"
            assert answers[0].json()["authorization_servers"] == list(issuers)


@each("inside", [False, True])
@each("tenant", ["initech", "ACME", "-", "a" * 64, "%00", "acme%0a"])
async def test_an_unknown_tenant_is_answered_like_any_unknown_path(
    tenant: str, inside: bool
) -> None:
    """A caller cannot find out which tenants exist."""
    router = router_of_tenants()
    app: Any = Starlette(routes=router.routes) if inside else router
    async with client(app) as http:
        answers = [
            await http.get(path)
            for path in (
                f"/t/{tenant}/mcp{WELL_KNOWN}",
                f"{WELL_KNOWN}/t/{tenant}/mcp",
                "/nowhere/at/all",
            )
        ]

    assert {(answer.status_code, answer.content) for answer in answers} == {
        (404, answers[-1].content)
    }
    assert answers[0].headers == answers[-1].headers


async def test_the_app_can_answer_for_unknown_metadata_paths() -> None:
    """An app that challenges every unknown path also challenges these."""

    async def teapot(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    routes = MetadataRoutes(
        Resource("https://h/t/{tenant}/mcp"),
        authorization_servers=lambda tenant: (),
        unknown=teapot,
    )
    async with client(Router(routes.routes())) as http:
        assert (await http.get(f"/t/acme/mcp{WELL_KNOWN}")).status_code == 418


async def test_a_new_list_of_issuers_is_served_at_once() -> None:
    """A reload may change the issuers."""
    issuers = ["https://one.example"]
    metadata = MetadataRoutes(
        Resource("https://h/mcp"), authorization_servers=lambda tenant: tuple(issuers)
    )
    async with client(Router(metadata.routes())) as http:
        before = (await http.get(f"/mcp{WELL_KNOWN}")).json()
        issuers[:] = ["https://two.example"]
        after = (await http.get(f"/mcp{WELL_KNOWN}")).json()

    assert before["authorization_servers"] == ["https://one.example"]
    assert after["authorization_servers"] == ["https://two.example"]


@pytest.mark.requirement("W21")
def test_a_scope_that_does_not_fit_a_challenge_is_refused() -> None:
    """Clients request the scopes that the metadata lists."""
    with pytest.raises(ValueError, match="cannot stand in a challenge"):
        MetadataRoutes(
            Resource("https://h/mcp"), authorization_servers=lambda tenant: (), scopes=('a"',)
        )
