"""The claim rules against an independent, slow judge: any claims, one answer, one kind of error."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gatepost_authz.claims import AcceptedClaims, ExpectedClaims, check_claims
from gatepost_authz.errors import AuthError
from gatepost_authz.presets import PRESETS
from tests.authz.conftest import FORGE, ISSUER, NOW, RESOURCE

EXPECTED_RULES = ExpectedClaims(
    issuer=ISSUER,
    resource=RESOURCE,
    audiences=frozenset({"api://gate"}),
    preset=PRESETS["generic"],
)
VALID_CLAIMS = FORGE.claims(jti="id-1")
NAMES = [
    *VALID_CLAIMS,
    "nbf",
    "acr",
    "auth_time",
    "sid",
    "act",
    "cnf",
    "nonce",
    "typ",
    "events",
    "other",
]

times = st.integers(NOW - 100_000, NOW + 100_000) | st.floats(NOW - 40, NOW + 40)
texts = st.sampled_from(["", "a", "a b", " a", "a\n", "x" * 256, "at+jwt", "ID", "refresh", "a\tb"])
audiences = st.sampled_from([RESOURCE, RESOURCE + "/", "api://gate", "https://other.example"])
unusual_values = st.sampled_from(
    [None, True, 0, -1, math.nan, math.inf, 2**53, 10**30, [], {}, {"sub": "a"}]
)
values = (
    times
    | texts
    | audiences
    | unusual_values
    | st.lists(audiences | texts | unusual_values, max_size=3)
)
changes = st.dictionaries(st.sampled_from(NAMES), values, max_size=4)
removals = st.sets(st.sampled_from([*VALID_CLAIMS]), max_size=1)


def is_time(value: object) -> bool:
    return (type(value) is int and 0 < value < 2**53) or (
        type(value) is float and math.isfinite(value) and 0 < value < 2**53
    )


def is_line(value: object, limit: int) -> bool:
    return (
        isinstance(value, str)
        and value != ""
        and len(value) <= limit
        and (value.isprintable() and value == value.strip(" "))
    )


def is_kind(claims: dict[str, Any]) -> bool:
    hints = {"cnf", "nonce", "at_hash", "c_hash", "s_hash", "events"} & claims.keys()
    return not hints and str(claims.get("typ")).lower() not in {
        "id",
        "refresh",
        "logout",
        "offline",
    }


def is_ours(audience: object) -> bool:
    named = audience if isinstance(audience, list) else [audience]
    return all(isinstance(name, str) and name for name in named) and any(
        name in {RESOURCE, "api://gate"} for name in named
    )


def is_now(claims: dict[str, Any]) -> bool:
    if not all(is_time(claims[name]) for name in ("exp", "iat")):
        return False
    if "nbf" in claims and not (is_time(claims["nbf"]) and claims["nbf"] <= NOW + 30):
        return False
    if "auth_time" in claims and not is_time(claims["auth_time"]):
        return False
    lives = claims["exp"] - claims["iat"]
    return claims["exp"] + 30 > NOW and claims["iat"] <= NOW + 30 and lives <= 86_400


def are_lines(claims: dict[str, Any]) -> bool:
    limits = {"sub": 255, "client_id": 2048, "jti": 512, "acr": 512, "sid": 512}
    if not all(is_line(claims[name], limits[name]) for name in limits if name in claims):
        return False
    act = claims.get("act", {"sub": "a"})
    return isinstance(act, dict) and is_line(act.get("sub"), 255)


def is_scope(value: object) -> bool:
    return isinstance(value, str) and all(
        32 <= ord(letter) < 127 and letter not in '"\\' for letter in value
    )


def is_acceptable(claims: dict[str, Any]) -> bool:
    """Return whether RFC 9068 and our limits accept these claims, rule by rule and slowly."""
    required = {"iss", "aud", "exp", "iat", "sub", "client_id", "jti"}
    return (
        required <= claims.keys()
        and is_kind(claims)
        and claims["iss"] == ISSUER
        and is_ours(claims["aud"])
        and is_now(claims)
        and are_lines(claims)
        and is_scope(claims.get("scope", ""))
    )


def accepted_claims(claims: dict[str, Any]) -> AcceptedClaims | None:
    try:
        return check_claims(claims, EXPECTED_RULES, now=NOW)
    except AuthError:
        return None


def changed_claims(changed: dict[str, Any], removed: set[str]) -> dict[str, Any]:
    return {name: value for name, value in (VALID_CLAIMS | changed).items() if name not in removed}


@given(changes, removals)
def test_arbitrary_claims_get_the_verdict_of_a_reference_implementation(
    changed: dict[str, Any], removed: set[str]
) -> None:
    """Claims are accepted exactly when every rule holds; otherwise an AuthError is raised."""
    claims = changed_claims(changed, removed)

    assert (accepted_claims(claims) is not None) is is_acceptable(claims)


@given(changes, removals, st.randoms(use_true_random=False))
def test_the_order_of_claims_and_unknown_claims_do_not_matter(
    changed: dict[str, Any], removed: set[str], random: Any
) -> None:
    """JSON objects have no order, and unknown claims are ignored (RFC 7519 section 4)."""
    claims = changed_claims(changed, removed)
    shuffled = [*claims.items(), ("x-unknown", changed), ("Sub", "root"), ("AUD", RESOURCE)]
    random.shuffle(shuffled)

    assert accepted_claims(dict(shuffled)) == accepted_claims(claims)


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(NAMES), values, max_size=12))
def test_arbitrary_claims_never_raise_another_error(claims: dict[str, Any]) -> None:
    """The result is a refusal or an acceptance."""
    assert (accepted_claims(claims) is not None) is is_acceptable(claims)
