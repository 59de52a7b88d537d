"""Find token rules of an issuer that cannot work, or that accept more than its preset."""

from collections.abc import Iterator, Mapping

from gatepost_authz.config import Issuer, Problem
from gatepost_authz.findings import finding
from gatepost_authz.presets import Preset
from gatepost_authz.presets.preset import required_by
from gatepost_authz.signature import OTHER_TYPES
from gatepost_authz.token_rules import NO_SUBJECT, SUBJECT_IS_CLIENT, CallerMark, TokenRules

HINTS = {
    "authz.E034": "name one of no_subject, subject_is_client, subject, claim or absent",
    "authz.E035": "a person is marked by `subject = true` or by `claim`",
    "authz.E036": "name at least one, or remove the setting to keep the preset's",
    "authz.E037": "remove it; this provider's access tokens have the preset's value",
    "authz.E038": "name the `typ` of access tokens, for example at+jwt or jwt",
    "authz.W012": "add a value to `must_equal`, or a claim to `required_claims` or `forbidden`",
    "authz.W013": "name a claim that the provider never changes or reuses, for example sub",
    "authz.W014": "list only clients that are used for this server alone",
    "authz.W015": "keep them in the list if the provider writes them",
    "authz.W016": "let the provider write `aud`, which alone decides if it is there",
    "authz.W020": "use a claim that only the provider writes; machines' calls need other approvals",
    "authz.W021": "keep the marks of machines, and mark people by a claim that only they have",
}

OTHER_KINDS = OTHER_TYPES | {"id+jwt", "id_token", "rt+jwt", "refresh+jwt", "none"}
"""Types of tokens that are no access tokens."""
EDITABLE = frozenset(
    {"email", "name", "nickname", "preferred_username", "given_name", "family_name", "username"}
    | {"upn", "phone_number", "profile", "website", "picture"}
)
"""Claims that people can change at many providers, or that providers give to the next person."""
UNTYPED = frozenset({"", "jwt"})
"""Types that ID tokens have too."""
OF_ID_TOKENS = EDITABLE | {
    *("iss", "sub", "aud", "exp", "iat", "nbf", "jti", "sid", "azp", "acr", "amr", "auth_time"),
    *("nonce", "at_hash", "c_hash"),
}
"""Claims that ID tokens have too (OpenID Connect Core 1.0, sections 2 and 5.1)."""
LISTS = ("types", "subject_claims", "client_claims", "scope_claims", "audience_claims",
         "token_id_claims", "required_claims")  # fmt: skip
NEVER_EMPTY = frozenset({"types", "subject_claims", "client_claims"})
"""Lists without which no token could be accepted, or no machine be recognised."""
ALWAYS_MACHINES = frozenset({NO_SUBJECT, SUBJECT_IS_CLIENT})
"""Marks of machines whose tokens are refused without them, because `subject` fits no person."""


def problems(where: str, issuer: Issuer, preset: Preset) -> Iterator[Problem]:
    """Yield the problems of the token rules of *issuer*, whose preset is *preset*."""
    rules = issuer.tokens
    yield from _lists(f"{where}.tokens", rules)
    yield from _marks(f"{where}.tokens", rules)
    yield from _machines_as_people(f"{where}.tokens", rules, preset)
    yield from _contradictions(f"{where}.tokens", rules, preset)
    yield from _widened(f"{where}.tokens", rules, preset)


def _lists(where: str, rules: TokenRules) -> Iterator[Problem]:
    for name in LISTS:
        values = getattr(rules, name)
        if values is None:
            continue
        if not values and name in NEVER_EMPTY:
            yield finding(HINTS, "authz.E036", f"{where}.{name}", "the list is empty")
        if "" in values and name != "types":
            yield finding(HINTS, "authz.E036", f"{where}.{name}", "a name is empty")
    for name in ("machine", "person"):
        if getattr(rules, name) == () and name == "person" and rules.machine == ():
            message = "no token has a mark of a machine or of a person, so all are refused"
            yield finding(HINTS, "authz.E036", f"{where}.{name}", message)
    claims: Mapping[str, object] = {**rules.forbidden, **rules.must_equal}
    if "" in claims:
        yield finding(HINTS, "authz.E036", where, "a claim's name is empty")


def _marks(where: str, rules: TokenRules) -> Iterator[Problem]:
    for name in ("machine", "person"):
        for index, mark in enumerate(getattr(rules, name) or ()):
            setting = f"{where}.{name}[{index}]"
            if not is_one_mark(mark):
                message = "the mark does not name exactly one property of tokens"
                yield finding(HINTS, "authz.E034", setting, message)
            elif name == "person" and not (mark.subject or mark.claim):
                message = "the mark proves no person"
                yield finding(HINTS, "authz.E035", setting, message)
            elif name == "machine" and mark.subject:
                message = "every token with a subject would be a machine's"
                yield finding(HINTS, "authz.E034", setting, message)
            elif name == "machine" and (mark.claim in EDITABLE or mark.absent in EDITABLE):
                message = f"people can change {mark.claim or mark.absent!r} at many providers"
                yield finding(HINTS, "authz.W020", setting, message)


def _machines_as_people(where: str, rules: TokenRules, preset: Preset) -> Iterator[Problem]:
    """Yield warnings where a machine's token may count as a person's, who can approve calls."""
    machine = preset.machine if rules.machine is None else rules.machine
    if any(mark not in machine for mark in preset.machine if mark not in ALWAYS_MACHINES):
        message = (
            f"marks of {preset.name} for machines are missing, so machines may count as people"
        )
        yield finding(HINTS, "authz.W021", f"{where}.machine", message)
    common = preset.required | {"iss", "exp", *preset.client_claims, *preset.token_id_claims}
    for index, mark in enumerate(rules.person or ()):
        if mark.claim in common and not mark.value:
            message = f"machines' tokens have {mark.claim!r} too"
            yield finding(HINTS, "authz.W021", f"{where}.person[{index}]", message)


def is_one_mark(mark: CallerMark) -> bool:
    """Return whether *mark* names exactly one property, with no part of another."""
    criteria = (mark.no_subject, mark.subject_is_client, mark.subject, mark.claim, mark.absent)
    incomplete = (mark.suffix and not mark.subject_is_client) or (mark.value and not mark.claim)
    return sum(map(bool, criteria)) == 1 and not incomplete


def _contradictions(where: str, rules: TokenRules, preset: Preset) -> Iterator[Problem]:
    for claim, value in rules.must_equal.items():
        if preset.must_equal.get(claim, value) != value:
            message = f"the preset {preset.name} demands another value of {claim!r}"
            yield finding(HINTS, "authz.E037", f"{where}.must_equal", message)
    for kind in rules.types or ():
        if kind.lower().removeprefix("application/") in OTHER_KINDS:
            message = f"{kind!r} is not the type of an access token"
            yield finding(HINTS, "authz.E038", f"{where}.types", message)


def _widened(where: str, rules: TokenRules, preset: Preset) -> Iterator[Problem]:
    """Yield warnings where the settings accept tokens that the preset refuses."""
    added = {kind.lower().removeprefix("application/") for kind in rules.types or ()}
    marked = preset.must_equal or preset.access_marks or rules.must_equal or rules.forbidden
    marking_claims = frozenset(rules.required_claims or ()) - OF_ID_TOKENS
    if (added - preset.types) & UNTYPED and not (marked or marking_claims):
        message = "ID tokens have such types too, and nothing else tells access tokens apart"
        yield finding(HINTS, "authz.W012", f"{where}.types", message)
    for claim in (rules.subject_claims or ())[:1]:
        if claim in EDITABLE:
            message = f"people can change {claim!r} at many providers, and so become another person"
            yield finding(HINTS, "authz.W013", f"{where}.subject_claims", message)
    if rules.client_as_audience and not preset.client_as_audience:
        message = "tokens without audience are accepted from every client in `audiences`"
        yield finding(HINTS, "authz.W014", f"{where}.client_as_audience", message)
    dropped = sorted(preset.required - required_by(preset, rules) - {"aud"})
    if rules.required_claims is not None and dropped:
        message = f"tokens of {preset.name} usually have {', '.join(dropped)}, now not required"
        yield finding(HINTS, "authz.W015", f"{where}.required_claims", message)
    if rules.audience_claims:
        names = ", ".join(rules.audience_claims)
        message = f"without `aud`, the audience is taken from {names}"
        yield finding(HINTS, "authz.W016", f"{where}.audience_claims", message)
