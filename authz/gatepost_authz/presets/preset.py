"""The fields in which identity providers differ, and the merge with an issuer's own settings."""

from typing import Literal

import msgspec

from gatepost_authz.token_rules import (
    NO_SUBJECT,
    SUBJECT,
    SUBJECT_IS_CLIENT,
    CallerMark,
    TokenRules,
)

ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
REQUIRED = frozenset({"iss", "aud", "exp", "iat", "sub", "client_id", "jti"})
PRESENCE: frozenset[str] = frozenset()
# Members that only other kinds of tokens have, whatever a preset says: security events and logout
# tokens (RFC 8417), introspection answers (RFC 9701), proofs (RFC 9449).
OTHER_KINDS = frozenset({"events", "token_introspection", "htm", "htu"})
BOUND = frozenset({"cnf"})
"""The member of a token that is bound to a key (RFC 7800), which any preset refuses."""
OTHER_TOKENS = {
    # Nonces and hashes bind an ID token to one sign-in (OpenID Connect Core 1.0, 2 and 3.3.2.11).
    # An access token does not need them, and an ID token must never be accepted as an access token.
    "nonce": PRESENCE,
    "at_hash": PRESENCE,
    "c_hash": PRESENCE,
    "s_hash": PRESENCE,
    # Back-channel logout tokens and security events (RFC 8417) are signed with the same keys.
    "events": PRESENCE,
    "typ": frozenset({"id", "refresh", "offline", "logout"}),
    "token_use": frozenset({"id", "refresh"}),
}
# authentik makes access tokens out of ID tokens and leaves nonce and hashes in.
NOT_ACCESS = {name: values for name, values in OTHER_TOKENS.items() if values or name == "events"}
STANDARD = frozenset({"iss", "aud", "exp", "iat", "sub"})
GUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
NEVER_OPTIONAL = frozenset({"iss", "exp"})


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """
    How one provider's access tokens differ from the RFC 9068 profile.

    Every default is the strict profile: a row names only where its provider departs from it.
    Where several claims are listed, the first that is present decides; they are never joined.
    """

    name: str
    documentation: str
    """Where the provider describes its tokens."""
    types: frozenset[str] = frozenset({"at+jwt"})
    """
    The accepted ``typ`` values, in lower case, without ``application/``; ``""`` if it may be
    absent.
    """
    algorithms: tuple[str, ...] = ALGORITHMS
    """The signature algorithms of its keys."""
    required: frozenset[str] = REQUIRED
    """Claims that must be present."""
    access_marks: frozenset[str] = frozenset()
    """Required claims that tell its access tokens from its ID tokens; no setting drops them."""
    answer_required: frozenset[str] = frozenset()
    """Claims that an introspection answer must have; RFC 7662 makes all of them optional."""
    audience_claims: tuple[str, ...] = ()
    """Claims that name the audience if there is no ``aud``, which otherwise decides alone."""
    names_resource: bool = True
    """
    Whether the provider can put our URL into the audience; otherwise ``audiences`` must be set.
    """
    client_as_audience: bool = False
    """If the audience is absent, the client id must be one of the issuer's ``audiences``."""
    scope_claims: tuple[str, ...] = ("scope",)
    scope_list: bool = False
    """Whether ``scope`` itself may be a list; RFC 8693 section 4.2 defines it as text."""
    client_claims: tuple[str, ...] = ("client_id",)
    subject_claims: tuple[str, ...] = ("sub",)
    """
    The claim with the stable id of a person, then claims that identify only machines.

    One claim for people: if two of them could, the token would choose, and a person whose user
    name is another person's ``sub`` would be that person.
    """
    machine: tuple[CallerMark, ...] = (SUBJECT_IS_CLIENT,)
    """The marks of a machine's token; one mark is enough."""
    person: tuple[CallerMark, ...] = (SUBJECT,)
    """
    The marks of a person's token that has no mark of a machine; a token without any is refused.
    """
    token_id_claims: tuple[str, ...] = ("jti",)
    tenant_claim: str = ""
    """The claim with the organisation, unless the issuer's ``tenant`` rule names another."""
    forbidden: dict[str, frozenset[str]] = msgspec.field(default_factory=lambda: OTHER_TOKENS)
    """Payload members and lower-case values of other kinds of tokens; empty means any value."""
    must_equal: dict[str, str] = {}
    """Payload members that an access token always carries with this value."""
    display_claims: tuple[str, ...] = ("name", "email", "preferred_username")
    """Claims for display; they have no effect on decisions."""
    opaque: bool = False
    """Whether access tokens may be opaque and are introspected (RFC 7662)."""
    introspection_form: Literal["rfc7662", "tokeninfo"] = "rfc7662"
    """``tokeninfo`` (Google): ``access_token`` is posted without a client, no ``active``."""
    introspection_endpoint: str = ""
    """The introspection endpoint, if the provider's metadata do not name it."""
    introspects_signed: bool = False
    """Whether signed tokens are always introspected: alone, they do not say what they allow."""
    answers_name_type: bool = False
    """
    Answers about access tokens always have ``token_type``, and those about refresh tokens never.
    """
    issuer_pattern: str = ""
    """The template that a multi-tenant application's issuers follow."""
    segment_claim: str = ""
    """The claim that must equal what the template captured."""
    segment_pattern: str = r"[A-Za-z0-9_-]{1,64}"
    """The allowed values of the captured segment, as a regular expression that must match fully."""
    discovery_paths: tuple[str, ...] = ()
    """Paths tried under the issuer after the standard ones."""
    key_hosts: tuple[str, ...] = ()
    """Hosts beside the issuer's own where its metadata may place its keys."""
    resource_parameter: Literal["resource", "audience", ""] = "resource"
    """
    How a sign-in names our resource: by RFC 8707, by Auth0's own parameter, or not at all, where
    the parameter is an error and a scope says it.
    """
    telling: frozenset[str] = frozenset()
    """
    The payload members that show another kind of token, computed from ``forbidden``; a token
    without any of them is none.
    """

    def __post_init__(self) -> None:
        """Compute ``telling``; a dotted path can begin with a member of any of its lengths."""
        paths = [name.split(".") for name in self.forbidden]
        names = {".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)}
        telling = OTHER_KINDS | BOUND | names
        msgspec.structs.force_setattr(self, "telling", telling)


def adjusted(preset: Preset, rules: TokenRules) -> Preset:
    """
    Return *preset* with the settings of one issuer, computed once at the start.

    ``forbidden`` and ``must_equal`` only grow, and what distinguishes access tokens stays required.
    ValueError: no claim for the subject or the client is left, so callers cannot be distinguished.
    """
    if rules.subject_claims == () or rules.client_claims == ():
        raise ValueError("an issuer's tokens must have a claim for the subject and the client")
    changes: dict[str, object] = {
        name: value
        for name in ("client_as_audience", "scope_list", "machine", "person")
        if (value := getattr(rules, name)) is not None
    }
    for name in ("audience_claims", "subject_claims", "client_claims", "scope_claims",
                 "token_id_claims"):  # fmt: skip
        if (claims := getattr(rules, name)) is not None:
            changes[name] = tuple(dict.fromkeys(claims))
    if rules.types is not None:
        changes["types"] = frozenset(
            kind.lower().removeprefix("application/") for kind in rules.types
        )
    if rules.required_claims is not None:
        changes["answer_required"] = frozenset(rules.required_claims)
    forbidden = dict(preset.forbidden)
    for claim, values in rules.forbidden.items():
        existing = forbidden.get(claim)
        any_value = not values or existing == PRESENCE
        lowered = frozenset(value.lower() for value in values)
        forbidden[claim] = PRESENCE if any_value else (existing or PRESENCE) | lowered
    return msgspec.structs.replace(
        preset,
        required=required_by(preset, rules),
        forbidden=forbidden,
        # The preset's value wins, because another one would accept what the preset refuses.
        must_equal={**rules.must_equal, **preset.must_equal},
        **changes,
    )


def required_by(preset: Preset, rules: TokenRules) -> frozenset[str]:
    """Return the claims that signed tokens must have."""
    if rules.required_claims is not None:
        return frozenset(rules.required_claims) | preset.access_marks | NEVER_OPTIONAL
    required = preset.required
    for before, after in (
        (preset.subject_claims, rules.subject_claims),
        (preset.client_claims, rules.client_claims),
        (preset.token_id_claims, rules.token_id_claims),
    ):
        if after is not None and required.intersection(before):
            # A preset that requires `client_id` requires `azp` where the client is in `azp`. Of
            # several claims none can be required; the rules that use them decide.
            required = required.difference(before) | frozenset(after[:1] if len(after) == 1 else ())
    if rules.machine is not None and NO_SUBJECT in rules.machine:
        required = required.difference(rules.subject_claims or preset.subject_claims)
    if rules.audience_claims or rules.client_as_audience:
        required -= {"aud"}
    return required | preset.access_marks
