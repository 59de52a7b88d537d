"""Check whether verified claims are valid for this resource now; pure functions."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from gatepost_authz import scopes
from gatepost_authz.caller import SubjectKind
from gatepost_authz.claim_values import MISSING, first_text, line, lookup
from gatepost_authz.errors import ExpiredToken, InvalidToken, NotYetValidToken, WrongAudience
from gatepost_authz.presets import Preset
from gatepost_authz.presets.preset import OTHER_KINDS
from gatepost_authz.subjects import subject_of

MAX_CLIENT_ID = 2048
"""A client id may be the URL of a metadata document."""
MAX_TEXT = 512
MAX_AUDIENCES = 100
MAX_TIME = 2**53
"""Above this number, JSON numbers lose whole seconds (RFC 8259 section 6)."""

NO_SCOPES: frozenset[str] = frozenset()

# After 1970 and exact to the second; NaN fails too.
NumericDate = (
    Annotated[int, msgspec.Meta(gt=0, lt=MAX_TIME)]
    | Annotated[float, msgspec.Meta(gt=0, lt=MAX_TIME)]
)


class Actor(msgspec.Struct, gc=False):
    """The actor that acts for the subject (RFC 8693 section 4.1); earlier actors are ignored."""

    sub: str


class RegisteredClaims(msgspec.Struct, gc=False):
    """
    Claims with a name and type that the RFCs define.

    A wrong type is refused before any value is used (RFC 7519 section 4.1, RFC 9068 section 2.2).
    """

    iss: str
    exp: NumericDate
    iat: NumericDate | UnsetType = UNSET
    nbf: NumericDate | UnsetType = UNSET
    auth_time: NumericDate | UnsetType = UNSET
    sub: str | UnsetType = UNSET
    acr: str | UnsetType = UNSET
    sid: str | UnsetType = UNSET
    act: Actor | UnsetType = UNSET


class ExpectedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The expected values of claims: issuer, audience and the provider's format."""

    issuer: str
    resource: str
    """The canonical resource URL; always an accepted audience."""
    audiences: frozenset[str]
    """Further audiences that the operator configured."""
    preset: Preset
    leeway: int = 30
    """The tolerated clock difference, in seconds."""
    max_lifetime: int = 86_400
    """The longest accepted ``exp - iat``, in seconds."""
    required: frozenset[str] | None = None
    """Claims that must be present; default: the preset's (an introspection answer has fewer)."""
    bound_by_answer: bool = False
    """The issuer answers this server only about tokens for it, so that an answer needs no `aud`."""


class AcceptedClaims(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The accepted claims in Gatepost's terms; times are seconds since the epoch."""

    subject: str
    subject_kind: SubjectKind
    client_id: str | None
    scopes: frozenset[str]
    names_scopes: bool
    """Whether a claim says which scopes were granted, even if it says none."""
    expires_at: int
    issued_at: int | None
    shared_audience: bool
    """Whether the token also names other audiences, so that other servers may have it."""
    actor: str | None
    acr: str | None
    auth_time: int | None
    token_id: str | None
    session_id: str | None


def check_claims(
    claims: Mapping[str, object], expected: ExpectedClaims, *, now: float
) -> AcceptedClaims:
    """
    Check that verified claims are for this resource and valid now (RFC 9068 section 4).

    InvalidToken and its kinds: in the order wrong kind of token, missing or malformed registered
    claim, wrong issuer, expired, not yet valid, wrong audience, then the provider's own claims.
    """
    preset = expected.preset
    if preset.must_equal or not preset.telling.isdisjoint(claims):
        refuse_other_kinds(claims, preset)
    required = preset.required if expected.required is None else expected.required
    if not claims.keys() >= required:
        # A required claim may be a dotted path, which is no member of this name.
        missing = [name for name in sorted(required) if lookup(claims, name) is MISSING]
        if missing:
            raise InvalidToken("missing_claim").with_details(claim=missing[0])
    registered_claims = registered(claims)
    if registered_claims.iss != expected.issuer:
        raise InvalidToken("wrong_issuer")
    check_times(registered_claims, expected, now=now)
    client_id = first_text(claims, preset.client_claims, limit=MAX_CLIENT_ID)
    shared = check_audience(claims, expected, client_id)
    subject, kind = subject_of(claims, preset, client_id)
    granted = scopes_of(claims, preset)
    return AcceptedClaims(
        subject=subject,
        subject_kind=kind,
        client_id=client_id,
        scopes=granted or NO_SCOPES,
        names_scopes=granted is not None,
        expires_at=int(registered_claims.exp),
        issued_at=None if registered_claims.iat is UNSET else int(registered_claims.iat),
        shared_audience=shared,
        actor=None
        if registered_claims.act is UNSET
        else line(registered_claims.act.sub, "bad_act"),
        acr=None
        if registered_claims.acr is UNSET
        else line(registered_claims.acr, "bad_acr", limit=MAX_TEXT),
        auth_time=None
        if registered_claims.auth_time is UNSET
        else int(registered_claims.auth_time),
        token_id=first_text(claims, preset.token_id_claims, limit=MAX_TEXT),
        session_id=None
        if registered_claims.sid is UNSET
        else line(registered_claims.sid, "bad_sid", limit=MAX_TEXT),
    )


def registered(claims: Mapping[str, object]) -> RegisteredClaims:
    """Return the registered claims with their types; raise InvalidToken for a wrong value."""
    try:
        return msgspec.convert(claims, RegisteredClaims)
    except msgspec.ValidationError as error:
        _, _, path = str(error).partition("`$.")
        name = path.partition(".")[0].rstrip("`")
        if name:
            raise InvalidToken(f"bad_{name}") from None
        missing = next(field for field in ("iss", "exp") if field not in claims)
        raise InvalidToken("missing_claim").with_details(claim=missing) from None


def refuse_other_kinds(claims: Mapping[str, object], preset: Preset) -> None:
    """Refuse ID tokens, refresh tokens and bound tokens, which have the same signature."""
    if other_kinds := OTHER_KINDS.intersection(claims):
        raise InvalidToken("wrong_kind").with_details(claim=min(other_kinds))
    for name, values in preset.forbidden.items():
        if name not in claims and "." not in name:
            continue
        value = lookup(claims, name)
        if value is MISSING:
            continue
        items = value if isinstance(value, list) else [value]
        if not values or any(str(item).lower() in values for item in items):
            raise InvalidToken("wrong_kind").with_details(claim=name)
    for name, expected in preset.must_equal.items():
        if lookup(claims, name) != expected:
            raise InvalidToken("wrong_kind").with_details(claim=name)
    if "cnf" in claims:
        # Bound to a key or a certificate (RFC 7800). If such a token arrives as a Bearer token, it
        # has been stolen, or its proof was omitted to downgrade it (RFC 9449 section 7.1).
        raise InvalidToken("sender_constrained")


def check_times(
    registered_claims: RegisteredClaims, expected: ExpectedClaims, *, now: float
) -> None:
    """Check ``exp``, ``nbf`` and ``iat`` (RFC 7519 section 4.1) and the maximum lifetime."""
    if now >= registered_claims.exp + expected.leeway:
        raise ExpiredToken
    latest = now + expected.leeway
    if registered_claims.nbf is not UNSET and registered_claims.nbf > latest:
        raise NotYetValidToken
    if registered_claims.iat is not UNSET and registered_claims.iat > latest:
        raise NotYetValidToken
    # A token for a hundred years outlives every key and every employee. If it has no issue time,
    # the current time counts.
    issued = now if registered_claims.iat is UNSET else registered_claims.iat
    if registered_claims.exp - issued > expected.max_lifetime:
        raise InvalidToken("lives_too_long")


def check_audience(
    claims: Mapping[str, object], expected: ExpectedClaims, client_id: str | None
) -> bool:
    """
    Refuse a token for another audience (RFC 8707 section 2); return whether it has several.

    Compared as exact strings. A token minted for a neighbour must not open this server, even
    though the same issuer signed it.
    """
    value = audience_in(claims, expected.preset.audience_claims)
    if value is MISSING:
        # Cognito tokens name no audience; then the operator must have listed the client.
        if expected.preset.client_as_audience and client_id in expected.audiences:
            return False
        if expected.bound_by_answer:
            return True
        raise WrongAudience("no_audience")
    if value == expected.resource:
        return False
    audiences = audiences_of(value)
    accepted = [name for name in audiences if is_meant(name, expected)]
    if not accepted:
        raise WrongAudience
    return len(accepted) < len(audiences)


def audience_in(claims: Mapping[str, object], other_names: tuple[str, ...]) -> object:
    """
    Return the audience; MISSING if no claim names one.

    ``aud`` alone decides if it is present: a token that names another audience there must be
    refused (RFC 7519 section 4.1.3), whatever its other claims say.
    """
    if "aud" in claims:
        return claims["aud"]
    values = (lookup(claims, name) for name in other_names)
    return next((value for value in values if value is not MISSING), MISSING)


def audiences_of(value: object) -> list[str]:
    audiences = value if isinstance(value, list) else [value]
    texts = [name for name in audiences if isinstance(name, str) and name]
    if not 0 < len(audiences) <= MAX_AUDIENCES or len(texts) != len(audiences):
        raise InvalidToken("bad_audience")
    return texts


def is_meant(audience: str, expected: ExpectedClaims) -> bool:
    if audience == expected.resource or audience in expected.audiences:
        return True
    # URL classes of browsers write `https://h` as `https://h/`, so clients request that. It is the
    # only equivalence, and only for a resource that is a bare origin.
    origin = expected.resource.removesuffix("/")
    return audience in (origin, f"{origin}/") and origin.count("/") == 2 and "?" not in origin


def scopes_of(claims: Mapping[str, object], preset: Preset) -> frozenset[str] | None:
    """
    Return the granted scopes; None if no claim names any.

    The first claim that is present decides: joining two claims that disagree would grant scopes
    that neither grants. A wrong type is refused.
    """
    for name in preset.scope_claims:
        value = claims.get(name, MISSING)
        if value is MISSING and (value := lookup(claims, name)) is MISSING:
            continue
        if isinstance(value, str):
            return scopes.parse(value)
        # `scope` is a string by definition (RFC 8693 section 4.2); the providers' own
        # claims (`scp`, `roles`, `permissions`) are often lists.
        if isinstance(value, list) and (name != "scope" or preset.scope_list):
            return scopes.collect(value)
        raise InvalidToken("bad_scope").with_details(claim=name)
    return None
