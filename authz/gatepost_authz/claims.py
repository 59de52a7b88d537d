"""Whether the claims of a token open this resource now: pure rules over proved claims."""

from collections.abc import Mapping

import msgspec

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

ALWAYS_REQUIRED = frozenset({"iss", "exp"})
# Members that only other kinds of tokens carry, whatever a preset says: security events and
# logout tokens (RFC 8417), introspection answers (RFC 9701), proofs (RFC 9449).
OTHER_KINDS = frozenset({"events", "token_introspection", "htm", "htu"})


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What claims must say: who issued them, for whom, and how the provider writes them."""

    issuer: str
    resource: str
    """The canonical resource URL; always an accepted audience."""
    audiences: frozenset[str]
    """Accepted besides, by the operator's explicit word."""
    preset: Preset
    leeway: int = 30
    """Clock difference tolerated, in seconds."""
    max_lifetime: int = 86_400
    """Longest ``exp - iat`` accepted, in seconds."""
    required: frozenset[str] | None = None
    """Claims that must be present; default: the preset's (an introspection answer has fewer)."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What accepted claims say, in our words; times are seconds since the epoch."""

    subject: str
    subject_kind: SubjectKind
    client_id: str | None
    scopes: frozenset[str]
    expires_at: int
    shared_audience: bool
    """The token names other audiences too, so other servers may hold it."""
    actor: str | None
    acr: str | None
    auth_time: int | None
    token_id: str | None
    session_id: str | None


def check_claims(claims: Mapping[str, object], expected: Expected, *, now: float) -> Accepted:
    """
    Refuse a proved claim set that is not for this resource, now (RFC 9068 section 4).

    InvalidToken and its kinds: in the order wrong kind of token, wrong issuer, expired, not yet
    valid, wrong audience, then whatever is malformed.
    """
    preset = expected.preset
    refuse_other_kinds(claims, preset)
    required = preset.required if expected.required is None else expected.required
    if not claims.keys() >= ALWAYS_REQUIRED | required:
        raise InvalidToken("missing_claim")
    if claims["iss"] != expected.issuer:
        raise InvalidToken("wrong_issuer")
    expires_at = check_times(claims, expected, now=now)
    client_id = first_text(claims, preset.client_claims, limit=MAX_CLIENT_ID)
    shared = check_audience(claims, expected, client_id)
    subject, kind = subject_of(claims, preset, client_id)
    return Accepted(
        subject=subject,
        subject_kind=kind,
        client_id=client_id,
        scopes=scopes_of(claims, preset),
        expires_at=expires_at,
        shared_audience=shared,
        actor=actor_of(claims),
        acr=text(claims, "acr"),
        auth_time=time_of(claims, "auth_time"),
        token_id=first_text(claims, preset.token_id_claims),
        session_id=text(claims, "sid"),
    )


def refuse_other_kinds(claims: Mapping[str, object], preset: Preset) -> None:
    """An ID token, a refresh token or a bound token has the same signature and opens nothing."""
    if not OTHER_KINDS.isdisjoint(claims):
        raise InvalidToken("wrong_kind")
    for name, values in preset.forbidden.items():
        if name in claims and (not values or str(claims[name]).lower() in values):
            raise InvalidToken("wrong_kind")
    for name, value in preset.must_equal.items():
        if claims.get(name) != value:
            raise InvalidToken("wrong_kind")
    if "cnf" in claims:
        # Bound to a key or a certificate (RFC 7800): as a Bearer token it has been stolen, or
        # its proof was left out to downgrade it (RFC 9449 section 7.1).
        raise InvalidToken("sender_constrained")


def check_times(claims: Mapping[str, object], expected: Expected, *, now: float) -> int:
    """``exp``, ``nbf`` and ``iat`` (RFC 7519 section 4.1), and the longest life accepted."""
    expires, issued, begins = (seconds(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None:
        raise InvalidToken("bad_exp")
    if now >= expires + expected.leeway:
        raise ExpiredToken
    latest = now + expected.leeway
    if (begins is not None and begins > latest) or (issued is not None and issued > latest):
        raise NotYetValidToken
    # A token for a hundred years outlives every key and every employee. Where nothing says when
    # it was issued, it is as if it were issued now.
    if expires - (now if issued is None else issued) > expected.max_lifetime:
        raise InvalidToken("lives_too_long")
    return int(expires)


def seconds(claims: Mapping[str, object], name: str) -> float | None:
    """A NumericDate: a finite number between 0 and 2^53, never text that reads like one."""
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    # NaN and infinity fail the comparison; True would pass it as 1.
    if isinstance(value, int | float) and value is not True and 0 < value < MAX_TIME:
        return value
    raise InvalidToken(f"bad_{name}")


def time_of(claims: Mapping[str, object], name: str) -> int | None:
    value = seconds(claims, name)
    return None if value is None else int(value)


def check_audience(claims: Mapping[str, object], expected: Expected, client_id: str | None) -> bool:
    """
    Refuse a token for somebody else (RFC 8707 section 2); True when others may hold it too.

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
    named = audiences_of(claims[present[0]])
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
    claims: Mapping[str, object], preset: Preset, client_id: str | None
) -> tuple[str, SubjectKind]:
    """
    The stable id of whom the token speaks for, and whether that is a person or a program.

    The kind is part of whose state it is: a program whose id equals a person's is not that person.
    """
    named = text(claims, "sub", limit=MAX_SUBJECT, label="subject")
    stable = first_text(claims, preset.subject_claims, limit=MAX_SUBJECT, label="subject")
    if stable is None:
        if client_id is None:
            raise InvalidToken("no_subject")
        # Where a preset lets `sub` be absent, nobody but the client itself is spoken for.
        return client_id, "client"
    marked = any(claims.get(name) == value for name, value in preset.client_markers.items())
    if marked or (client_id is not None and client_id in (named, stable)):
        return stable, "client"
    return stable, "user"


def scopes_of(claims: Mapping[str, object], preset: Preset) -> frozenset[str]:
    """
    What was granted. The first claim present decides and the others are not read: joining two
    that disagree would grant what neither grants. A wrong type is a refusal, not "no scopes".
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


def actor_of(claims: Mapping[str, object]) -> str | None:
    """The party that acts now; those it acted for before are history (RFC 8693 section 4.1)."""
    if "act" not in claims:
        return None
    actor = claims["act"]
    if not isinstance(actor, dict) or "sub" not in actor:
        raise InvalidToken("bad_actor")
    return text(actor, "sub", limit=MAX_SUBJECT, label="actor")


def first_text(
    claims: Mapping[str, object], names: tuple[str, ...], *, limit: int = MAX_TEXT, label: str = ""
) -> str | None:
    """The first of *names* that is present, as ``text`` reads it."""
    for name in names:
        if name in claims:
            return text(claims, name, limit=limit, label=label)
    return None


def text(
    claims: Mapping[str, object], name: str, *, limit: int = MAX_TEXT, label: str = ""
) -> str | None:
    """A claim that is a short line of text without outer spaces; None when it is absent."""
    if name not in claims:
        return None
    value = claims[name]
    # Ids end up in logs, file names and comparisons: what prints like another id is not one.
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= limit
        or not value.isprintable()
        or value[0] == " "
        or value[-1] == " "
    ):
        raise InvalidToken(f"bad_{label or name}")
    return value
