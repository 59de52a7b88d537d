"""What `gatepost check` says about an issuer's rules is what the gate goes by."""

from typing import Any

from gatepost_authz.config import ClientRule, Introspection, TenantRule
from gatepost_authz.effective_rules import effective_rules
from gatepost_authz.presets import PRESETS
from gatepost_authz.token_rules import CallerMark, TokenRules
from tests.authz.conftest import RESOURCE, issuer
from tests.support.measuring import each


def rules(**changes: Any) -> dict[str, tuple[str, str]]:
    """Return each rule's text and setting, by its name."""
    description = effective_rules(issuer(**changes), RESOURCE)
    return {rule.name: (rule.text, rule.setting) for rule in description}


@each("name", PRESETS)
def test_every_preset_has_a_printed_text_for_each_rule(name: str) -> None:
    """Without token rules in the settings, no rule names a setting."""
    description = rules(preset=name)

    assert {"types", "required_claims", "machine", "person", "subject_claims"} <= description.keys()
    assert all(text for text, _ in description.values())
    assert not [setting for _, setting in description.values() if setting.startswith("tokens.")]


def test_a_rule_names_the_setting_that_changes_it() -> None:
    """The operator reads where each rule comes from."""
    description = rules(
        audiences=("api://gate",),
        tokens=TokenRules(
            types=("JWT",),
            subject_claims=("uid", "sub"),
            client_as_audience=True,
            must_equal={"use": "access"},
            machine=(CallerMark(subject_is_client=True, suffix="@clients"),),
        ),
        introspection=Introspection("gate", "env:S", token_prefix="at_", audience="client"),
    )

    assert description["types"] == ("jwt", "tokens.types")
    assert description["subject_claims"] == (
        "people: uid; machines also: sub",
        "tokens.subject_claims",
    )
    assert description["machine"] == ("the subject is the client id and @clients", "tokens.machine")
    assert description["must_equal"] == ("use = access", "tokens.must_equal")
    assert description["client_as_audience"][1] == "tokens.client_as_audience"
    assert description["audience_claims"] == (
        f"aud must name {RESOURCE} or api://gate",
        "audiences",
    )
    assert description["opaque tokens"] == ("those that begin with at_", "introspection")
    assert description["audience of answers"][0].startswith("may be missing")
    assert description["required_claims"][1] == ""
    assert description["required_claims"][0] == "client_id, exp, iat, iss, jti"


def test_opaque_tokens_are_printed_as_refused_if_the_preset_signs_tokens() -> None:
    """The printed rules match what the gate does."""
    introspection = Introspection("gate", "env:S", when="always")

    assert rules(preset="authentik", introspection=introspection)["opaque tokens"][0] == "none"
    assert rules(introspection=introspection)["opaque tokens"][0] == "all"
    assert rules(preset="google", audiences=("c",))["opaque tokens"] == ("all", "")


def test_tenant_and_scopes_from_client_rules_are_printed() -> None:
    """A machine may have scopes that its token does not name."""
    description = rules(
        tenant=TenantRule(claim="org", only_entry=True),
        clients={
            "a": ClientRule(tenant="acme", scopes=("files:read", "files:write")),
            "b": ClientRule(scopes=("files:read",)),
        },
    )

    assert description["tenant"][0] == "the claim org, also as the only entry of a list or object"
    assert description["clients"] == (
        "what a machine's token does not say: a: tenant acme, scopes files:read files:write; "
        "b: scopes files:read",
        "clients",
    )
