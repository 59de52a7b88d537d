"""From accepted claims to a caller of one tenant."""

import base64
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz.caller import TenantContext
from gatepost_authz.claim_values import lookup
from gatepost_authz.claims import check_claims
from gatepost_authz.config import TENANT_ID, Issuer, RoleRule, TenantRule
from gatepost_authz.errors import InvalidToken
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.presets import PRESETS, Preset
from gatepost_authz.protected_resource import Target
from gatepost_authz.scopes import Implications
from gatepost_authz.tenant import Policy, Tenancy, caller_from, tenant_id
from tests.authz.conftest import FORGE, ISSUER, NOW, RIVAL_ISSUER, TARGET, issuer
from tests.support.issuers import ABSENT
from tests.support.measuring import each

OPEN_POLICY = Policy(tenancy=Tenancy(create_on_first_use=True))
ORG = Preset(name="org", documentation="https://org.example", tenant_claim="organization")
KNOWN_PRESETS = PRESETS | {"org": ORG}


def caller(
    *issuers: Issuer, policy: Policy = OPEN_POLICY, target: Target = TARGET, **changes: Any
) -> TenantContext:
    """Return the caller of a token of the first issuer, with these claims changed."""
    registry = IssuerRegistry(issuers or (issuer(tenants={}),), presets=KNOWN_PRESETS)
    claims = {n: v for n, v in FORGE.claims(**changes).items() if v is not ABSENT}
    configured = registry.find(str(claims["iss"]))
    assert configured is not None
    trusted, captured = configured
    accepted = check_claims(claims, trusted.expects(str(claims["iss"]), target), now=NOW)
    return caller_from(
        claims, accepted, trusted.rules, captured=captured, target=target, policy=policy
    )


def hashed_tenant(value: str, name: str = ISSUER) -> str:
    """Hash a tenant's name as the design words it, written down a second time."""
    digest = hashlib.sha256(name.encode() + b"\0" + value.encode()).digest()
    return "t-" + base64.b32encode(digest).decode()[:26].lower()


@pytest.mark.requirement("C29")
@pytest.mark.parametrize("value", ["acme", "a", "0", "a-b_c", "t-acme", "x" * 63, "6e5a-9c1c"])
def test_a_claim_value_that_is_a_valid_tenant_id_is_used_unchanged(value: str) -> None:
    """The id that an operator reads in a path is the one in the token."""
    assert caller(org_id=value).tenant_id == value


@pytest.mark.requirement("C29")
@each(
    "value",
    [
        *("Acme", "org_9vN3KdGq", "-a", "_a", "a.b", "a/b", "../acme", "acme ", "x" * 64, "."),
        *("\u00e4", "t-" + "a" * 26, "t-abcdefghijklmnopqrstuvwxyz"),
    ],
)
def test_other_claim_values_become_a_digest_of_issuer_and_value(value: str) -> None:
    """No value is shortened or lower-cased, and a value that looks like a digest is hashed."""
    tenant_id = caller(org_id=value).tenant_id

    assert tenant_id == hashed_tenant(value)
    assert TENANT_ID.fullmatch(tenant_id)


@given(st.text(min_size=1, max_size=70), st.text(min_size=1, max_size=70))
def test_different_claim_values_have_different_tenant_ids(one: str, other: str) -> None:
    """The id is a directory name; a collision would give access to another tenant's files."""
    assert TENANT_ID.fullmatch(tenant_id(ISSUER, one))
    assert (tenant_id(ISSUER, one) == tenant_id(ISSUER, other)) is (one == other)


REFUSED_VALUES = [
    ABSENT,
    None,
    7,
    True,
    "",
    [],
    {},
    ["acme"],
    {"acme": {}},
    ["a", "b"],
    "a\nb",
    "\0",
]


@pytest.mark.requirement("C29")
@each("value", REFUSED_VALUES, ids=repr)
def test_a_token_without_one_plain_tenant_value_is_refused(value: Any) -> None:
    """There is no default tenant."""
    with pytest.raises(InvalidToken):
        caller(org_id=value)


@pytest.mark.parametrize(
    ("path", "value"),
    [("org_id", ["acme"]), ("org_id", {"acme": {"id": "1"}}), ("a.org", {"org": ["acme"]})],
)
def test_the_only_entry_of_a_list_or_an_object_is_the_tenant(path: str, value: Any) -> None:
    """Providers write organisations as lists, or as objects with names as keys."""
    settings = issuer(tenant=TenantRule(claim=path, only_entry=True))

    assert caller(settings, **{path.partition(".")[0]: value}).tenant_id == "acme"


@pytest.mark.requirement("C29")
@each("value", [[["acme"]], ["acme", "globex"], {"acme": {}, "globex": {}}, [], {}])
def test_a_tenant_claim_with_several_or_no_entries_is_refused(value: Any) -> None:
    """Such a token does not say which organisation it is for."""
    with pytest.raises(InvalidToken, match="bad_tenant"):
        caller(issuer(tenant=TenantRule(claim="org_id", only_entry=True)), org_id=value)


@pytest.mark.requirement("C29")
@pytest.mark.parametrize("value", ["globex", "Acme", "acme ", "org_1", "../acme"])
def test_tenant_values_outside_of_the_table_are_refused(value: str) -> None:
    """This also holds for a value that is a valid tenant id."""
    settings = issuer(tenants={"acme": "acme", "org_2": "two"})
    assert caller(settings, org_id="org_2").tenant_id == "two"
    with pytest.raises(InvalidToken, match="unknown_tenant"):
        caller(settings, org_id=value)


@pytest.mark.requirement("C29")
def test_unknown_tenants_are_refused_unless_they_may_be_created() -> None:
    """The operator decides about new tenants; tenants named in the configuration are known."""
    settings = issuer(tenants={})
    policy = Policy(tenancy=Tenancy(known_tenants=frozenset({"acme"})))
    assert caller(settings, policy=policy, org_id="acme").tenant_id == "acme"
    with pytest.raises(InvalidToken, match="unknown_tenant"):
        caller(settings, policy=policy, org_id="globex")
    assert caller(issuer(), policy=Policy(), org_id="globex").tenant_id == "globex"


def test_an_issuer_can_name_the_tenant_without_a_claim() -> None:
    """The tenant is a fixed value, or is derived from the issuer."""
    fixed = issuer(tenant=TenantRule(value="acme"), tenants={})
    itself = issuer(tenant=TenantRule(issuer=True), tenants={})
    mapped = issuer(tenant=TenantRule(issuer=True), tenants={ISSUER: "acme"})

    assert caller(fixed, policy=Policy(), org_id="globex").tenant_id == "acme"
    assert caller(itself, policy=Policy()).tenant_id == hashed_tenant(ISSUER)
    assert caller(mapped, policy=Policy()).tenant_id == "acme"


def test_a_token_without_a_tenant_rule_is_refused() -> None:
    """A missing rule never means one tenant for all; a preset may name the usual claim."""
    with pytest.raises(InvalidToken, match="no_tenant_rule"):
        caller(issuer(tenant=TenantRule(), tenants={}))
    assert caller(issuer(tenant=TenantRule(), tenants={}, preset="org"), organization="acme")


@pytest.mark.requirement("C29")
@pytest.mark.parametrize(
    ("value", "tenant"),
    [
        ("acme", "acme"),
        (["acme"], "acme"),
        ({"acme": {"id": "42"}}, "acme"),
        ({"acme": None}, "acme"),
    ],
)
def test_the_organisation_claim_of_a_preset_can_have_a_single_entry(
    value: Any, tenant: str
) -> None:
    """Keycloak lists the user's organisations by name or as an object."""
    settings = issuer(preset="org", tenant=TenantRule(claim="organization"), tenants={})
    assert caller(settings, organization=value).tenant_id == tenant


@pytest.mark.requirement("C29")
@pytest.mark.parametrize("value", [["a", "b"], {"a": {}, "b": {}}, [], {}, [7], [["a"]], None, 7])
def test_a_preset_claim_with_several_organisations_is_refused(value: Any) -> None:
    """The token does not say which organisation it is for."""
    with pytest.raises(InvalidToken):
        caller(issuer(preset="org", tenant=TenantRule(), tenants={}), organization=value)


@pytest.mark.parametrize(
    ("claims", "path", "value"),
    [
        ({"org": "a"}, "org", "a"),
        ({"org": {"id": "a"}}, "org.id", "a"),
        ({"org.id": "exact", "org": {"id": "dotted"}}, "org.id", "exact"),
        (
            {"https://stytch.com/organization": {"id": "a"}},
            "https://stytch.com/organization.id",
            "a",
        ),
        (
            {"urn:zitadel:iam:user:resourceowner:id": "9"},
            "urn:zitadel:iam:user:resourceowner:id",
            "9",
        ),
        ({"a.b": {"c.d": {"e": "deep"}}}, "a.b.c.d.e", "deep"),
        (
            {"resource_access": {"my.client": {"roles": ["r"]}}},
            "resource_access.my.client.roles",
            ["r"],
        ),
    ],
)
def test_a_claim_is_found_by_its_whole_name_or_by_its_path(
    claims: dict[str, Any], path: str, value: object
) -> None:
    """Names may contain dots and slashes; the longest existing name wins."""
    assert lookup(claims, path) == value


@pytest.mark.parametrize("path", ["", ".", "a", "org.", ".org", "org.x.y", "org.id.x", "Org"])
def test_a_tenant_claim_path_that_does_not_exist_is_refused(path: str) -> None:
    """A path whose first part alone exists has no value."""
    with pytest.raises(InvalidToken):
        caller(issuer(tenant=TenantRule(claim=path or "none"), tenants={}), org={"id": "acme"})


@pytest.mark.requirement("C29")
def test_the_tenant_in_the_path_must_match_the_token() -> None:
    """A token of globex is refused under acme, even with the right audience."""
    url = "https://mcp.example.com/t/acme/mcp"
    target = Target(url, f"{url}/.well-known/oauth-protected-resource", "acme")

    assert caller(target=target, aud=url, org_id="acme").resource == url
    with pytest.raises(InvalidToken, match="tenant_of_another_resource"):
        caller(target=target, aud=url, org_id="globex")


RIVAL_ISSUERS = {
    "by-claim": issuer(RIVAL_ISSUER, tenants={}),
    "by-table": issuer(RIVAL_ISSUER, tenants={"acme": "other", "x": "acme-2"}),
    "by-value": issuer(RIVAL_ISSUER, tenant=TenantRule(value="other"), tenants={}),
}


@pytest.mark.requirement("C29")
@pytest.mark.parametrize("own", [{"org_9": "acme"}, {"acme": "acme"}], ids=["mapped", "plain"])
@pytest.mark.parametrize("rival", RIVAL_ISSUERS.values(), ids=RIVAL_ISSUERS)
def test_an_issuer_cannot_name_a_tenant_that_another_issuer_names(
    own: dict[str, str], rival: Issuer
) -> None:
    """Issuer B's administrator can put `org_id = acme` into any token of issuer B."""
    ours = issuer(tenants=own)
    assert caller(ours, rival, org_id=next(iter(own))).tenant_id == "acme"
    try:
        named = caller(rival, ours, iss=RIVAL_ISSUER, org_id="acme").tenant_id
    except InvalidToken:
        return
    assert named == "other"


@pytest.mark.requirement("C29")
def test_an_issuer_cannot_name_the_fixed_tenant_of_another_issuer() -> None:
    """A tenant rule with a value names the tenant like a table."""
    ours = issuer(tenant=TenantRule(value="acme"), tenants={})
    with pytest.raises(InvalidToken, match="tenant_of_another_issuer"):
        caller(issuer(RIVAL_ISSUER, tenants={}), ours, iss=RIVAL_ISSUER, org_id="acme")


def test_two_issuers_can_share_a_tenant_that_both_tables_name() -> None:
    """A company with two directories names the tenant in both."""
    both = (issuer(tenants={"a": "acme"}), issuer(RIVAL_ISSUER, tenants={"b": "acme"}))

    assert caller(*both, org_id="a").tenant_id == "acme"
    assert caller(*both, iss=RIVAL_ISSUER, org_id="b").tenant_id == "acme"


@pytest.mark.requirement("C29")
def test_two_issuers_without_tables_cannot_name_tenants() -> None:
    """`check` asks for tables, because the owner of a tenant would be unknown."""
    for name in (ISSUER, RIVAL_ISSUER):
        with pytest.raises(InvalidToken, match="tenant_not_exclusive"):
            caller(issuer(tenants={}), issuer(RIVAL_ISSUER, tenants={}), iss=name)


ROLES = {
    "approver": RoleRule(claim="roles", value="tool-approver"),
    "admin": RoleRule(claim="realm_access.roles", value="admin"),
}


@pytest.mark.parametrize(
    ("claims", "roles"),
    [
        ({}, set()),
        ({"roles": ["tool-approver"]}, {"approver"}),
        ({"roles": "tool-approver"}, {"approver"}),
        (
            {"roles": ["x", "tool-approver"], "realm_access": {"roles": ["admin"]}},
            {"approver", "admin"},
        ),
        ({"roles": ["tool-approver2", "Tool-Approver", ["tool-approver"]]}, set()),
        ({"roles": "x tool-approver"}, set()),
        ({"roles": {"tool-approver": True}}, set()),
        ({"roles": None, "realm_access": ["admin"]}, set()),
        ({"scope": "admin tool-approver"}, set()),
    ],
)
def test_roles_are_granted_only_by_role_rules(claims: dict[str, Any], roles: set[str]) -> None:
    """The claim must equal the value, or be a list that contains it."""
    assert caller(issuer(roles=ROLES), **claims).roles == roles
    assert caller(issuer(), **claims).roles == frozenset()


@pytest.mark.requirement("C31")
@pytest.mark.parametrize(
    "claims",
    [
        {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {}}},
        {"_claim_names": {"groups": "src1"}, "groups": ["approvers"]},
        {"hasgroups": True},
        {"hasgroups": "true"},
    ],
)
def test_a_token_with_omitted_groups_is_refused_if_a_role_needs_them(
    claims: dict[str, Any],
) -> None:
    """If no role depends on groups, omitted groups do not matter."""
    rule = {"approver": RoleRule(claim="groups", value="approvers")}
    with pytest.raises(InvalidToken, match="groups_unknown"):
        caller(issuer(roles=rule), **claims)
    assert caller(issuer(roles=ROLES), **claims).roles == frozenset()


@pytest.mark.requirement("C18", "C30")
def test_the_caller_has_the_actor_and_the_implied_scopes() -> None:
    """Display claims that are not plain text are left out."""
    policy = Policy(tenancy=Tenancy(), implications=Implications({"files:write": ["files:read"]}))
    context = caller(
        issuer(),
        policy=policy,
        act={"sub": "agent", "act": {"sub": "admin"}},
        name="Alice",
        email=["a@b"],
        preferred_username="a\nb",
    )

    assert context.scopes == {"files:write", "files:read"}
    assert context.actor == "agent"
    assert dict(context.claims) == {"name": "Alice"}
    assert context.principal_key == ("acme", ISSUER, "user", "alice")
    assert hash(context) == hash(context)
    assert "alice" not in repr(context)
