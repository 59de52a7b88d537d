"""Tenant and scopes of machines whose tokens carry none."""

from typing import Any

import pytest

from gatepost_authz.config import ClientRule, TenantRule
from gatepost_authz.errors import InvalidToken
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.tenant import Policy, reaches
from tests.authz.conftest import RIVAL, issuer
from tests.authz.test_tenant import caller
from tests.support.issuers import ABSENT
from tests.support.measuring import each

MACHINE = {"sub": "client-1", "org_id": ABSENT, "scope": ABSENT}
"""The changes that make a token one of a machine that says neither tenant nor scopes."""


def test_a_machine_without_a_tenant_gets_that_of_its_client() -> None:
    """Client credentials of many providers carry no organisation."""
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
def test_what_a_token_says_is_never_overridden(
    changes: dict[str, Any], tenant: str, scopes: set[str]
) -> None:
    """Neither its tenant nor its scopes; and a person never gets what is a machine's."""
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
def test_only_that_machine_gets_it(reason: str, changes: dict[str, Any]) -> None:
    """Not a person of the client, not another client, and not a token with a bad claim."""
    rules = {"client-1": ClientRule(tenant="globex")}
    settings = issuer(tenants={"acme": "acme"}, clients=rules)

    with pytest.raises(InvalidToken, match=reason):
        caller(settings, **MACHINE | changes)


def test_an_issuer_cannot_name_the_tenant_of_another_ones_machine() -> None:
    """The operator wrote it down for one client of one issuer."""
    other = issuer(RIVAL, tenants={"o": "two"}, clients={"c": ClientRule(tenant="globex")})

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
def test_an_issuer_that_is_one_tenant_stays_that_tenant(rule: TenantRule, preset: str) -> None:
    """Its tokens carry no claim for the tenant because the issuer itself says it."""
    clients = {"client-1": ClientRule(tenant="globex")}
    settings = issuer(preset=preset, tenant=rule, tenants={}, clients=clients)
    keycloak = {"azp": "client-1", "typ": "Bearer"}

    assert caller(settings, **MACHINE | keycloak).tenant_id != "globex"


def test_two_issuers_may_share_a_tenant_that_both_name() -> None:
    """One for its machine, the other in its table; a reload does not cut the machine off."""
    other = issuer(RIVAL, tenants={"o": "globex"})
    settings = issuer(tenants={}, clients={"client-1": ClientRule(tenant="globex")})

    machine = caller(settings, other, **MACHINE)
    rules = IssuerRegistry([settings, other]).issuers[0].rules

    assert machine.tenant_id == "globex"
    assert reaches("globex", rules)
    assert "globex" in rules.foreign


def test_a_template_has_no_clients() -> None:
    """Each of its issuers could issue a token with that client id."""
    name = "https://h.example/realms/{realm}"
    settings = issuer(name, tenants={"acme": "acme"}, clients={"client-1": ClientRule("globex")})

    with pytest.raises(InvalidToken, match="tenant_not_exclusive"):
        caller(settings, **MACHINE | {"iss": "https://h.example/realms/acme"})
