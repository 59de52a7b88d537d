"""ID tokens: the access token names the user who signed in, for our client and this sign-in."""

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gatepost_authz import InvalidToken, IssuerRegistry, TenantContext
from gatepost_authz.identity import ExpectedSignIn, check_identity
from gatepost_authz.token_rules import TokenRules
from tests.authz.conftest import (
    FORGE,
    ISSUER,
    NOW,
    RESOURCE,
    RIVAL_ISSUER,
    TARGET,
    AuthzKeys,
    issuer,
)
from tests.support.issuers import ABSENT, ec_key, ed_key, jwk, rsa_key, signer
from tests.support.measuring import each

CLIENT = "gatepost-dashboard"
ACCESS_TOKEN = "an-access-token"
CALLER = TenantContext(
    tenant_id="acme",
    issuer=ISSUER,
    subject="alice",
    subject_kind="user",
    resource=RESOURCE,
    expires_at=NOW + 300,
)


def login(preset: str = "generic", **changes: Any) -> ExpectedSignIn:
    """Return a sign-in at an issuer of that preset."""
    trusted = IssuerRegistry([issuer(preset=preset)]).issuers[0]
    usual = ExpectedSignIn(
        issuer=ISSUER,
        client_id=CLIENT,
        nonce="n-1",
        access_token=ACCESS_TOKEN,
        caller=CALLER,
        trusted=trusted,
        target=TARGET,
    )
    return msgspec.structs.replace(usual, **changes)


def identity(**claims: Any) -> str:
    """Return a good ID token; keywords change claims, `header` and `sign` change the rest."""
    usual = {
        "aud": CLIENT,
        "nonce": "n-1",
        "client_id": ABSENT,
        "jti": ABSENT,
        "scope": ABSENT,
        "iat": NOW,
        "exp": NOW + 300,
    }
    header = {"typ": "JWT"} | claims.pop("header", {})
    sign = claims.pop("sign", None)
    return FORGE.token(header=header, sign=sign, **usual | claims)


async def check(
    token: str, expected: ExpectedSignIn, keys: AuthzKeys | None = None, **options: Any
) -> None:
    await check_identity(token, expected, keys or AuthzKeys(), clock=lambda: NOW, **options)


async def test_at_hash_connects_both_tokens_if_they_have_no_common_subject() -> None:
    """django-oauth-toolkit has `username` in one token and a number as `sub` in the other."""
    rules = TokenRules(subject_claims=("username",))
    trusted = IssuerRegistry([issuer(tokens=rules)]).issuers[0]
    expected = login(trusted=trusted)

    await check(identity(sub="1", at_hash=half_hash(ACCESS_TOKEN)), expected)
    for token, reason in (
        (identity(sub="1"), "missing_claim"),
        (identity(sub="1", at_hash=half_hash("another")), "wrong_access_token"),
        (identity(sub="1", username="mallory", at_hash=half_hash(ACCESS_TOKEN)), "another_subject"),
    ):
        with pytest.raises(InvalidToken, match=reason):
            await check(token, expected)


def login_with_long_hash() -> str:
    return identity(at_hash=half_hash(ACCESS_TOKEN, "sha512"))


def half_hash(token: str, name: str = "sha256") -> str:
    whole = hashlib.new(name, token.encode()).digest()
    return base64.urlsafe_b64encode(whole[: len(whole) // 2]).rstrip(b"=").decode()


VALID_TOKENS: list[tuple[str, Callable[[], str]]] = [
    ("plain", identity),
    ("without typ", lambda: identity(header={"typ": ABSENT})),
    ("our own resource beside us", lambda: identity(aud=[CLIENT, RESOURCE])),
    ("no time of the sign-in", lambda: identity(auth_time=0)),
    ("several audiences and us as the party", lambda: identity(aud=[CLIENT, "x"], azp=CLIENT)),
    ("one audience in a list", lambda: identity(aud=[CLIENT])),
    ("the hash of the access token", lambda: identity(at_hash=half_hash(ACCESS_TOKEN))),
    ("within the leeway", lambda: identity(iat=NOW + 29, exp=NOW - 29)),
]


@pytest.mark.parametrize(("name", "make"), VALID_TOKENS, ids=[case[0] for case in VALID_TOKENS])
async def test_a_valid_id_token_of_this_sign_in_is_accepted(
    name: str, make: Callable[[], str]
) -> None:
    """The cases are the variants that OpenID Connect allows."""
    await check(make(), login())


REFUSED_TOKENS: list[tuple[str, str, Callable[[], str]]] = [
    ("an access token", "wrong_type", lambda: identity(header={"typ": "at+jwt"})),
    ("a logout token", "refused_type", lambda: identity(header={"typ": "logout+jwt"})),
    ("no signature", "refused_algorithm", lambda: identity(header={"alg": "none"})),
    ("a shared secret", "refused_algorithm", lambda: identity(header={"alg": "HS256"})),
    ("another algorithm", "algorithm_not_allowed", lambda: identity(header={"alg": "RS384"})),
    ("a stranger's key", "bad_signature", lambda: identity(sign=signer(rsa_key("other"), "RS256"))),
    ("an unknown key", "unknown_key", lambda: identity(header={"kid": "other"})),
    ("a development key", "development_token", lambda: identity(header={"kid": "dev-x"})),
    ("another issuer", "wrong_issuer", lambda: identity(iss=RIVAL_ISSUER)),
    ("no issuer", "wrong_issuer", lambda: identity(iss=ABSENT)),
    ("no subject", "missing_claim", lambda: identity(sub=ABSENT)),
    ("no expiry", "missing_claim", lambda: identity(exp=ABSENT)),
    ("no time of issue", "missing_claim", lambda: identity(iat=ABSENT)),
    ("no audience", "missing_claim", lambda: identity(aud=ABSENT)),
    ("expired", "expired", lambda: identity(exp=NOW - 30)),
    ("from the future", "not_yet_valid", lambda: identity(iat=NOW + 31)),
    ("a life too long", "lives_too_long", lambda: identity(exp=NOW + 86_401)),
    ("an expiry in quotes", "bad_exp", lambda: identity(exp=str(NOW + 300))),
    ("our resource as audience", "wrong_party", lambda: identity(aud=RESOURCE)),
    ("another client", "wrong_party", lambda: identity(aud="other")),
    ("another client of several", "wrong_party", lambda: identity(aud=["other", "more"])),
    ("several and no party", "wrong_party", lambda: identity(aud=[CLIENT, "x"])),
    ("ours, another and no party", "wrong_party", lambda: identity(aud=[CLIENT, RESOURCE, "x"])),
    ("an audience of no text", "wrong_party", lambda: identity(aud=[CLIENT, {}])),
    ("another party", "wrong_party", lambda: identity(azp="other")),
    ("no nonce", "wrong_nonce", lambda: identity(nonce=ABSENT)),
    ("another nonce", "wrong_nonce", lambda: identity(nonce="n-2")),
    ("a nonce of another kind", "wrong_nonce", lambda: identity(nonce=["n-1"])),
    ("another person", "another_subject", lambda: identity(sub="mallory")),
    ("an event", "missing_claim", lambda: identity(events={})),
    ("another access token", "wrong_access_token", lambda: identity(at_hash=half_hash("other"))),
    (
        "a hash of another size",
        "wrong_access_token",
        lambda: identity(at_hash=half_hash(ACCESS_TOKEN, "sha512")),
    ),
    ("a hash of another kind", "wrong_access_token", lambda: identity(at_hash=7)),
    ("garbage", "malformed_token", lambda: "a.b.c"),
    ("two parts", "malformed_token", lambda: "a.b"),
]


@each(("name", "reason", "make"), REFUSED_TOKENS, ids=[case[0] for case in REFUSED_TOKENS])
async def test_an_id_token_that_breaks_one_rule_is_refused(
    name: str, reason: str, make: Callable[[], str]
) -> None:
    """The rules are those of OpenID Connect Core 1.0 section 3.1.3.7."""
    with pytest.raises(InvalidToken) as refusal:
        await check(make(), login())

    assert refusal.value.reason == reason


@pytest.mark.parametrize(
    ("algorithm", "key", "digest"),
    [
        ("ES256", ec_key(), "sha256"),
        ("PS256", rsa_key(), "sha256"),
        ("EdDSA", ed_key(), "sha512"),
    ],
    ids=["ES256", "PS256", "EdDSA"],
)
async def test_at_hash_uses_the_hash_function_of_the_algorithm(
    algorithm: str, key: Any, digest: str
) -> None:
    """Section 3.1.3.6; Ed25519 uses SHA-512."""
    keys = AuthzKeys({ISSUER: [jwk(key)]})
    token = identity(
        header={"alg": algorithm},
        sign=signer(key, algorithm),
        at_hash=half_hash(ACCESS_TOKEN, digest),
    )
    await check(token, login(), keys)


PEOPLE = [
    # preset        claims of the ID token               stable id of the access token
    ("entra-v2", {"sub": "pairwise-here", "oid": "alice"}, True),
    ("entra-v2", {"sub": "alice", "oid": "mallory"}, False),
    ("entra-v2", {"sub": "pairwise-here"}, False),
    ("okta", {"sub": "alice"}, True),
    ("okta", {"sub": "alice@example.com", "uid": "alice"}, True),
    ("okta", {"sub": "alice", "uid": "mallory"}, False),
    ("keycloak", {"sub": "alice"}, True),
    ("auth0", {"sub": "auth0|alice"}, False),
]


@pytest.mark.parametrize(("preset", "claims", "same"), PEOPLE, ids=str)
async def test_the_stable_id_of_the_preset_identifies_the_same_person(
    preset: str, claims: dict[str, str], same: bool
) -> None:
    """Entra's `sub` differs between clients, Okta's between tokens."""
    token = identity(**claims)
    if same:
        await check(token, login(preset))
        return
    with pytest.raises(InvalidToken, match="another_subject"):
        await check(token, login(preset))


async def test_id_tokens_of_development_keys_are_accepted_in_development() -> None:
    """As for access tokens, and nowhere else."""
    keys = AuthzKeys({ISSUER: [jwk(rsa_key(), kid="dev-x")]})
    await check(identity(header={"kid": "dev-x"}), login(), keys, development=True)
