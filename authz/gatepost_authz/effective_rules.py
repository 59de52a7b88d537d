"""Describe in words which tokens an issuer's settings and preset accept."""

from collections.abc import Iterable, Iterator

import msgspec

from gatepost_authz.config import ClientRule, Introspection, Issuer
from gatepost_authz.issuers import has_opaque_tokens
from gatepost_authz.presets import PRESETS, Preset, adjusted
from gatepost_authz.token_rules import CallerMark, TokenRules

NO_RULES = TokenRules()


class EffectiveRule(msgspec.Struct, frozen=True):
    """One rule for the tokens of an issuer."""

    name: str
    """The rule's name; that of its setting if there is one."""
    text: str
    """The accepted values."""
    setting: str = ""
    """The setting that changes the rule, if the issuer's table has it; otherwise the preset's."""


def effective_rules(issuer: Issuer, resource: str) -> tuple[EffectiveRule, ...]:
    """Return the rules for the tokens of *issuer*; empty if its preset does not exist."""
    if issuer.preset not in PRESETS:
        return ()
    preset = adjusted(PRESETS[issuer.preset], issuer.tokens)
    return (
        *_form(issuer, preset),
        *_meaning(issuer, preset, resource),
        *_introspection_rules(issuer, preset),
    )


def _form(issuer: Issuer, preset: Preset) -> Iterator[EffectiveRule]:
    """Yield the rules for the kind of token."""
    rules = issuer.tokens
    types = ", ".join(sorted(kind or "none" for kind in preset.types))
    yield _rule(rules, "types", types or "no signed tokens")
    algorithms = ", ".join(issuer.algorithms or preset.algorithms)
    yield EffectiveRule("algorithms", algorithms, "algorithms" if issuer.algorithms else "")
    yield _rule(rules, "required_claims", ", ".join(sorted(preset.required | {"iss", "exp"})))
    if preset.must_equal:
        values = ", ".join(f"{claim} = {value}" for claim, value in preset.must_equal.items())
        yield _rule(rules, "must_equal", values)
    forbidden = ", ".join(
        claim if not values else f"{claim} = {' or '.join(sorted(values))}"
        for claim, values in preset.forbidden.items()
    )
    yield _rule(rules, "forbidden", forbidden)
    leeway = f"at most {issuer.max_lifetime_s} s, {issuer.leeway_s} s of clock difference"
    yield EffectiveRule("lifetime", leeway, "max_lifetime_s")


def _meaning(issuer: Issuer, preset: Preset, resource: str) -> Iterator[EffectiveRule]:
    """Yield the rules for what a token says."""
    rules = issuer.tokens
    accepted = " or ".join((resource, *issuer.audiences))
    names = " or else ".join(("aud", *preset.audience_claims))
    text = f"{names} must name {accepted}"
    if rules.audience_claims is None and issuer.audiences:
        yield EffectiveRule("audience_claims", text, "audiences")
    else:
        yield _rule(rules, "audience_claims", text)
    if preset.client_as_audience:
        clients = " or ".join(issuer.audiences) or "none, because `audiences` is empty"
        text = f"without audience, the client must be {clients}"
        yield _rule(rules, "client_as_audience", text)
    person, *machine_claims = preset.subject_claims
    subject = f"people: {person}" + "".join(f"; machines also: {claim}" for claim in machine_claims)
    yield _rule(rules, "subject_claims", subject)
    yield _rule(rules, "machine", _marks(preset.machine, preset))
    yield _rule(rules, "person", _marks(preset.person, preset))
    yield _rule(rules, "client_claims", ", ".join(preset.client_claims))
    scope_form = "text or list" if preset.scope_list else "`scope` is text"
    yield _rule(rules, "scope_claims", f"{', '.join(preset.scope_claims) or 'none'} ({scope_form})")
    yield _rule(rules, "token_id_claims", ", ".join(preset.token_id_claims) or "none")
    yield EffectiveRule("tenant", _tenant(issuer, preset), "tenant" if _has_rule(issuer) else "")
    if issuer.clients:
        machines = "; ".join(f"{name}: {_client(rule)}" for name, rule in issuer.clients.items())
        text = f"what a machine's token does not say: {machines}"
        yield EffectiveRule("clients", text, "clients")


def _introspection_rules(issuer: Issuer, preset: Preset) -> Iterator[EffectiveRule]:
    """Yield the rules for introspection."""
    introspection = issuer.introspection
    if introspection is None:
        text = "all" if preset.introspection_form == "tokeninfo" else "refused"
        yield EffectiveRule("opaque tokens", text)
        return
    opaque = (
        f"those that begin with {introspection.token_prefix}"
        if introspection.token_prefix
        else "all"
    )
    suffix = ", also those of other issuers" if introspection.ask_in_turn else ""
    accepted = f"{opaque}{suffix}" if has_opaque_tokens(issuer, preset) else "none"
    yield EffectiveRule("opaque tokens", accepted, "introspection")
    if introspection.when == "always" or preset.introspects_signed:
        text = "the issuer is asked about them, and both must agree"
        setting = "introspection.when" if introspection.when == "always" else ""
        yield EffectiveRule("signed tokens", text, setting)
    yield EffectiveRule(
        "audience of answers", _audience_of_answers(introspection), "introspection.audience"
    )


def _audience_of_answers(introspection: Introspection) -> str:
    if introspection.audience == "client":
        return "may be missing: you state that the issuer answers only about tokens for us"
    return "as in tokens"


def _rule(rules: TokenRules, name: str, text: str) -> EffectiveRule:
    changed = getattr(rules, name) != getattr(NO_RULES, name)
    return EffectiveRule(name, text, f"tokens.{name}" if changed else "")


def _has_rule(issuer: Issuer) -> bool:
    return bool(issuer.tenant.claim or issuer.tenant.value or issuer.tenant.issuer)


def _tenant(issuer: Issuer, preset: Preset) -> str:
    if issuer.tenant.value:
        return f"always {issuer.tenant.value}"
    if issuer.tenant.issuer:
        return "the issuer, or the part of it that varies"
    claim = issuer.tenant.claim or preset.tenant_claim
    only_entry = issuer.tenant.only_entry or claim == preset.tenant_claim
    suffix = ", also as the only entry of a list or object" if only_entry else ""
    return f"the claim {claim}{suffix}" if claim else "none"


def _client(rule: ClientRule) -> str:
    tenant = f"tenant {rule.tenant}" if rule.tenant else ""
    scopes = f"scopes {' '.join(rule.scopes)}" if rule.scopes else ""
    return ", ".join(filter(None, (tenant, scopes))) or "nothing"


def _marks(marks: Iterable[CallerMark], preset: Preset) -> str:
    return " or ".join(_mark(mark, preset) for mark in marks) or "none"


def _mark(mark: CallerMark, preset: Preset) -> str:
    if mark.no_subject:
        return "there is no subject"
    if mark.subject_is_client:
        return f"the subject is the client id{f' and {mark.suffix}' if mark.suffix else ''}"
    if mark.subject:
        return f"{preset.subject_claims[0]} is present and not the client id"
    if mark.absent:
        return f"{mark.absent} is missing"
    return f"{mark.claim} = {mark.value}" if mark.value else f"{mark.claim} is present"
