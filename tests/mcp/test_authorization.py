"""Authorization, row by row, at the front door of a whole server."""

import json
from collections.abc import Iterator

import pytest

from tests.support.client import (
    WELL_KNOWN,
    Fields,
    challenge_of,
    failure,
    message,
    modern,
    old_call,
    result,
)
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server

SCOPES = {"baseline": ["mcp:use"], "implied": {"files:all": ["files:read", "files:write"]}}
ELSEWHERE = "https://other.example.com/mcp"
EVIL = "https://evil.example.com"


@pytest.fixture(scope="module")
def site(idp: Idp) -> Iterator[Server]:
    issuers = [issuer_settings(idp, tenants={"acme": "acme"})]
    with running_server(idp, issuers, scopes=SCOPES) as site:
        yield site


@pytest.fixture
def token(site: Server) -> str:
    return site.token(scope="mcp:use")


def challenged(site: Server, **claims: object) -> str:
    """The challenge that calling the tool that writes gets a token of these claims."""
    with site.nothing_runs():
        answer = site.client.call(site.token(**claims), "witness_write")
    assert answer.status == 403, answer
    return challenge_of(answer)


@pytest.mark.requirement("A-01", "A-03", "A-04", "A-05")
def test_a_01_to_a_05_the_metadata_names_this_resource_and_its_issuers(site: Server) -> None:
    """Whoever follows the challenge and whoever guesses the well-known place read the same."""
    named = challenge_of(site.client.ask(None, "tools/list"))
    here = f"{site.client.resource}{WELL_KNOWN}"
    below, inserted, root = [
        site.client.send("GET", path)
        for path in (
            f"{site.client.path}{WELL_KNOWN}",
            f"{WELL_KNOWN}{site.client.path}",
            WELL_KNOWN,
        )
    ]
    document = json.loads(below.body)

    assert f'resource_metadata="{here}"' in named
    assert (below.status, below.field("content-type")) == (200, "application/json")
    assert below.body == inserted.body == root.body
    assert root.status == 200
    assert document["resource"] == site.client.resource
    assert document["authorization_servers"] == [site.idp.issuer("main")]
    assert [] not in document.values()


@pytest.mark.requirement("A-02", "A-15", "A-20", "A-60")
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"])
def test_a_15_without_a_good_token_every_revision_gets_401(site: Server, version: str) -> None:
    """Missing, invalid, expired, meant for somebody else; the challenge says what to ask for."""
    asked = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x"}}
    fields, body = modern("tools/list")
    if version != "2026-07-28":
        fields, body = [("MCP-Protocol-Version", version)], message("initialize", asked)
    bad = [None, "nonsense", site.token(exp=1_000_000_000), site.token(aud=ELSEWHERE)]

    for sent in bad:
        answer = site.client.send("POST", fields=fields, body=body, token=sent)

        assert answer.status == 401
        assert 'scope="mcp:use"' in challenge_of(answer)
        assert "resource_metadata=" in challenge_of(answer)


@pytest.mark.requirement("A-07", "A-26")
def test_a_07_challenges_ask_for_the_least_and_never_for_offline_access(site: Server) -> None:
    """The document lists what every request needs, then what some tool needs."""
    document = json.loads(site.client.send("GET", f"{site.client.path}{WELL_KNOWN}").body)
    challenges = [
        challenge_of(site.client.ask(None, "tools/list")),
        challenged(site, scope="mcp:use offline_access"),
    ]

    assert document["scopes_supported"] == ["mcp:use", "files:read", "files:write"]
    assert "offline_access" not in document["scopes_supported"]
    assert [one for one in challenges if "offline_access" in one] == []


@pytest.mark.requirement("A-07")
def test_a_07_scopes_to_request_are_named_and_not_needed(idp: Idp) -> None:
    """Providers demand `openid` or a scope for the audience, and write neither into tokens."""
    scopes = {"request": ["openid", "offline_access"], "baseline": ["mcp:use"]}
    with running_server(
        idp, [issuer_settings(idp, tenants={"acme": "acme"})], scopes=scopes
    ) as site:
        document = json.loads(site.client.send("GET", WELL_KNOWN).body)
        answer = site.client.ask(None, "tools/list")
        lacking = site.client.ask(site.token(scope="files:read"), "tools/list")
        served = site.client.ask(site.token(scope="mcp:use"), "tools/list")

    assert document["scopes_supported"][:3] == ["mcp:use", "openid", "offline_access"]
    assert 'scope="mcp:use openid offline_access"' in challenge_of(answer)
    assert 'scope="mcp:use openid offline_access"' in challenge_of(lacking)
    assert (lacking.status, served.status) == (403, 200)


@pytest.mark.requirement("A-07", "A4")
def test_a_07_no_scope_is_listed_that_nobody_can_get(idp: Idp) -> None:
    """A client requests all that it reads, and an issuer may refuse all for the sake of one."""
    scopes = {"obtainable": ["files:read", "never:declared"]}
    with running_server(
        idp, [issuer_settings(idp, tenants={"acme": "acme"})], scopes=scopes
    ) as site:
        document = json.loads(site.client.send("GET", WELL_KNOWN).body)

    assert document["scopes_supported"] == ["files:read"]


@pytest.mark.requirement("A-13")
def test_a_13_only_a_token_for_exactly_this_resource_is_accepted(site: Server) -> None:
    """Another path, a slash more, another spelling, another server, or nobody at all."""
    scheme, _, rest = site.client.resource.partition("://")
    others = [
        f"{site.client.resource}/",
        site.client.origin,
        f"{scheme.upper()}://{rest}",
        ELSEWHERE,
        [],
    ]

    with site.nothing_runs():
        for other in others:
            assert site.client.call(site.token(aud=other, scope="mcp:use")).status == 401


@pytest.mark.requirement("A-11")
def test_a_11_a_token_in_the_query_opens_nothing(site: Server, token: str) -> None:
    """It would end up in logs and in the history of browsers."""
    with site.nothing_runs():
        answer = site.client.call(None, path=f"{site.client.path}?access_token={token}")

    assert answer.status == 401


@pytest.mark.requirement("A-12", "A-17")
def test_a_12_what_is_refused_learns_nothing_and_no_token_is_logged(site: Server) -> None:
    """Not even whether its request made sense; and the log holds no part of a credential."""
    expired = site.token(exp=1_000_000_000)
    answers = [
        site.client.send("POST", body=body, token=expired)
        for body in (b"nonsense", message("tools/list"), old_call("witness"))
    ]

    assert {answer.status for answer in answers} == {401}
    assert len({answer.body for answer in answers}) == 1
    assert all(part not in site.log() for part in expired.split("."))
    assert all(expired.encode() not in answer.body for answer in answers)


@pytest.mark.requirement("A-21", "A-28")
def test_a_28_each_status_says_one_thing(site: Server, token: str) -> None:
    """401 sign in, 403 ask for more, 400 that was no request; a tool's own no is none of them."""
    doubled: Fields = [("Authorization", f"Bearer {token}"), ("Authorization", "Bearer x")]

    assert 'error="invalid_token"' in challenge_of(site.client.call("nonsense"))
    assert site.client.call(site.token(scope="")).status == 403
    assert site.client.call(token, "witness_write").status == 403
    assert site.client.call(None, fields=doubled).status == 400
    assert site.client.call(token, "unknown").status == 400


@pytest.mark.requirement("A-22", "A-23", "A-24")
def test_a_23_one_challenge_names_all_that_the_operation_needs(site: Server) -> None:
    """A client that asks for exactly this gets in; nobody is sent through consent twice."""
    challenge = challenged(site, scope="mcp:use")
    named = challenge.partition('scope="')[2].partition('"')[0]

    assert 'error="insufficient_scope"' in challenge
    assert "resource_metadata=" in challenge
    assert set(named.split()) == {"mcp:use", "files:write"}
    result(site.client.call(site.token(scope=named), "witness_write"))


@pytest.mark.requirement("A-25")
def test_a_25_a_broad_scope_implies_the_narrow_ones(site: Server) -> None:
    """The token says `files:all`; what asks for less takes it."""
    token = site.token(scope="mcp:use files:all")

    for tool in ("witness_write", "witness_read"):
        result(site.client.call(token, tool))


@pytest.mark.requirement("T-02", "S-02", "SEC-01")
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
def test_t_02_s_02_a_strangers_web_page_is_refused(site: Server, version: str) -> None:
    """Any page may reach a server on this machine; its browser says where the page is from."""
    token = site.token(scope="mcp:use")
    session = site.client.open(token, "2025-11-25")
    fields, body = modern("tools/call", {"name": "witness", "arguments": {}})
    if version != "2026-07-28":
        fields, body = [("Mcp-Session-Id", session)], old_call("witness")

    with site.nothing_runs():
        foreign = site.client.send("POST", None, [*fields, ("Origin", EVIL)], body, token=token)
    own = site.client.send(
        "POST", None, [*fields, ("Origin", site.client.origin)], body, token=token
    )

    assert foreign.status == 403
    assert own.status == 200


@pytest.mark.requirement("SEC-02", "SEC-03", "SEC-04")
def test_sec_02_no_handle_stands_in_for_a_token(site: Server, token: str) -> None:
    """Not a session id, whoever's it is, and in neither era."""
    session = site.client.open(token, "2025-11-25")
    within: Fields = [("Mcp-Session-Id", session)]

    with site.nothing_runs():
        for sent in (None, "nonsense"):
            assert (
                site.client.send("POST", None, within, old_call("witness"), token=sent).status
                == 401
            )
            assert site.client.send("GET", None, within, token=sent).status == 401
            assert site.client.send("DELETE", None, within, token=sent).status == 401
            assert site.client.call(sent).status == 401
        others = site.token(scope="mcp:use", sub="mallory")
        assert site.client.within(others, session).status == 404
    result(site.client.within(token, session))


@pytest.mark.requirement("AX-01", "AX-02")
def test_ax_a_machines_token_is_served_and_a_grant_is_no_token(site: Server) -> None:
    """A client with no person behind it is a caller; an ID-JAG is for the issuer, not for us."""
    machine = site.token(scope="mcp:use", sub="reporting", client_id="reporting")
    grant = site.tokens().token(header={"typ": "oauth-id-jag+jwt"}, scope="mcp:use")
    declared = result(site.client.ask(machine, "server/discover"))["capabilities"]["extensions"]

    assert result(site.client.call(machine))["isError"] is False
    with site.nothing_runs():
        assert site.client.call(grant).status == 401
    for name in ("oauth-client-credentials", "enterprise-managed-authorization"):
        assert declared[f"io.modelcontextprotocol/{name}"] == {}


@pytest.mark.requirement("SEC-07")
def test_sec_07_too_many_calls_are_refused_with_when_to_come_back(idp: Idp) -> None:
    """Tools, resources and completion are counted together."""
    limits = {"requests_per_second": 1 / 60, "burst": 2, "failures_per_second": 0}
    with running_server(
        idp, [issuer_settings(idp, tenants={"acme": "acme"})], limits=limits
    ) as site:
        token = site.token()
        result(site.client.call(token))
        result(site.client.call(token))
        with site.nothing_runs():
            answer = site.client.call(token)

    assert (answer.status, failure(answer)["code"]) == (200, -32000)
    assert int(answer.field("retry-after") or 0) > 0
