"""Tenant and scopes of machines whose tokens carry none."""

from typing import Any

import pytest

from gatepost_authz.config import ClientRule, TenantRule
from gatepost_authz.errors import InvalidToken
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.tenant import Policy, reaches
from tests.authz.conftest import RIVAL_ISSUER, issuer
from tests.authz.test_tenant import caller
from tests.support.issuers import ABSENT
from tests.support.measuring import each

MACHINE = {"sub": "client-1", "org_id": ABSENT, "scope": ABSENT}
"""The changes that make a token one of a machine that says neither tenant nor scopes."""


def test_a_machine_without_a_tenant_claim_gets_its_clients_tenant() -> None:
    """Client credentials tokens of many providers name no organisation."""
    rules = {"client-1": ClientRule(tenant="globex", scopes=("files:read",))}
    settings = issuer(tenants={"acme": "acme"}, clients=rules)

    machine = caller(settings, policy=Policy(), **MACHINE)

    assert (machine.tenant_id, machine.subject_kind) == ("globex", "client")
    assert machine.tenant_claim is None
    assert machine.scopes == {"files:read"}


@each(
    ("changes", "tenant", "scopes"),
    [
        ({"org_id": "acme"}, "acme", {"files:read"}),
        ({"scope": "files:write"}, "globex", {"files:write"}),
        ({"scope": ""}, "globex", set()),
        ({"sub": "alice", "org_id": "acme"}, "acme", set()),
    ],
)
def test_client_rules_do_not_override_claims_of_the_token(
    changes: dict[str, Any], tenant: str, scopes: set[str]
) -> None:
    """Tenant and scopes of the token win, and a person never gets a machine's rule."""
    rules = {"client-1": ClientRule(tenant="globex", scopes=("files:read",))}
    settings = issuer(tenants={"acme": "acme"}, clients=rules)

    result = caller(settings, **MACHINE | changes)

    assert (result.tenant_id, result.scopes) == (tenant, scopes)


@each(
    ("reason", "changes"),
    [
        ("no_tenant", {"sub": "alice"}),
        ("no_tenant", {"sub": "client-2", "client_id": "client-2"}),
        ("bad_tenant", {"org_id": None}),
        ("bad_tenant", {"org_id": ""}),
        ("unknown_tenant", {"org_id": "globex"}),
    ],
)
def test_a_client_rule_applies_only_to_its_own_machine(
    reason: str, changes: dict[str, Any]
) -> None:
    """It covers no person, no other client, and no token with an invalid tenant claim."""
    rules = {"client-1": ClientRule(tenant="globex")}
    settings = issuer(tenants={"acme": "acme"}, clients=rules)

    with pytest.raises(InvalidToken, match=reason):
        caller(settings, **MACHINE | changes)


def test_an_issuer_cannot_claim_the_tenant_of_another_issuers_machine() -> None:
    """The operator gave that tenant to one client of one issuer."""
    other = issuer(RIVAL_ISSUER, tenants={"o": "two"}, clients={"c": ClientRule(tenant="globex")})

    with pytest.raises(InvalidToken, match="tenant_of_another_issuer"):
        caller(issuer(tenants={}), other, org_id="globex")
    with pytest.raises(InvalidToken, match="tenant_of_another_issuer"):
        caller(
            issuer(tenants={}, clients={"client-1": ClientRule(tenant="globex")}),
            other,
            org_id="globex",
        )


@each(
    ("rule", "preset"),
    [
        (rule, preset)
        for rule in (TenantRule(value="acme"), TenantRule(issuer=True))
        for preset in ("generic", "keycloak")
    ],
)
def test_a_client_rule_does_not_change_the_tenant_of_a_one_tenant_issuer(
    rule: TenantRule, preset: str
) -> None:
    """The issuer names the tenant, so its tokens carry no claim for it."""
    clients = {"client-1": ClientRule(tenant="globex")}
    settings = issuer(preset=preset, tenant=rule, tenants={}, clients=clients)
    keycloak = {"azp": "client-1", "typ": "Bearer"}

    assert caller(settings, **MACHINE | keycloak).tenant_id != "globex"


def test_two_issuers_may_share_a_tenant_that_both_name() -> None:
    """One names it for its machine, the other in its table."""
    other = issuer(RIVAL_ISSUER, tenants={"o": "globex"})
    settings = issuer(tenants={}, clients={"client-1": ClientRule(tenant="globex")})

    machine = caller(settings, other, **MACHINE)
    rules = IssuerRegistry([settings, other]).issuers[0].rules

    assert machine.tenant_id == "globex"
    assert reaches("globex", rules)
    assert "globex" in rules.foreign


def test_client_rules_do_not_apply_to_issuer_templates() -> None:
    """Each issuer of the template could issue a token with that client id."""
    name = "https://h.example/realms/{realm}"
    settings = issuer(name, tenants={"acme": "acme"}, clients={"client-1": ClientRule("globex")})

    with pytest.raises(InvalidToken, match="tenant_not_exclusive"):
        caller(settings, **MACHINE | {"iss": "https://h.example/realms/acme"})
