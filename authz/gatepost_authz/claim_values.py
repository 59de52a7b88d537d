"""Read claims by their name or by a dotted path into objects."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard

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
    """
    Return the first of these claims that is present, as a line of text, or None.

    A preset or a setting names the claims. InvalidToken: the first one is no line of text.
    """
    for name in names:
        value = claims.get(name, MISSING)
        if value is MISSING and (value := lookup(claims, name)) is MISSING:
            continue
        if is_line(value, limit):
            return value
        raise InvalidToken(f"bad_{name}" if name in CLAIM_NAMES else "bad_claim").with_details(
            claim=name
        )
    return None


def line(value: object, reason: str, *, limit: int = MAX_SUBJECT) -> str:
    """Return a line of text, or raise InvalidToken."""
    if is_line(value, limit):
        return value
    raise InvalidToken(reason)


def is_line(value: object, limit: int) -> TypeGuard[str]:
    """
    Return whether a value is a short text without control characters or outer spaces.

    Ids end up in logs, file names and comparisons: what prints like another id is not one.
    """
    return (
        isinstance(value, str)
        and 0 < len(value) <= limit
        and value.isprintable()
        and value == value.strip(" ")
    )
