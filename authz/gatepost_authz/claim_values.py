"""Read claims by their name or by a dotted path into objects."""

from collections.abc import Mapping, Sequence
from typing import Final

from gatepost_authz.errors import InvalidToken
from gatepost_authz.presets import CLAIM_NAMES

MISSING: Final = object()
MAX_SUBJECT = 255
"""RFC 9068 takes ``sub`` from OpenID Connect Core, section 2: at most 255 characters."""


def lookup(claims: object, path: str) -> object:
    """
    Return the claim at *path*: the member of exactly this name, or a dotted way into objects.

    Names may hold dots themselves (``https://stytch.com/organization``), so the longest name that
    exists is taken at each step. MISSING when there is none.
    """
    if not isinstance(claims, dict):
        return MISSING
    if path in claims:
        return claims[path]
    dot = path.rfind(".")
    while dot > 0:
        if path[:dot] in claims:
            return lookup(claims[path[:dot]], path[dot + 1 :])
        dot = path.rfind(".", 0, dot)
    return MISSING


def first_text(
    claims: Mapping[str, object], names: Sequence[str], *, limit: int = MAX_SUBJECT
) -> str | None:
    """Return the first of *names* that is present, as a line of text, or None."""
    for name in names:
        value = text_of(claims, name, limit=limit)
        if value is not None:
            return value
    return None


def text_of(claims: Mapping[str, object], name: str, *, limit: int = MAX_SUBJECT) -> str | None:
    """Return a claim that a preset or a setting names, as a line of text, or None."""
    value = claims.get(name, MISSING)
    if value is MISSING and (value := lookup(claims, name)) is MISSING:
        return None
    try:
        return line(value, "bad_claim", limit=limit)
    except InvalidToken:
        reason = f"bad_{name}" if name in CLAIM_NAMES else "bad_claim"
        raise InvalidToken(reason).about(claim=name) from None


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
