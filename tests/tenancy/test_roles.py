"""Roles and suspension: what a caller is to its tenant, and tenants that may not call at all."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.client import failure, message
from tests.support.issuers import ABSENT, Idp
from tests.support.measuring import each
from tests.support.server import (
    Server,
    check_errors,
    check_problems,
    issuer_settings,
    running_server,
)

RULES = {
    "approver": {"claim": "roles", "value": "tool-approver"},
    "admin": {"claim": "realm_access.roles", "value": "admin"},
}
TABLE = {"acme": "acme", "globex": "globex"}


@pytest.fixture(scope="module")
def server(idp: Idp) -> Iterator[Server]:
    """Yield a server: issuer main has rules, plain has none, and grouped reads groups."""
    grouped = {"approver": {"claim": "groups", "value": "g-approvers"}}
    issuers = [
        issuer_settings(idp, tenants=TABLE, roles=RULES),
        issuer_settings(idp, "plain", tenant={"value": "plain"}),
        issuer_settings(idp, "grouped", tenant={"value": "grouped"}, roles=grouped),
    ]
    with running_server(idp, issuers, tenancy={"suspended": ["globex"]}) as server:
        yield server


ROLE_CLAIMS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"roles": ["tool-approver"]}, ["approver"]),
    ({"roles": "tool-approver"}, ["approver"]),
    ({"realm_access": {"roles": ["user", "admin"]}}, ["admin"]),
    ({"realm_access.roles": ["admin"]}, ["admin"]),
    ({"roles": ["tool-approver"], "realm_access": {"roles": ["admin"]}}, ["admin", "approver"]),
    ({"roles": ["approver", "admin"]}, []),
    ({"roles": ["Tool-Approver", "tool-approver "]}, []),
    ({"roles": "tool-approver admin"}, []),
    ({"roles": {"tool-approver": True}}, []),
    ({"roles": [["tool-approver"]]}, []),
    ({"Roles": ["tool-approver"], "role": "tool-approver"}, []),
    ({"realm_access": ["roles", "admin"]}, []),
    ({"approver": True, "admin": True, "scope": "approver admin"}, []),
    ({"sub": "admin", "client_id": "admin"}, []),
]


@pytest.mark.requirement("A6", "C22")
@each(("claims", "roles"), ROLE_CLAIMS)
def test_a_role_is_given_by_rule_only(
    server: Server, claims: dict[str, Any], roles: list[str]
) -> None:
    """The configured claim with exactly the configured value, as text or in a list."""
    assert server.client.whoami(server.token(**claims))["roles"] == roles


@pytest.mark.requirement("A6")
def test_an_issuer_without_rules_gives_no_roles(server: Server) -> None:
    """The rules of one issuer do not apply to another's tokens."""
    claims = {"roles": ["tool-approver"], "realm_access": {"roles": ["admin"]}}

    assert server.client.whoami(server.token("plain", **claims))["roles"] == []


@pytest.mark.requirement("C31")
@pytest.mark.parametrize(
    "claims",
    [{"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://x"}}},
     {"hasgroups": True}, {"hasgroups": "true", "groups": ["g-approvers"]}],
)  # fmt: skip
def test_groups_that_the_token_leaves_out_are_not_guessed(
    server: Server, claims: dict[str, Any]
) -> None:
    """A token without its groups is refused if a rule needs them, and accepted otherwise."""
    with server.nothing_runs():
        assert server.tenant_of(server.token("grouped", **claims)) is None
    assert server.tenant_of(server.token("plain", **claims)) == "plain"


@pytest.mark.requirement("C31")
def test_groups_in_the_token_decide_about_the_role(server: Server) -> None:
    """The rule is met or not; both open the door."""
    assert server.client.whoami(server.token("grouped", groups=["g-approvers"]))["roles"] == [
        "approver"
    ]
    assert server.client.whoami(server.token("grouped", groups=["g-others"]))["roles"] == []
    assert server.client.whoami(server.token("grouped"))["roles"] == []


def test_check_refuses_invalid_role_rules(idp: Idp) -> None:
    """`check` refuses a misspelt role, and a rule that every caller meets."""
    rule = {"claim": "roles", "value": "x"}

    assert check_errors([issuer_settings(idp, tenants=TABLE, roles={"admn": rule})]) == [
        "authz.E023"
    ]
    empty = {"admin": rule | {"value": ""}}
    assert check_errors([issuer_settings(idp, tenants=TABLE, roles=empty)]) == ["authz.E028"]


SUSPENDED_CODE = -31001


@pytest.mark.requirement("A-28")
@pytest.mark.parametrize("method", ["ping", "tools/list", "server/discover", "tools/call"])
def test_a_caller_of_a_suspended_tenant_gets_an_error_with_http_200(
    server: Server, method: str
) -> None:
    """The token is valid, so a 401 or 403 would not help; no tool runs."""
    params = {"name": "record_call", "arguments": {}} if method == "tools/call" else None
    with server.nothing_runs():
        answer = server.client.ask(server.token(org_id="globex"), method, params)

    assert answer.status == 200
    assert failure(answer)["code"] == SUSPENDED_CODE
    assert json.loads(answer.body)["id"] == 1
    assert answer.field("www-authenticate") is None


@pytest.mark.requirement("A-28")
def test_a_suspended_tenant_cannot_open_a_session(server: Server) -> None:
    """The handshake of the older era is answered in the same way."""
    initialize_params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
    answer = server.client.send(
        "POST", body=message("initialize", initialize_params), token=server.token(org_id="globex")
    )

    assert (answer.status, failure(answer)["code"]) == (200, SUSPENDED_CODE)
    assert answer.field("mcp-session-id") is None


@pytest.mark.requirement("A-15", "C29")
@pytest.mark.parametrize("value", ["initech", "Globex", ABSENT])
def test_a_token_of_an_unknown_tenant_gets_401(server: Server, value: Any) -> None:
    """Another token may do better, so this one is 401."""
    with server.nothing_runs():
        answer = server.client.call(server.token(org_id=value))

    assert answer.status == 401
    assert json.loads(answer.body)["error"] == "invalid_token"


def test_an_invalid_token_does_not_reveal_a_suspension(server: Server) -> None:
    """The answer is 401; only a caller with a valid token learns of the suspension."""
    bad = server.token(org_id="globex", exp=1)

    assert server.client.call(bad).status == 401


def test_check_warns_of_an_unknown_suspended_tenant(idp: Idp) -> None:
    """A misspelt id suspends no tenant."""
    issuer_table = issuer_settings(idp, tenants=TABLE)
    tenancy = {"create_on_first_use": False, "suspended": ["globx"]}

    assert "config.W001" in {
        problem.id for problem in check_problems([issuer_table], tenancy=tenancy)
    }
