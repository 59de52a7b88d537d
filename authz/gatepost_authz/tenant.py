"""Map accepted claims to the caller: tenant and roles; pure functions."""

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from sys import intern
from types import MappingProxyType

import msgspec

from gatepost_authz.caller import TenantContext
from gatepost_authz.claim_values import MISSING, lookup
from gatepost_authz.claims import MAX_TEXT, AcceptedClaims
from gatepost_authz.config import TENANT_ID, ClientRule, Issuer, RoleRule
from gatepost_authz.errors import AuthError, InvalidToken
from gatepost_authz.presets import Preset
from gatepost_authz.protected_resource import Target
from gatepost_authz.scopes import Implications

HASHED = re.compile(r"t-[a-z2-7]{26}", re.ASCII)
MAX_DISPLAY = 256
REMEMBERED_TENANTS = 4096
"""The number of claim values whose tenant id is remembered; all its callers then share the text."""
NO_CLIENT_RULE = ClientRule()
NO_ROLES: frozenset[str] = frozenset()
NO_DISPLAY_CLAIMS: Mapping[str, str] = MappingProxyType({})


class Tenancy(msgspec.Struct, frozen=True):
    """The known tenants, and whether a token may create new ones."""

    create_on_first_use: bool = False
    known_tenants: frozenset[str] = frozenset()
    """The tenant ids of the configuration."""


class TenantRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which an issuer's tokens name tenants."""

    settings: Issuer
    preset: Preset
    closed: frozenset[str] | None
    """The tenants that this issuer may name; None if its claim or template decides."""
    foreign: frozenset[str] = frozenset()
    """Tenants that other issuers' settings reserve."""
    exclusive: bool = True
    """Whether this is the only issuer without a table of tenants."""
    claim: str
    """The claim that names the tenant unless the settings say otherwise; may be empty."""
    templated: bool
    """Whether the settings name a template of issuers, each of which signs for itself."""
    named_by_claim: bool = False
    """Whether the claim names the tenant, computed from the other fields."""

    def __post_init__(self) -> None:
        """Compute ``named_by_claim``: only the claim that repeats a template's segment can."""
        is_allowed = not self.templated or self.claim == self.preset.segment_claim
        is_named = bool(self.claim) and is_allowed and not self.settings.tenant.issuer
        msgspec.structs.force_setattr(self, "named_by_claim", is_named)


def every_caller(caller: TenantContext) -> None:
    """Accept every caller."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for callers of all issuers."""

    tenancy: Tenancy = Tenancy()
    implications: Implications = msgspec.field(default_factory=lambda: Implications({}))
    development: bool = False
    """Accept tokens of the development issuer."""
    admit: Callable[[TenantContext], None] = every_caller
    """Called last; raises AuthError for a revoked or suspended caller."""


@functools.lru_cache(maxsize=REMEMBERED_TENANTS)
def tenant_and_name(issuer: str, value: str) -> tuple[str, str]:
    """Return the tenant id of *value* at *issuer*, and the value."""
    return intern(tenant_id(issuer, value)), intern(value)


def tenant_id(issuer: str, value: str) -> str:
    """
    Return the tenant id of *value* at *issuer*: itself, or ``t-`` and 26 characters of its digest.

    Ids name directories, so nothing is lower-cased or cut into shape: two values never meet in
    one id.
    """
    # A value that already looks hashed is hashed as well. Otherwise an organisation could take the
    # id of another one, by choosing the hash of that one's name as its own name.
    if TENANT_ID.fullmatch(value) and not HASHED.fullmatch(value):
        return value
    digest = hashlib.sha256(f"{issuer}\0{value}".encode()).digest()
    return "t-" + base64.b32encode(digest)[:26].decode("ascii").lower()


def client_tenants(settings: Issuer) -> frozenset[str]:
    """Return the tenants of machines whose tokens name none."""
    return frozenset(rule.tenant for rule in settings.clients.values() if rule.tenant)


def reaches(tenant: str, rules: TenantRules) -> bool:
    """Return whether callers of an issuer can have *tenant*: by a claim, or by their client."""
    return tenant not in rules.foreign or tenant in client_tenants(rules.settings)


def closed_set(settings: Issuer) -> frozenset[str] | None:
    """Return the only tenants that *settings* allow an issuer to name, or None."""
    if settings.tenants:
        return frozenset(settings.tenants.values()) | client_tenants(settings)
    if settings.tenant.value:
        return frozenset({settings.tenant.value})
    if settings.tenant.issuer and "{" not in settings.issuer:
        return frozenset({tenant_id(settings.issuer, settings.issuer)})
    return None


def names_by_segment(settings: Issuer, preset: Preset) -> bool:
    """Return whether a templated issuer's open segment is what names the tenant."""
    claim = settings.tenant.claim or preset.tenant_claim
    # The claim that repeats the segment is held to be equal to it.
    return settings.tenant.issuer or (bool(claim) and claim == preset.segment_claim)


def caller_from(
    claims: Mapping[str, object],
    accepted: AcceptedClaims,
    rules: TenantRules,
    *,
    captured: str | None,
    target: Target,
    policy: Policy,
) -> TenantContext:
    """
    Return the caller that accepted *claims* speak for.

    *captured* is the part of a templated issuer that varied. InvalidToken: the tenant is not this
    caller's to name, a role cannot be decided, or the policy admits this caller no more.
    """
    settings = rules.settings
    client = client_rule(accepted, settings) if settings.clients else NO_CLIENT_RULE
    scopes = accepted.scopes if accepted.names_scopes else frozenset(client.scopes)
    tenant, tenant_claim = tenant_for(claims, rules, client, captured, policy.tenancy)
    try:
        if target.tenant is not None and target.tenant != tenant:
            raise InvalidToken("tenant_of_another_resource")
        client_id = accepted.client_id
        # Callers are cached in large numbers, and most have these four in common.
        caller = TenantContext(
            tenant_id=tenant,
            issuer=intern(str(claims["iss"])),
            subject=accepted.subject,
            subject_kind=accepted.subject_kind,
            resource=target.url,
            expires_at=accepted.expires_at,
            issued_at=accepted.issued_at,
            tenant_claim=tenant_claim,
            client_id=None if client_id is None else intern(client_id),
            actor=accepted.actor,
            scopes=policy.implications.expand(scopes),
            roles=roles_of(claims, settings.roles) if settings.roles else NO_ROLES,
            acr=accepted.acr,
            auth_time=accepted.auth_time,
            token_id=accepted.token_id,
            session_id=accepted.session_id,
            claims=display(claims, rules.preset),
            shared_audience=accepted.shared_audience,
        )
        policy.admit(caller)
    except AuthError as refusal:
        refusal.with_details(tenant=tenant)
        raise
    return caller


def name_tenant(
    refusal: AuthError,
    claims: Mapping[str, object],
    rules: TenantRules,
    *,
    captured: str | None,
    tenancy: Tenancy,
) -> None:
    """Add the tenant to the error if verified *claims* name a tenant of the issuer."""
    with suppress(AuthError):
        tenant, _ = tenant_of(claims, rules, issuer=str(claims.get("iss")), captured=captured)
        check_tenant(tenant, rules, tenancy)
        refusal.with_details(tenant=tenant)


def check_tenant(tenant: str, rules: TenantRules, tenancy: Tenancy) -> None:
    """Refuse a tenant that this issuer may not name, or that is unknown."""
    if tenant in rules.foreign:
        # Issuer B's administrator can put `org_id = acme` into any token of issuer B.
        raise InvalidToken("tenant_of_another_issuer").with_details(tenant=tenant)
    if rules.closed is not None:
        return
    if not rules.exclusive:
        raise InvalidToken("tenant_not_exclusive").with_details(tenant=tenant)
    if not (tenancy.create_on_first_use or tenant in tenancy.known_tenants):
        raise InvalidToken("unknown_tenant").with_details(tenant=tenant)


def client_rule(accepted: AcceptedClaims, settings: Issuer) -> ClientRule:
    """Return the rule of the machine that speaks for itself, or an empty one."""
    if accepted.subject_kind != "client" or accepted.client_id is None:
        return NO_CLIENT_RULE
    return settings.clients.get(accepted.client_id, NO_CLIENT_RULE)


def tenant_for(
    claims: Mapping[str, object],
    rules: TenantRules,
    client: ClientRule,
    captured: str | None,
    tenancy: Tenancy,
) -> tuple[str, str | None]:
    """
    Return the tenant, and the value that the token has for it.

    A tenant that the operator wrote down for one client is no claim of the issuer. InvalidToken:
    the issuer may not name the tenant.
    """
    if client.tenant and names_no_tenant(claims, rules):
        return client.tenant, None
    tenant_and_claim = tenant_of(claims, rules, issuer=str(claims["iss"]), captured=captured)
    check_tenant(tenant_and_claim[0], rules, tenancy)
    return tenant_and_claim


def tenant_of(
    claims: Mapping[str, object], rules: TenantRules, *, issuer: str, captured: str | None
) -> tuple[str, str | None]:
    """
    Return the tenant id that the token names by the issuer's rule, and the value that the token has
    for it; None: no claim names it. There is no default tenant.
    """
    if captured is not None:
        # Providers that sign for all tenants with shared keys repeat the tenant in a claim.
        repeated = rules.preset.segment_claim
        if repeated and claims.get(repeated) != captured:
            raise InvalidToken("issuer_disagrees_with_claim").with_details(claim=repeated)
    settings = rules.settings
    if settings.tenant.value:
        return settings.tenant.value, None
    value = named_by(claims, rules, captured)
    if settings.tenants:
        if value not in settings.tenants:
            raise InvalidToken("unknown_tenant")
        return settings.tenants[value], intern(value)
    return tenant_and_name(issuer, value)


def names_no_tenant(claims: Mapping[str, object], rules: TenantRules) -> bool:
    """
    Return whether a token of an issuer that names tenants by a claim does not have the claim.

    Issuers of a template sign for themselves: each could issue a token with that client id.
    """
    rule, claim = rules.settings.tenant, rules.claim
    if rule.value or rule.issuer or rules.templated or not claim:
        return False
    return lookup(claims, claim) is MISSING


def named_by(claims: Mapping[str, object], rules: TenantRules, captured: str | None) -> str:
    claim = rules.claim
    if rules.named_by_claim:
        value = claims.get(claim, MISSING)
        if not isinstance(value, str):
            value = lookup(claims, claim)
            if rules.settings.tenant.only_entry or claim == rules.preset.tenant_claim:
                value = only_entry(value)
    elif rules.settings.tenant.issuer:
        return captured if rules.templated and captured is not None else rules.settings.issuer
    elif not claim:
        raise InvalidToken("no_tenant_rule")
    else:
        # Each concrete issuer signs for itself. The administrator of one of them can write any
        # claim, and so could name the tenant of another one.
        raise InvalidToken("tenant_not_exclusive")
    if value is MISSING:
        raise InvalidToken("no_tenant").with_details(claim=claim)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise InvalidToken("bad_tenant").with_details(claim=claim)
    return value


def only_entry(value: object) -> object:
    """
    Return the only entry of an organisation claim that is a list or an object.

    Keycloak's ``organization`` lists every organisation of the user, as names or as an object
    keyed by name; with two of them the token does not say for which one it speaks.
    """
    if isinstance(value, dict | list) and len(value) == 1:
        return next(iter(value))
    return value


def roles_of(claims: Mapping[str, object], rules: Mapping[str, RoleRule]) -> frozenset[str]:
    """Return the roles whose rule the claims meet."""
    return frozenset(role for role, rule in rules.items() if matches_rule(claims, rule))


def matches_rule(claims: Mapping[str, object], rule: RoleRule) -> bool:
    if is_left_out(claims, rule.claim):
        # There are too many groups: the token says where to ask for them. Reading it as "none"
        # would be a guess, and a rule that removes rights would not apply.
        raise InvalidToken("groups_unknown").with_details(claim=rule.claim)
    value = lookup(claims, rule.claim)
    return value == rule.value or (isinstance(value, list) and rule.value in value)


def is_left_out(claims: Mapping[str, object], claim: str) -> bool:
    """
    Return whether a distributed claim stands in for *claim* (OpenID Connect Core 1.0, 5.6.2;
    Entra).
    """
    root = claim.partition(".")[0]
    claim_names = claims.get("_claim_names")
    if isinstance(claim_names, dict) and (claim in claim_names or root in claim_names):
        return True
    return root == "groups" and str(claims.get("hasgroups", "")).lower() == "true"


def display(claims: Mapping[str, object], preset: Preset) -> Mapping[str, str]:
    """Return the display claims; malformed ones are omitted."""
    if claims.keys().isdisjoint(preset.display_claims):
        return NO_DISPLAY_CLAIMS
    displayed = {}
    for name in preset.display_claims:
        value = claims.get(name)
        if isinstance(value, str) and 0 < len(value) <= MAX_DISPLAY and value.isprintable():
            displayed[name] = value
    return MappingProxyType(displayed) if displayed else NO_DISPLAY_CLAIMS
