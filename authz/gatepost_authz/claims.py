"""Checks whether verified claims are valid for this resource now; pure functions."""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from gatepost_authz import scopes
from gatepost_authz.caller import SubjectKind
from gatepost_authz.errors import ExpiredToken, InvalidToken, NotYetValidToken, WrongAudience
from gatepost_authz.presets import Preset

MAX_SUBJECT = 255
"""RFC 9068 takes ``sub`` from OpenID Connect Core, section 2: at most 255 characters."""
MAX_CLIENT_ID = 2048
"""A client id may be the URL of a metadata document."""
MAX_TEXT = 512
MAX_AUDIENCES = 100
MAX_TIME = 2**53
"""Beyond it, numbers of JSON lose whole seconds (RFC 8259 section 6)."""

# Members that only other kinds of tokens carry, whatever a preset says: security events and
# logout tokens (RFC 8417), introspection answers (RFC 9701), proofs (RFC 9449).
OTHER_KINDS = frozenset({"events", "token_introspection", "htm", "htu"})


Number = int | float


class Actor(msgspec.Struct, gc=False):
    """The actor that acts for the subject (RFC 8693 section 4.1); earlier actors are ignored."""

    sub: str


class Registered(msgspec.Struct, gc=False):
    """
    Claims with a name and type that the RFCs define.

    A wrong type is refused before any value is used (RFC 7519 section 4.1, RFC 9068 section 2.2).
    """

    iss: str
    exp: Number
    iat: Number | UnsetType = UNSET
    nbf: Number | UnsetType = UNSET
    auth_time: Number | UnsetType = UNSET
    sub: str | UnsetType = UNSET
    acr: str | UnsetType = UNSET
    sid: str | UnsetType = UNSET
    act: Actor | UnsetType = UNSET


class Expected(msgspec.Struct, frozen=True, kw_only=True):
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


class Accepted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The accepted claims in Gatepost's terms; times are seconds since the epoch."""

    subject: str
    subject_kind: SubjectKind
    client_id: str | None
    scopes: frozenset[str]
    expires_at: int
    issued_at: int | None
    shared_audience: bool
    """Whether the token also names other audiences, so that other servers may have it."""
    actor: str | None
    acr: str | None
    auth_time: int | None
    token_id: str | None
    session_id: str | None


def check_claims(claims: Mapping[str, object], expected: Expected, *, now: float) -> Accepted:
    """
    Check that verified claims are for this resource and valid now (RFC 9068 section 4).

    InvalidToken and its kinds: in the order wrong kind of token, missing or malformed registered
    claim, wrong issuer, expired, not yet valid, wrong audience, then the provider's own claims.
    """
    preset = expected.preset
    refuse_other_kinds(claims, preset)
    required = preset.required if expected.required is None else expected.required
    if not claims.keys() >= required:
        missing = sorted(required - claims.keys())
        raise InvalidToken("missing_claim").about(claim=missing[0])
    named = registered(claims)
    if named.iss != expected.issuer:
        raise InvalidToken("wrong_issuer")
    check_times(named, expected, now=now)
    client_id = first_line(claims, preset.client_claims, limit=MAX_CLIENT_ID)
    shared = check_audience(claims, expected, client_id)
    subject, kind = subject_of(claims, named, preset, client_id)
    return Accepted(
        subject=subject,
        subject_kind=kind,
        client_id=client_id,
        scopes=scopes_of(claims, preset),
        expires_at=int(named.exp),
        issued_at=None if named.iat is UNSET else int(named.iat),
        shared_audience=shared,
        actor=None if named.act is UNSET else line(named.act.sub, "bad_act"),
        acr=None if named.acr is UNSET else line(named.acr, "bad_acr", limit=MAX_TEXT),
        auth_time=None if named.auth_time is UNSET else int(named.auth_time),
        token_id=first_line(claims, preset.token_id_claims, limit=MAX_TEXT),
        session_id=None if named.sid is UNSET else line(named.sid, "bad_sid", limit=MAX_TEXT),
    )


def registered(claims: Mapping[str, object]) -> Registered:
    """Return the registered claims with their types; raise InvalidToken for a wrong type."""
    try:
        named = msgspec.convert(claims, Registered)
    except msgspec.ValidationError as error:
        _, _, path = str(error).partition("`$.")
        name = path.partition(".")[0].rstrip("`")
        if name:
            raise InvalidToken(f"bad_{name}") from None
        missing = next(field for field in ("iss", "exp") if field not in claims)
        raise InvalidToken("missing_claim").about(claim=missing) from None
    check_range(named.exp, "bad_exp")
    check_range(named.iat, "bad_iat")
    check_range(named.nbf, "bad_nbf")
    check_range(named.auth_time, "bad_auth_time")
    return named


def check_range(value: Number | UnsetType, reason: str) -> None:
    """Check that a NumericDate is after 1970 and exact to the second; NaN fails too."""
    if value is not UNSET and not 0 < value < MAX_TIME:
        raise InvalidToken(reason)


def refuse_other_kinds(claims: Mapping[str, object], preset: Preset) -> None:
    """Refuse ID tokens, refresh tokens and bound tokens, which have the same signature."""
    if others := OTHER_KINDS.intersection(claims):
        raise InvalidToken("wrong_kind").about(claim=min(others))
    for name, values in preset.forbidden.items():
        if name in claims and (not values or str(claims[name]).lower() in values):
            raise InvalidToken("wrong_kind").about(claim=name)
    for name, value in preset.must_equal.items():
        if claims.get(name) != value:
            raise InvalidToken("wrong_kind").about(claim=name)
    if "cnf" in claims:
        # Bound to a key or a certificate (RFC 7800): as a Bearer token it has been stolen, or
        # its proof was left out to downgrade it (RFC 9449 section 7.1).
        raise InvalidToken("sender_constrained")


def check_times(named: Registered, expected: Expected, *, now: float) -> None:
    """Check ``exp``, ``nbf`` and ``iat`` (RFC 7519 section 4.1) and the maximum lifetime."""
    if now >= named.exp + expected.leeway:
        raise ExpiredToken
    latest = now + expected.leeway
    if named.nbf is not UNSET and named.nbf > latest:
        raise NotYetValidToken
    if named.iat is not UNSET and named.iat > latest:
        raise NotYetValidToken
    # A token for a hundred years outlives every key and every employee. Where nothing says when
    # it was issued, it is as if it were issued now.
    issued = now if named.iat is UNSET else named.iat
    if named.exp - issued > expected.max_lifetime:
        raise InvalidToken("lives_too_long")


def check_audience(claims: Mapping[str, object], expected: Expected, client_id: str | None) -> bool:
    """
    Refuse a token for another audience (RFC 8707 section 2); return whether it has several.

    Compared as exact strings. A token minted for a neighbour must not open this server, even
    though the same issuer signed it.
    """
    preset = expected.preset
    present = [name for name in preset.audience_claims if name in claims]
    if not present:
        # Cognito names no audience; then the client must be one that the operator listed.
        if preset.client_as_audience and client_id in expected.audiences:
            return False
        raise WrongAudience("no_audience")
    value = claims[present[0]]
    if value == expected.resource:
        return False
    named = audiences_of(value)
    accepted = [name for name in named if is_meant(name, expected)]
    if not accepted:
        raise WrongAudience
    return len(accepted) < len(named)


def audiences_of(value: object) -> list[str]:
    named = value if isinstance(value, list) else [value]
    texts = [name for name in named if isinstance(name, str) and name]
    if not 0 < len(named) <= MAX_AUDIENCES or len(texts) != len(named):
        raise InvalidToken("bad_audience")
    return texts


def is_meant(audience: str, expected: Expected) -> bool:
    if audience == expected.resource or audience in expected.audiences:
        return True
    # URL classes of browsers write `https://h` as `https://h/`, so clients ask for that: the one
    # equivalence there is, and only where the resource is a bare origin.
    origin = expected.resource.removesuffix("/")
    return audience in (origin, f"{origin}/") and origin.count("/") == 2 and "?" not in origin


def subject_of(
    claims: Mapping[str, object], named: Registered, preset: Preset, client_id: str | None
) -> tuple[str, SubjectKind]:
    """
    Return the stable id of the subject, and whether it is a person or a program.

    The kind is part of whose state it is: a program whose id equals a person's is not that person.
    """
    sub = None if named.sub is UNSET else line(named.sub, "bad_sub")
    stable = None
    for name in preset.subject_claims:
        if name in claims:
            stable = sub if name == "sub" else line(claims[name], f"bad_{name}")
            break
    if stable is None:
        if client_id is None:
            raise InvalidToken("no_subject")
        # If a preset allows a missing `sub`, the subject is the client itself.
        return client_id, "client"
    if client_id is not None and client_id in (sub, stable):
        return stable, "client"
    for name, value in preset.client_markers.items():
        if claims.get(name) == value:
            return stable, "client"
    return stable, "user"


def scopes_of(claims: Mapping[str, object], preset: Preset) -> frozenset[str]:
    """
    Return the granted scopes.

    The first claim that is present decides: joining two claims that disagree would grant scopes
    that neither grants. A wrong type is refused.
    """
    for name in preset.scope_claims:
        if name in claims:
            value = claims[name]
            if isinstance(value, str):
                return scopes.parse(value)
            # `scope` is a string by definition (RFC 8693 section 4.2); the providers' own
            # claims (`scp`, `roles`, `permissions`) are often lists.
            if isinstance(value, list) and name != "scope":
                return scopes.collect(value)
            raise InvalidToken("bad_scope")
    return frozenset()


def first_line(claims: Mapping[str, object], names: tuple[str, ...], *, limit: int) -> str | None:
    """Return the first of *names* that is present, as a line of text, or None."""
    for name in names:
        if name in claims:
            return line(claims[name], f"bad_{name}", limit=limit)
    return None


def line(value: object, reason: str, *, limit: int = MAX_SUBJECT) -> str:
    """
    Return a short text without control characters or outer spaces, or raise InvalidToken.

    Ids end up in logs, file names and comparisons: what prints like another id is not one.
    """
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= limit
        or not value.isprintable()
        or value[0] == " "
        or value[-1] == " "
    ):
        raise InvalidToken(reason)
    return value
