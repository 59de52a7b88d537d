"""Authorization, row by row, at a whole server."""

import json
from collections.abc import Iterator

import pytest

from tests.support.client import (
    WELL_KNOWN,
    Fields,
    challenge_of,
    failure,
    message,
    modern_request,
    result,
    session_call,
)
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server

SCOPES = {"baseline": ["mcp:use"], "implied": {"files:all": ["files:read", "files:write"]}}
OTHER_RESOURCE = "https://other.example.com/mcp"
EVIL_ORIGIN = "https://evil.example.com"


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    issuers = [issuer_settings(idp, tenants={"acme": "acme"})]
    with running_server(idp, issuers, scopes=SCOPES) as server:
        yield server


@pytest.fixture
def token(server: Server) -> str:
    return server.token(scope="mcp:use")


def challenged(server: Server, **claims: object) -> str:
    """Return the challenge after the writing tool is called with a token of these claims."""
    with server.nothing_runs():
        answer = server.client.call(server.token(**claims), "record_write")
    assert answer.status == 403, answer
    return challenge_of(answer)


@pytest.mark.requirement("A-01", "A-03", "A-04", "A-05")
def test_a_01_to_a_05_the_metadata_names_this_resource_and_its_issuers(server: Server) -> None:
    """A client that follows the challenge and one that guesses the well-known URL read the same."""
    named = challenge_of(server.client.ask(None, "tools/list"))
    here = f"{server.client.resource}{WELL_KNOWN}"
    below, inserted, root = [
        server.client.send("GET", path)
        for path in (
            f"{server.client.path}{WELL_KNOWN}",
            f"{WELL_KNOWN}{server.client.path}",
            WELL_KNOWN,
        )
    ]
    document = json.loads(below.body)

    assert f'resource_metadata="{here}"' in named
    assert (below.status, below.field("content-type")) == (200, "application/json")
    assert below.body == inserted.body == root.body
    assert root.status == 200
    assert document["resource"] == server.client.resource
    assert document["authorization_servers"] == [server.idp.issuer("main")]
    assert [] not in document.values()


@pytest.mark.requirement("A-02", "A-15", "A-20", "A-60")
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"])
def test_a_15_without_a_good_token_every_revision_gets_401(server: Server, version: str) -> None:
    """Missing, invalid, expired, meant for another server; the challenge says what to ask for."""
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x"}}
    fields, body = modern_request("tools/list")
    if version != "2026-07-28":
        fields, body = [("MCP-Protocol-Version", version)], message("initialize", params)
    bad = [None, "nonsense", server.token(exp=1_000_000_000), server.token(aud=OTHER_RESOURCE)]

    for sent in bad:
        answer = server.client.send("POST", fields=fields, body=body, token=sent)

        assert answer.status == 401
        assert 'scope="mcp:use"' in challenge_of(answer)
        assert "resource_metadata=" in challenge_of(answer)


@pytest.mark.requirement("A-07", "A-26")
def test_a_07_challenges_name_minimal_scopes_and_never_offline_access(server: Server) -> None:
    """The document lists what every request needs, then what some tool needs."""
    document = json.loads(server.client.send("GET", f"{server.client.path}{WELL_KNOWN}").body)
    challenges = [
        challenge_of(server.client.ask(None, "tools/list")),
        challenged(server, scope="mcp:use offline_access"),
    ]

    assert document["scopes_supported"] == ["mcp:use", "files:read", "files:write"]
    assert "offline_access" not in document["scopes_supported"]
    assert [challenge for challenge in challenges if "offline_access" in challenge] == []


@pytest.mark.requirement("A-07")
def test_a_07_additional_scopes_are_advertised_and_not_required(idp: Idp) -> None:
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
def test_a_07_only_scopes_that_a_caller_can_get_are_listed(idp: Idp) -> None:
    """A client requests all that it reads, and an issuer may refuse all for the sake of one."""
    scopes = {"obtainable": ["files:read", "never:declared"]}
    with running_server(
        idp, [issuer_settings(idp, tenants={"acme": "acme"})], scopes=scopes
    ) as server:
        document = json.loads(server.client.send("GET", WELL_KNOWN).body)

    assert document["scopes_supported"] == ["files:read"]


@pytest.mark.requirement("A-13")
def test_a_13_only_a_token_for_exactly_this_resource_is_accepted(server: Server) -> None:
    """Another path, a trailing slash, another spelling, another server and no audience fail."""
    scheme, _, rest = server.client.resource.partition("://")
    others = [
        f"{server.client.resource}/",
        server.client.origin,
        f"{scheme.upper()}://{rest}",
        OTHER_RESOURCE,
        [],
    ]

    with server.nothing_runs():
        for other in others:
            assert server.client.call(server.token(aud=other, scope="mcp:use")).status == 401


@pytest.mark.requirement("A-11")
def test_a_11_a_token_in_the_query_is_ignored(server: Server, token: str) -> None:
    """Such a token would end up in logs and in browser histories."""
    with server.nothing_runs():
        answer = server.client.call(None, path=f"{server.client.path}?access_token={token}")

    assert answer.status == 401


@pytest.mark.requirement("A-12", "A-17")
def test_a_12_a_401_does_not_depend_on_the_request_and_logs_no_token(server: Server) -> None:
    """The answer does not show whether the request was valid; the log has no part of a token."""
    expired = server.token(exp=1_000_000_000)
    answers = [
        server.client.send("POST", body=body, token=expired)
        for body in (b"nonsense", message("tools/list"), session_call("record_call"))
    ]

    assert {answer.status for answer in answers} == {401}
    assert len({answer.body for answer in answers}) == 1
    assert all(part not in server.log() for part in expired.split("."))
    assert all(expired.encode() not in answer.body for answer in answers)


@pytest.mark.requirement("A-21", "A-28")
def test_a_28_each_http_status_has_one_meaning(server: Server, token: str) -> None:
    """401: sign in; 403: more scopes; 400: malformed. A tool's own refusal has none of them."""
    doubled: Fields = [("Authorization", f"Bearer {token}"), ("Authorization", "Bearer x")]

    assert 'error="invalid_token"' in challenge_of(server.client.call("nonsense"))
    assert server.client.call(server.token(scope="")).status == 403
    assert server.client.call(token, "record_write").status == 403
    assert server.client.call(None, fields=doubled).status == 400
    assert server.client.call(token, "unknown").status == 400


@pytest.mark.requirement("A-22", "A-23", "A-24")
def test_a_23_one_challenge_names_all_that_the_operation_needs(server: Server) -> None:
    """A client that asks for exactly this gets in; no person is sent through consent twice."""
    challenge = challenged(server, scope="mcp:use")
    named = challenge.partition('scope="')[2].partition('"')[0]

    assert 'error="insufficient_scope"' in challenge
    assert "resource_metadata=" in challenge
    assert set(named.split()) == {"mcp:use", "files:write"}
    result(server.client.call(server.token(scope=named), "record_write"))


@pytest.mark.requirement("A-25")
def test_a_25_a_broad_scope_implies_the_narrow_ones(server: Server) -> None:
    """The token says `files:all`; what asks for less takes it."""
    token = server.token(scope="mcp:use files:all")

    for tool in ("record_write", "record_read"):
        result(server.client.call(token, tool))


@pytest.mark.requirement("T-02", "S-02", "SEC-01")
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
def test_t_02_s_02_a_web_page_of_another_origin_is_refused(server: Server, version: str) -> None:
    """Any page can send requests to a local server; the browser adds the page's origin."""
    token = server.token(scope="mcp:use")
    session = server.client.open(token, "2025-11-25")
    fields, body = modern_request("tools/call", {"name": "record_call", "arguments": {}})
    if version != "2026-07-28":
        fields, body = [("Mcp-Session-Id", session)], session_call("record_call")

    with server.nothing_runs():
        foreign = server.client.send(
            "POST", None, [*fields, ("Origin", EVIL_ORIGIN)], body, token=token
        )
    own = server.client.send(
        "POST", None, [*fields, ("Origin", server.client.origin)], body, token=token
    )

    assert foreign.status == 403
    assert own.status == 200


@pytest.mark.requirement("SEC-02", "SEC-03", "SEC-04")
def test_sec_02_a_session_id_does_not_replace_a_token(server: Server, token: str) -> None:
    """This holds in every revision; another caller's token does not work, either."""
    session = server.client.open(token, "2025-11-25")
    within: Fields = [("Mcp-Session-Id", session)]

    with server.nothing_runs():
        for sent in (None, "nonsense"):
            assert (
                server.client.send(
                    "POST", None, within, session_call("record_call"), token=sent
                ).status
                == 401
            )
            assert server.client.send("GET", None, within, token=sent).status == 401
            assert server.client.send("DELETE", None, within, token=sent).status == 401
            assert server.client.call(sent).status == 401
        others = server.token(scope="mcp:use", sub="mallory")
        assert server.client.within(others, session).status == 404
    result(server.client.within(token, session))


@pytest.mark.requirement("AX-01", "AX-02")
def test_ax_a_machines_token_is_served_and_a_grant_is_no_token(server: Server) -> None:
    """A client with no person behind it is a caller; an ID-JAG is for the issuer, not for us."""
    machine = server.token(scope="mcp:use", sub="reporting", client_id="reporting")
    grant = server.tokens().token(header={"typ": "oauth-id-jag+jwt"}, scope="mcp:use")
    declared = result(server.client.ask(machine, "server/discover"))["capabilities"]["extensions"]

    assert result(server.client.call(machine))["isError"] is False
    with server.nothing_runs():
        assert server.client.call(grant).status == 401
    for name in ("oauth-client-credentials", "enterprise-managed-authorization"):
        assert declared[f"io.modelcontextprotocol/{name}"] == {}


@pytest.mark.requirement("SEC-07")
def test_sec_07_too_many_calls_are_refused_with_a_retry_time(idp: Idp) -> None:
    """Tools, resources and completion are counted together."""
    limits = {"requests_per_second": 1 / 60, "burst": 2, "failures_per_second": 0}
    with running_server(
        idp, [issuer_settings(idp, tenants={"acme": "acme"})], limits=limits
    ) as server:
        token = server.token()
        result(server.client.call(token))
        result(server.client.call(token))
        with server.nothing_runs():
            answer = server.client.call(token)

    assert (answer.status, failure(answer)["code"]) == (200, -32000)
    assert int(answer.field("retry-after") or 0) > 0
