"""Any settings of token rules: none accepts what the issuer's own words refuse."""

import asyncio
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz.caller import TenantContext
from gatepost_authz.claims import AcceptedClaims, check_claims
from gatepost_authz.config import Introspection, TenantRule
from gatepost_authz.errors import AuthError
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.presets import PRESETS, adjusted
from gatepost_authz.token_rules import CallerMark, TokenRules
from tests.authz.conftest import FORGE, ISSUER, NOW, RESOURCE, TARGET, VerifierGate, issuer
from tests.support.issuers import compact_jws, rsa_key, signer

OWN_AUDIENCE = "api://gate"
OTHER_ISSUER = "https://other.example"
CLAIMS = ["sub", "uid", "username", "email", "oid"]
CLIENTS = ["client_id", "azp", "cid"]
PERSONAL_CLAIMS = {"username", "preferred_username", "email", "upn", "auth_time", "amr"}


def optional_list(names: list[str], least: int = 0) -> Any:
    """Draw None, or some of *names* in any order."""
    lists = st.lists(st.sampled_from(names), min_size=least, max_size=3, unique=True)
    return st.none() | lists.map(tuple)


marks = st.sampled_from(
    [
        CallerMark(no_subject=True),
        CallerMark(subject_is_client=True),
        CallerMark(subject_is_client=True, suffix="@clients"),
        CallerMark(claim="gty"),
        CallerMark(claim="gty", value="client-credentials"),
        CallerMark(absent="scp"),
    ]
)
proofs = st.sampled_from(
    [CallerMark(subject=True), CallerMark(claim="username"), CallerMark(claim="scp")]
)
kinds = st.dictionaries(st.sampled_from(["use", "token_use"]), st.just(()), max_size=1)
rules = st.builds(
    TokenRules,
    types=optional_list(["at+jwt", "JWT", "", "application/jwt", "dpop+jwt", "logout+jwt"], 1),
    required_claims=optional_list(["iat", "sub", "jti", "client_id", "scope", "aud"]),
    audience_claims=optional_list(["resource", "azp", "aud"]),
    client_as_audience=st.none() | st.booleans(),
    subject_claims=optional_list(CLAIMS, 1),
    client_claims=optional_list(CLIENTS, 1),
    scope_claims=optional_list(["scope", "scp", "roles", "realm_access.roles"]),
    scope_list=st.none() | st.booleans(),
    token_id_claims=optional_list(["jti", "uti"]),
    forbidden=kinds,
    must_equal=st.dictionaries(st.just("use"), st.just("access"), max_size=1),
    machine=st.none() | st.lists(marks, max_size=3).map(tuple),
    person=st.none() | st.lists(proofs, max_size=2).map(tuple),
)
presets = st.sampled_from(sorted(PRESETS))

audiences = st.sampled_from(
    [
        RESOURCE,
        OWN_AUDIENCE,
        OTHER_ISSUER,
        "client-1",
        [OTHER_ISSUER],
        [OTHER_ISSUER, OWN_AUDIENCE],
        [],
        7,
    ]
)
texts = st.sampled_from(
    ["alice", "bob", "client-1", "client-1@clients", "client-2", OWN_AUDIENCE, ""]
)
POISONED_CLAIMS: list[tuple[str, Any]] = [
    ("iss", f"{ISSUER}/"),
    ("iss", OTHER_ISSUER),
    ("exp", NOW - 31),
    ("exp", NOW),
    ("exp", 0),
    ("exp", "soon"),
    ("exp", NOW + 10**7),
    ("nbf", NOW + 600),
    ("iat", NOW + 600),
    ("scope", 7),
    ("typ", "ID"),
    ("typ", "Refresh"),
    ("token_use", "id"),
    ("token_use", "refresh"),
    ("nonce", "n"),
    ("at_hash", "h"),
    ("events", {}),
    ("cnf", {"jkt": "x"}),
]
"""Claims that say that a token opens nothing, or not now."""
harmless = st.fixed_dictionaries(
    {},
    optional={
        "aud": audiences,
        "resource": audiences,
        **dict.fromkeys([*CLAIMS, *CLIENTS, "uti"], texts),
        "gty": st.sampled_from(["client-credentials", "password"]),
        "idtyp": st.sampled_from(["app", "user"]),
        "scope": st.sampled_from(["files:write", ["files:write"]]),
        "scp": st.sampled_from(["files:write", ["files:write"]]),
        "auth_time": st.just(NOW - 5),
        "use": st.just("access"),
    },
)
values = st.tuples(harmless, st.lists(st.sampled_from(POISONED_CLAIMS), max_size=1)).map(
    lambda both: both[0] | dict(both[1])
)
removals = st.sets(st.sampled_from(["aud", "sub", "client_id", "jti", "scope"]), max_size=2)
types = st.sampled_from(["at+jwt", "JWT", None, "dpop+jwt", "logout+jwt", "application/at+jwt"])


def claims_of(name: str, changed: dict[str, Any], removed: set[str]) -> dict[str, Any]:
    """Return the claims of a good token of that preset, with these changed and removed."""
    preset = PRESETS[name]
    required = dict.fromkeys(preset.required, "x") | {"nbf": NOW}
    usual = required | FORGE.claims(jti="id-1") | preset.must_equal
    return {name: value for name, value in usual.items() if name not in removed} | changed


def is_ours(audience: object, accepted: set[str]) -> bool:
    named = audience if isinstance(audience, list) else [audience]
    return bool({name for name in named if isinstance(name, str)} & accepted)


def is_bound(claims: dict[str, Any], rules: TokenRules, *, listed: bool) -> bool:
    """Return whether the token is for us, as the issuer says itself; *listed*: by its client."""
    accepted = {RESOURCE, OWN_AUDIENCE}
    if "aud" in claims:
        return is_ours(claims["aud"], accepted)
    if any(is_ours(claims.get(name), accepted) for name in rules.audience_claims or ()):
        return True
    return listed and any(claims.get(name) == OWN_AUDIENCE for name in (*CLIENTS, "sub"))


def is_access_token(claims: dict[str, Any], name: str) -> bool:
    """Return whether the claims allow an access token that is valid now, for any subject."""
    ends = claims.get("exp")
    in_time = isinstance(ends, int) and ends + 30 > NOW and ends < NOW + 90_000
    starts = all(claims.get(time, NOW) <= NOW + 30 for time in ("nbf", "iat"))
    other = str(claims.get("typ")).lower() in {"id", "refresh"}
    other |= claims.get("token_use") in {"id", "refresh"}
    # authentik makes access tokens of ID tokens; only there a nonce says nothing.
    signs = {"events", "cnf"} | (set() if name == "authentik" else {"nonce", "at_hash"})
    return (
        claims.get("iss") == ISSUER
        and in_time
        and starts
        and not other
        and not (signs & claims.keys())
    )


def has_a_subject(
    claims: dict[str, Any], accepted: AcceptedClaims | TenantContext, name: str, rules: TokenRules
) -> bool:
    """Return whether a person's subject is its claim, and a client without subject is no person."""
    chosen = adjusted(PRESETS[name], rules).subject_claims
    if accepted.subject_kind == "user":
        return bool(accepted.subject == claims[chosen[0]])
    if accepted.subject in [claims.get(claim) for claim in (*chosen, "sub")]:
        return True
    # The client itself: either nothing speaks of a person, or an explicit mark says machine.
    marked = rules.machine or PRESETS[name].machine
    explicit = any(mark.claim or mark.absent for mark in marked)
    return explicit or not (PERSONAL_CLAIMS | {"sub"}) & claims.keys()


def verified_caller(gate: VerifierGate, token: str) -> TenantContext | None:
    async def verify() -> TenantContext | None:
        try:
            return await gate.verifier.verify(token, TARGET)
        except AuthError:
            return None

    return asyncio.run(verify())


def settings_of(name: str, rules: TokenRules) -> Any:
    return issuer(
        preset=name,
        algorithms=("RS256",),
        audiences=(OWN_AUDIENCE,),
        tenant=TenantRule(value="acme"),
        tenants={},
        tokens=rules,
    )


@given(presets, rules, values, removals, types)
def test_no_token_rules_accept_a_token_with_a_wrong_basic_claim(
    name: str, rules: TokenRules, changed: dict[str, Any], removed: set[str], kind: str | None
) -> None:
    """A wrong issuer, audience, time, kind of token or person is always refused."""
    claims = claims_of(name, changed, removed)
    header = {"typ": kind} if kind else {"typ": None}
    gate = VerifierGate(settings_of(name, rules))
    listed = adjusted(PRESETS[name], rules).client_as_audience

    caller = verified_caller(gate, signed_token(claims, header))

    if caller is not None:
        assert is_access_token(claims, name)
        assert kind in {"at+jwt", "JWT", None, "application/at+jwt"}
        assert is_bound(claims, rules, listed=listed)
        assert has_a_subject(claims, caller, name, rules)
    assert verified_caller(gate, signed_token(claims, header, key="stranger")) is None


def signed_token(claims: dict[str, Any], header: dict[str, Any], key: str = "main") -> str:
    whole = {"alg": "RS256", "kid": "main", **{k: v for k, v in header.items() if v is not None}}
    return compact_jws(whole, claims, signer(rsa_key(key), "RS256"))


@given(presets, rules, values, removals, st.booleans())
def test_no_token_rules_accept_a_response_with_a_wrong_basic_claim(
    name: str, rules: TokenRules, changed: dict[str, Any], removed: set[str], stated: bool
) -> None:
    """A response without audience is accepted only if a setting binds it to a client."""
    claims = claims_of(name, changed, removed)
    introspection = Introspection("gate", "env:S", audience="client" if stated else "token")
    settings = msgspec.structs.replace(settings_of(name, rules), introspection=introspection)
    trusted = IssuerRegistry([settings]).issuers[0]
    try:
        accepted = check_claims(claims, trusted.expects_of_answer(TARGET), now=NOW)
    except AuthError:
        return

    assert is_access_token(claims, name)
    unnamed = "aud" not in claims and stated
    listed = trusted.preset.client_as_audience
    assert unnamed or is_bound(claims, rules, listed=listed)
    assert has_a_subject(claims, accepted, name, rules)


@given(presets, rules, values, removals)
def test_forbidden_and_must_equal_never_accept_more_tokens(
    name: str, rules: TokenRules, changed: dict[str, Any], removed: set[str]
) -> None:
    """Removing both settings accepts every token that was accepted with them."""
    claims = claims_of(name, changed, removed)
    loose = msgspec.structs.replace(rules, forbidden={}, must_equal={})

    def passes(chosen: TokenRules) -> bool:
        trusted = IssuerRegistry([settings_of(name, chosen)]).issuers[0]
        try:
            check_claims(claims, trusted.expects(ISSUER, TARGET), now=NOW)
        except AuthError:
            return False
        return True

    assert not passes(rules) or passes(loose)
