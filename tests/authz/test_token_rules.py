"""An issuer's own token rules: what they change in its preset, and what they cannot."""

from typing import Any

import pytest

from gatepost_authz.claims import AcceptedClaims, check_claims
from gatepost_authz.config import TenantRule
from gatepost_authz.errors import InvalidToken, WrongAudience
from gatepost_authz.issuers import IssuerRegistry
from gatepost_authz.presets import PRESETS, adjusted
from gatepost_authz.token_rules import NO_SUBJECT, SUBJECT, CallerMark, TokenRules
from tests.authz.conftest import FORGE, ISSUER, NOW, RESOURCE, TARGET, VerifierGate, issuer
from tests.support.issuers import ABSENT
from tests.support.measuring import each

OTHER_ISSUER = "https://other.example"


def accepted_claims(
    rules: TokenRules, *, preset: str = "generic", **changes: Any
) -> AcceptedClaims:
    """Return what the gate reads in a token with these changed claims."""
    settings = issuer(preset=preset, audiences=("api://gate",), tokens=rules)
    trusted = IssuerRegistry([settings]).issuers[0]
    claims = FORGE.claims(**{"jti": "id-1"} | changes)
    present = {name: value for name, value in claims.items() if value is not ABSENT}
    return check_claims(present, trusted.expects(ISSUER, TARGET), now=NOW)


def test_empty_token_rules_leave_a_preset_unchanged() -> None:
    """A setting that is left out keeps the preset's rule."""
    for preset in PRESETS.values():
        assert adjusted(preset, TokenRules()) == preset


@each(
    ("rules", "changes"),
    [
        (TokenRules(subject_claims=("uid",)), {"uid": "alice", "sub": ABSENT}),
        (TokenRules(subject_claims=("user.id",)), {"user": {"id": "alice"}, "sub": ABSENT}),
        (TokenRules(client_claims=("azp",)), {"azp": "client-1", "client_id": ABSENT}),
        (TokenRules(token_id_claims=("uti",)), {"uti": "id-1", "jti": ABSENT}),
        (TokenRules(scope_list=True), {"scope": ["files:write"]}),
        (TokenRules(scope_claims=("permissions",)), {"permissions": ["files:write"]}),
        (
            TokenRules(scope_claims=("realm_access.roles",)),
            {"realm_access": {"roles": ["files:write"]}},
        ),
        (TokenRules(required_claims=("sub",)), {"jti": ABSENT, "iat": ABSENT}),
        (TokenRules(must_equal={"realm.use": "access"}), {"realm": {"use": "access"}}),
    ],
)
def test_each_token_rule_can_be_changed_by_a_setting(
    rules: TokenRules, changes: dict[str, Any]
) -> None:
    """The preset refuses the token or reads it differently; the setting changes that."""
    accepted = accepted_claims(rules, **changes)

    assert (accepted.subject, accepted.subject_kind) == ("alice", "user")
    assert accepted.scopes == {"files:write"}
    assert accepted.client_id == "client-1"


@each(
    ("reason", "rules", "changes"),
    [
        ("missing_claim", TokenRules(subject_claims=("uid",)), {}),
        ("missing_claim", TokenRules(client_claims=("azp",)), {}),
        ("missing_claim", TokenRules(required_claims=("acr",)), {}),
        ("missing_claim", TokenRules(required_claims=()), {"exp": ABSENT}),
        ("wrong_kind", TokenRules(forbidden={"use": ()}), {"use": "any"}),
        ("wrong_kind", TokenRules(forbidden={"use": ("Id",)}), {"use": "ID"}),
        ("wrong_kind", TokenRules(forbidden={"typ": ("x",)}), {"typ": "Refresh"}),
        ("wrong_kind", TokenRules(), {"typ": ["Refresh"]}),
        ("wrong_kind", TokenRules(), {"token_use": ["access", "ID"]}),
        ("wrong_kind", TokenRules(forbidden={"nonce": ("x",)}), {"nonce": "y"}),
        ("wrong_kind", TokenRules(must_equal={"use": "access"}), {}),
        ("bad_scope", TokenRules(), {"scope": ["files:write"]}),
        ("bad_scope", TokenRules(scope_list=True), {"scope": ["a b"]}),
        ("bad_claim", TokenRules(subject_claims=("user.id",)), {"user": {"id": 7}}),
        ("unknown_caller_kind", TokenRules(person=(CallerMark(claim="scp"),)), {}),
        ("unknown_caller_kind", TokenRules(person=()), {}),
        (
            "unknown_caller_kind",
            TokenRules(machine=(CallerMark(claim="gty", value="client-credentials"),)),
            {"sub": "client-1"},
        ),
    ],
)
def test_token_rules_refuse_tokens_with_their_own_reason(
    reason: str, rules: TokenRules, changes: dict[str, Any]
) -> None:
    """The text for the reason names the setting."""
    with pytest.raises(InvalidToken) as refusal:
        accepted_claims(rules, **changes)

    assert refusal.value.reason == reason


@each("value", [None, "", False, [], {}])
@each(
    "rules",
    [
        TokenRules(person=(CallerMark(claim="username"),)),
        TokenRules(machine=(CallerMark(claim="username"),)),
        TokenRules(machine=(CallerMark(absent="username"),)),
    ],
)
def test_empty_claims_do_not_mark_a_person_or_a_machine(rules: TokenRules, value: object) -> None:
    """Some issuers write `"username": null` for machines."""
    with pytest.raises(InvalidToken) as refusal:
        accepted_claims(rules, username=value)

    assert (refusal.value.reason, refusal.value.claim) == ("unknown_caller_kind", "username")


@each(
    ("name", "claim", "value"),
    [("keycloak", "typ", "ID"), ("cognito", "token_use", "id"), ("entra-v2", "ver", "1.0")],
)
def test_token_rules_cannot_override_required_values_of_a_preset(
    name: str, claim: str, value: str
) -> None:
    """Another value would accept the provider's ID or refresh tokens."""
    rules = TokenRules(must_equal={claim: value}, forbidden={}, required_claims=())

    merged = adjusted(PRESETS[name], rules)

    assert merged.must_equal == PRESETS[name].must_equal
    assert merged.access_marks <= merged.required


@each("name", ["authentik", "zitadel", "okta", "entra-v2", "pingone"])
def test_claims_that_mark_access_tokens_stay_required(name: str) -> None:
    """An empty list of required claims removes only other claims."""
    merged = adjusted(PRESETS[name], TokenRules(required_claims=()))

    assert merged.required == PRESETS[name].access_marks | {"iss", "exp"}
    assert PRESETS[name].access_marks


AUDIENCES = TokenRules(audience_claims=("resource", "azp"), client_as_audience=True)


@each(
    "changes",
    [
        {"aud": OTHER_ISSUER, "resource": RESOURCE},
        {"aud": OTHER_ISSUER, "client_id": "api://gate"},
        {"aud": ABSENT, "resource": OTHER_ISSUER, "azp": RESOURCE},
        {"aud": ABSENT, "resource": OTHER_ISSUER, "client_id": "api://gate"},
        {"aud": ABSENT, "client_id": RESOURCE},
        {"aud": ABSENT},
        {"aud": [], "resource": RESOURCE},
        {"aud": None, "resource": RESOURCE},
    ],
)
def test_an_existing_audience_claim_always_decides(changes: dict[str, Any]) -> None:
    """No other claim and no client id replaces an audience that the token has."""
    with pytest.raises((WrongAudience, InvalidToken), match="audience"):
        accepted_claims(AUDIENCES, **changes)


@each(
    "changes",
    [
        {"aud": ABSENT, "resource": RESOURCE},
        {"aud": ABSENT, "azp": "api://gate"},
        {"aud": ABSENT, "client_id": "api://gate", "sub": "alice"},
    ],
)
def test_a_missing_audience_can_be_read_from_another_claim(changes: dict[str, Any]) -> None:
    """The operator names the claims, or lists the clients."""
    assert accepted_claims(AUDIENCES, **changes).subject == "alice"


async def test_additional_token_types_are_accepted() -> None:
    """Case and `application/` do not matter; types of other kinds of token are refused."""
    gate = VerifierGate(
        issuer(tokens=TokenRules(types=("JWT", "application/my+jwt", "logout+jwt")))
    )

    for kind in ("jwt", "JWT", "my+jwt", "application/MY+jwt"):
        await gate.accepted(FORGE.token(header={"typ": kind}))
    assert (await gate.refused(FORGE.token(header={"typ": "at+jwt"}))).reason == "wrong_type"
    assert (await gate.refused(FORGE.token(header={"typ": "logout+jwt"}))).reason == "refused_type"


@each("rules", [TokenRules(subject_claims=()), TokenRules(client_claims=())])
def test_rules_without_subject_or_client_claims_are_refused(rules: TokenRules) -> None:
    """An issuer with such rules is never used."""
    with pytest.raises(ValueError, match="must have a claim"):
        IssuerRegistry([issuer(tokens=rules)])


def test_token_rules_of_one_issuer_do_not_change_the_preset() -> None:
    """A second issuer of the same preset keeps the preset's rules."""
    before = PRESETS["generic"]
    changed = issuer(tokens=TokenRules(types=("jwt",), forbidden={"x": ()}))
    plain = issuer("https://b.example", tenant=TenantRule(value="b"), tenants={})

    first, second = IssuerRegistry([changed, plain]).issuers

    assert first.preset.types == {"jwt"}
    assert second.preset is not first.preset
    assert second.preset == before == PRESETS["generic"]
    assert "x" not in PRESETS["generic"].forbidden


def test_a_machine_mark_can_make_the_subject_claim_optional() -> None:
    """The mark says that a missing subject means a machine."""
    rules = TokenRules(machine=(NO_SUBJECT,), person=(SUBJECT,))

    accepted = accepted_claims(rules, sub=ABSENT)

    assert (accepted.subject, accepted.subject_kind) == ("client-1", "client")
    with pytest.raises(InvalidToken, match="no_subject"):
        accepted_claims(rules, sub=ABSENT, username="alice")
