"""The metadata document: where it is and what it says, to every caller."""

from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Router

from gatepost_authz.config import Resource
from gatepost_authz.metadata import MetadataRoutes
from tests.support.measuring import each

WELL_KNOWN = "/.well-known/oauth-protected-resource"
TENANTS = {"acme": ("https://id.acme.example",), "globex": ("https://id.globex.example/",)}


def client(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="https://h")


def single(url: str = "https://h/mcp", **more: Any) -> Router:
    return Router(
        MetadataRoutes(
            Resource(url),
            authorization_servers=lambda tenant: ("https://id.example.com/",),
            scopes=("mcp:read",),
            **more,
        ).routes()
    )


def many() -> Router:
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
async def test_every_location_answers_the_same_document(url: str, paths: list[str]) -> None:
    """Clients probe different places, and all must find the resource they called."""
    async with client(single(url)) as http:
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


async def test_a_resource_with_a_path_leaves_the_root_alone() -> None:
    """The root document speaks for the whole host, which this resource is not."""
    async with client(single()) as http:
        assert (await http.get(WELL_KNOWN)).status_code == 404


@pytest.mark.requirement("A-05")
async def test_members_without_a_value_are_left_out() -> None:
    """RFC 9728 section 3.2: empty arrays are omitted; what is human readable may be given."""
    bare = MetadataRoutes(
        Resource("https://h/mcp"), authorization_servers=lambda tenant: ("https://i",)
    )
    async with client(Router(bare.routes())) as http:
        assert "scopes_supported" not in (await http.get(f"/mcp{WELL_KNOWN}")).json()
    named = single(name="Invoices", documentation="https://docs.example.com")
    async with client(named) as http:
        document = (await http.get(f"/mcp{WELL_KNOWN}")).json()

    assert document["resource_name"] == "Invoices"
    assert document["resource_documentation"] == "https://docs.example.com"


@pytest.mark.requirement("W18")
async def test_any_page_in_a_browser_may_read_it() -> None:
    """Open to every origin, cacheable, and never sniffed into something else."""
    async with client(single()) as http:
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


async def test_head_answers_like_get_without_the_body() -> None:
    """The length is that of the document."""
    async with client(single()) as http:
        whole = await http.get(f"/mcp{WELL_KNOWN}")
        head = await http.head(f"/mcp{WELL_KNOWN}")

    assert head.content == b""
    assert head.headers == whole.headers


@pytest.mark.requirement("W20")
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"])
async def test_other_methods_are_named_as_not_allowed(method: str) -> None:
    """405 with what would be allowed (RFC 9110 section 15.5.6)."""
    async with client(single()) as http:
        answer = await http.request(method, f"/mcp{WELL_KNOWN}")

    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.requirement("W19")
@pytest.mark.parametrize("value", ["Bearer stale", "garbage", "", "Basic YTpi"])
async def test_credentials_are_not_looked_at(value: str) -> None:
    """A client with a stale token must still find out where to get a new one."""
    async with client(single()) as http:
        plain = await http.get(f"/mcp{WELL_KNOWN}")
        answer = await http.get(f"/mcp{WELL_KNOWN}", headers={"Authorization": value})

    assert (answer.status_code, answer.content) == (200, plain.content)


@pytest.mark.requirement("W13", "W14")
async def test_nothing_of_the_request_gets_into_the_document() -> None:
    """The resource is configuration: a foreign Host or a forwarded header changes nothing."""
    async with client(single()) as http:
        plain = await http.get(f"/mcp{WELL_KNOWN}")
        answer = await http.get(
            f"/mcp{WELL_KNOWN}",
            headers={"Host": "evil.example", "X-Forwarded-Host": "evil.example"},
        )

    assert answer.content == plain.content


async def test_each_tenant_has_its_own_document() -> None:
    """Resource and issuers are the tenant's, at both locations."""
    async with client(many()) as http:
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
async def test_an_unknown_tenant_looks_like_any_unknown_path(tenant: str, inside: bool) -> None:
    """A caller cannot find out which tenants there are by asking for their documents."""
    router = many()
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


async def test_the_answer_for_unknown_paths_can_be_the_apps_own() -> None:
    """An app that challenges every unknown path challenges these too."""

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
    """Issuers are swapped while the server runs."""
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
def test_a_scope_that_no_challenge_could_carry_is_refused() -> None:
    """What clients read here they ask for, and are challenged with."""
    with pytest.raises(ValueError, match="cannot stand in a challenge"):
        MetadataRoutes(
            Resource("https://h/mcp"), authorization_servers=lambda tenant: (), scopes=('a"',)
        )
