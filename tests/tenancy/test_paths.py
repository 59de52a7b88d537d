"""Second shape: an issuer for each tenant, and the tenant in the resource's path."""

import json
from collections.abc import Iterator

import pytest

from tests.support.client import WELL_KNOWN, challenge_of, comparable_answer, failure, message
from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.server import (
    Server,
    check_errors,
    check_problems,
    issuer_settings,
    running_server,
)

TEMPLATE = "/t/{tenant}/mcp"
TENANT_NAMES = ["acme", "nobody"]
"""A tenant that exists, and one that does not."""


def tables(idp: Idp) -> list[dict[str, object]]:
    return [
        issuer_settings(idp, "a", tenant={"value": "acme"}),
        issuer_settings(idp, "g", tenant={"value": "globex"}),
    ]


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    with running_server(idp, tables(idp), TEMPLATE) as server:
        yield server


def path(tenant: str) -> str:
    return f"/t/{tenant}/mcp"


def metadata_paths(tenant: str) -> list[str]:
    """Return the paths below the resource and with the prefix of RFC 9728 section 3.1."""
    return [f"{path(tenant)}{WELL_KNOWN}", f"{WELL_KNOWN}{path(tenant)}"]


@pytest.mark.requirement("A-01", "A-04", "A-05", "A4")
@pytest.mark.parametrize(("tenant", "name"), [("acme", "a"), ("globex", "g")])
def test_each_tenant_has_a_document_of_its_own(server: Server, tenant: str, name: str) -> None:
    """It names only this tenant's resource and issuer, and both addresses give the same bytes."""
    under, inserted = [server.client.send("GET", where) for where in metadata_paths(tenant)]
    document = json.loads(under.body)

    assert (under.status, under.body) == (200, inserted.body)
    assert comparable_answer(under) == comparable_answer(inserted)
    assert document["resource"] == f"{server.client.origin}{path(tenant)}"
    assert document["authorization_servers"] == [server.idp.issuer(name)]


@pytest.mark.requirement("A4")
def test_the_root_has_no_document_where_each_tenant_has_its_own(server: Server) -> None:
    """The root path is an unknown path."""
    root, other = server.client.send("GET", WELL_KNOWN), server.client.send("GET", "/nothing")

    assert (root.status, comparable_answer(root)) == (401, comparable_answer(other))


@pytest.mark.requirement("A-02", "A-03", "A3")
@pytest.mark.parametrize("tenant", ["acme", "globex"])
def test_the_challenge_names_the_tenants_own_document(server: Server, tenant: str) -> None:
    """A client of this tenant finds this tenant's issuer, at an address that answers."""
    answer = server.client.call(None, path=path(tenant))
    named = f"{server.client.origin}{path(tenant)}{WELL_KNOWN}"

    assert answer.status == 401
    assert challenge_of(answer) == f'Bearer resource_metadata="{named}", error="invalid_token"'


@pytest.mark.requirement("A5", "A-13")
@pytest.mark.parametrize(("tenant", "name"), [("acme", "a"), ("globex", "g")])
def test_a_token_is_accepted_at_its_tenants_resource(
    server: Server, tenant: str, name: str
) -> None:
    """Issuer, audience and path say the same."""
    caller = server.client.whoami(server.token(name, tenant=tenant), path=path(tenant))

    assert caller["tenant"] == tenant
    assert caller["resource"] == f"{server.client.origin}{path(tenant)}"


@pytest.mark.requirement("A5", "A-13", "A-15", "C14", "C29")
@pytest.mark.parametrize("tenant", ["globex", "nobody"])
def test_a_token_of_one_tenant_is_refused_by_another(server: Server, tenant: str) -> None:
    """Its audience is refused, and with a matching audience its tenant is."""
    origin, elsewhere = server.client.origin, path(tenant)
    bent = [f"{origin}{path('acme')}", f"{origin}{elsewhere}", f"{origin}/t/{{tenant}}/mcp"]
    with server.nothing_runs():
        answers = [
            server.client.call(server.token("a", tenant="acme"), path=elsewhere),
            server.client.call(server.token("a", aud=bent[1]), path=elsewhere),
            server.client.call(server.token("a", aud=bent), path=elsewhere),
            server.client.call(server.token("a", aud=bent, org_id=tenant), path=elsewhere),
        ]

    assert {answer.status for answer in answers} == {401}
    assert {json.loads(answer.body)["error"] for answer in answers} == {"invalid_token"}


@pytest.mark.requirement("A5", "C14")
@pytest.mark.parametrize("aud", ["/t/{tenant}/mcp", "/t/acme", "/t/", "", "/mcp", "/t/Acme/mcp"])
def test_no_other_address_of_the_server_is_a_valid_audience(server: Server, aud: str) -> None:
    """Neither the template, a parent path nor the origin is a valid audience."""
    token = server.token("a", aud=f"{server.client.origin}{aud}")

    with server.nothing_runs():
        assert server.client.call(token, path=path("acme")).status == 401


def test_a_verdict_holds_for_the_resource_it_was_made_for(server: Server) -> None:
    """A token accepted a moment ago at its own resource is still refused at the neighbour's."""
    token = server.token("a", tenant="acme")
    server.client.whoami(token, path=path("acme"))

    assert server.client.call(token, path=path("globex")).status == 401
    assert server.client.call(token, path=path("acme")).status == 200


METHODS = ["GET", "HEAD", "OPTIONS", "POST", "DELETE"]


@each("position", [0, 1])
@each("method", METHODS)
@each("signed_in", [False, True])
def test_the_document_of_an_unknown_tenant_is_like_any_unknown_path(
    server: Server, position: int, method: str, signed_in: bool
) -> None:
    """A client that tries names learns no more than from a path that does not exist."""
    token = server.token("a", tenant="acme") if signed_in else None
    unknown = metadata_paths("nobody")[position]
    # The same place with no tenant that could exist, and one that no route knows.
    others = [metadata_paths("Nobody")[position], unknown.replace("/t/", "/x/")]
    seen = [
        comparable_answer(server.client.send(method, where, token=token))
        for where in (unknown, *others)
    ]

    assert seen[0][0] == 401
    assert seen[0] == seen[1] == seen[2]


TOKEN_CASES = {
    "nobody signed in": None,
    "garbage": "garbage",
    "another tenant's token": "globex",
}


@each("who", TOKEN_CASES)
@each("method", ["POST", "GET", "DELETE", "PUT"])
def test_the_endpoint_does_not_tell_which_tenants_there_are(
    server: Server, who: str, method: str
) -> None:
    """
    Endpoints of known and unknown tenants answer alike, apart from the name in the request.

    The challenge names a document for both. That document is public (RFC 9728: clients begin
    without a token), so a client that knows a tenant's name can learn that the tenant exists.
    No other answer may tell it, and no answer lists the names.
    """
    credential = TOKEN_CASES[who]
    token = server.token("g", tenant="globex") if credential == "globex" else credential
    seen = []
    for tenant in TENANT_NAMES:
        # With GET and the like too: the gate comes before the verb.
        body = message("ping") if method == "POST" else b""
        answer = server.client.send(method, path(tenant), body=body, token=token)
        seen.append(comparable_answer(answer, tenant=tenant))

    assert seen[0][0] == 401
    assert seen[0] == seen[1]


@pytest.mark.parametrize("where", ["/", "/readyz", "/health", "/nowhere"])
def test_no_public_page_lists_the_tenants(server: Server, where: str) -> None:
    """No page lists their ids, or their issuers, whose names often contain the ids."""
    answer = server.client.send("GET", where)
    text = f"{answer.headers}{answer.body!r}"

    assert not [name for name in ("acme", "globex", server.idp.base) if name in text]


def test_readyz_counts_the_usable_issuers_without_names(server: Server) -> None:
    """An operator sees an outage without the names."""
    server.client.whoami(server.token("a", tenant="acme"), path=path("acme"))
    report = json.loads(server.client.send("GET", "/readyz").body)

    assert report["status"] == "ok"
    assert sum(report["issuers"].values()) == 2
    assert report["issuers"]["ready"] >= 1


HOSTILE_PATHS = [
    "/t/../mcp", "/t/./mcp", "/t//mcp", "/t/mcp", "/t/Acme/mcp", "/t/ACME/mcp", "/t/acme%2f/mcp",
    "/t/acme%2F..%2Fglobex/mcp", "/t/%2e%2e/mcp", "/t/globex/../acme/mcp", "/t/acme/mcp/",
    "/t/acme/mcp%0a", "/t/acme%0a/mcp", "/t/acme%00/mcp", "/t/acme%20/mcp", "/t/acme;x/mcp",
    "/t/acme//mcp", "//t/acme/mcp", "/T/acme/mcp", "/t/acme/MCP", "/t/-acme/mcp",
    "/t/acm%C3%A9/mcp",
    "/t/{tenant}/mcp", "/t/%7Btenant%7D/mcp", "/t/acme.evil/mcp", "/t/acme%5c/mcp",
    "/t/acme/mcp%20",
    "/t/" + "a" * 64 + "/mcp", "/t/" + "a" * 8000 + "/mcp", "/t/%EF%BD%81cme/mcp", "/t/acme/mcp/x",
]  # fmt: skip


@pytest.mark.requirement("W15", "C14")
@each("target", HOSTILE_PATHS, ids=lambda target: target[:40])
def test_no_other_spelling_of_a_path_reaches_a_tenant(server: Server, target: str) -> None:
    """Such a path is unknown, with or without a valid token."""
    with server.nothing_runs():
        bare = server.client.call(None, path=target)
        answer = server.client.call(server.token("a", tenant="acme"), path=target)

    assert (bare.status, answer.status) == (401, 401)
    assert comparable_answer(bare) == comparable_answer(server.client.call(None, path="/nowhere"))
    assert "resource_metadata" not in challenge_of(answer)


DOCUMENTS = [
    "/t/acme/mcp/.well-known/oauth-protected-resource%0a",
    "/.well-known/oauth-protected-resource/t/acme/mcp%0a",
    "/.well-known/oauth-protected-resource/t/acme/mcp/",
    "/.well-known/oauth-protected-resource/t/acme",
    "/.well-known/oauth-protected-resource/t/Acme/mcp",
    "/.well-known/oauth-protected-resource/t/acme%2f/mcp",
    "/.well-known/oauth-protected-resource/t/../t/acme/mcp",
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-protected-resource/mcp",
    "/mcp/.well-known/oauth-protected-resource",
    "/t/acme/.well-known/oauth-protected-resource",
    "/t/acme%0a/mcp/.well-known/oauth-protected-resource",
    "/t/{tenant}/mcp/.well-known/oauth-protected-resource",
]


@pytest.mark.requirement("W15", "A-05")
@each("target", DOCUMENTS)
def test_a_document_has_exactly_two_addresses(server: Server, target: str) -> None:
    """A cache in front must not be made to keep a document under another name."""
    assert comparable_answer(server.client.send("GET", target)) == comparable_answer(
        server.client.send("GET", "/nowhere")
    )


def test_a_free_issuer_has_a_document_for_every_name(idp: Idp) -> None:
    """Any name may become a tenant, so the documents reveal none; `check` warns of it."""
    free = {"create_on_first_use": True}
    with running_server(idp, [issuer_settings(idp, "free")], TEMPLATE, tenancy=free) as server:
        first, second = [
            comparable_answer(server.client.send("GET", metadata_paths(name)[0]), tenant=name)
            for name in ("acme", "none")
        ]
        caller = server.client.whoami(server.token("free", tenant="acme"), path=path("acme"))

    assert first == second
    assert (first[0], caller["tenant"]) == (200, "acme")
    settings = [
        problem.id for problem in check_problems([issuer_settings(idp)], TEMPLATE, tenancy=free)
    ]
    assert settings == ["authz.W006", "config.W082"]  # W082: no person has the role to approve


def test_check_refuses_templates_that_cannot_be_served(idp: Idp) -> None:
    """The placeholder is one whole segment of the path, once."""
    for bad in ("/t/x-{tenant}/mcp", "/t/{tenant}x/mcp", "/{tenant}/{tenant}", "/t/{org}/mcp"):
        assert "authz.E006" in check_errors(tables(idp), bad), bad


def test_an_unknown_tool_gets_the_same_error_at_each_tenants_resource(server: Server) -> None:
    """An unknown tool reads the same at each tenant's resource."""
    seen = [
        failure(
            server.client.call(server.token(name, tenant=tenant), "no_such_tool", path=path(tenant))
        )
        for tenant, name in (("acme", "a"), ("globex", "g"))
    ]

    assert seen[0] == seen[1]
