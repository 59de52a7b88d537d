"""Decide whose token it is, a person's or a machine's, and its stable id; pure functions."""

from collections.abc import Mapping

from gatepost_authz.caller import SubjectKind
from gatepost_authz.claim_values import MISSING, first_text, lookup
from gatepost_authz.errors import InvalidToken
from gatepost_authz.presets import Preset
from gatepost_authz.token_rules import CallerMark

PERSONAL = frozenset({"username", "preferred_username", "email", "upn", "auth_time", "amr"})
"""
Claims that only tokens about people have (RFC 7662 section 2.2, OpenID Connect Core 1.0): with one
of them, a missing subject is a person's, and all people of one client would be one caller.
"""


def subject_of(
    claims: Mapping[str, object], preset: Preset, client_id: str | None
) -> tuple[str, SubjectKind]:
    """
    Return the stable id of the subject, and whether it is a person or a machine.

    The kind is part of whose state it is: a machine whose id equals a person's is not that person.
    Only the first of the subject claims identifies people.
    """
    names = preset.subject_claims
    stable = first_text(claims, names[:1])
    kind = kind_of(claims, preset, stable, client_id)
    if stable is not None:
        return stable, kind
    subject = None if kind == "user" else first_text(claims, names[1:]) or client_id
    if subject is None:
        raise InvalidToken("no_subject").with_details(claim=names[0])
    return subject, kind


def kind_of(
    claims: Mapping[str, object], preset: Preset, stable: str | None, client_id: str | None
) -> SubjectKind:
    """Return whether the caller is a person or a machine; without a mark it is refused."""
    subjects = (stable, claims.get("sub"))
    for mark in preset.machine:
        if mark.subject_is_client:
            marked = client_id is not None and f"{client_id}{mark.suffix}" in subjects
        elif mark.no_subject:
            marked = names_no_user(claims, preset)
        else:
            marked = has_mark(claims, mark)
        if marked:
            refuse_contradiction(claims, preset)
            return "client"
    for mark in preset.person:
        if mark.subject:
            marked = stable is not None and client_id not in subjects
        else:
            marked = has_mark(claims, mark)
        if marked:
            return "user"
    raise InvalidToken("no_subject" if stable is None else "unknown_caller_kind").with_details(
        claim=preset.subject_claims[0]
    )


def refuse_contradiction(claims: Mapping[str, object], preset: Preset) -> None:
    """Refuse a machine's token with a value that marks a person (Entra's ``idtyp = "user"``)."""
    for mark in preset.person:
        if mark.value and has_mark(claims, mark):
            raise InvalidToken("unknown_caller_kind").with_details(claim=mark.claim)


def names_no_user(claims: Mapping[str, object], preset: Preset) -> bool:
    """Return whether a token has no subject, and no other claim that speaks of a person."""
    if "sub" in claims or not PERSONAL.isdisjoint(claims):
        return False
    return all(lookup(claims, name) is MISSING for name in preset.subject_claims)


def has_mark(claims: Mapping[str, object], mark: CallerMark) -> bool:
    """Return whether the claim of *mark* is present with its value, or absent as it must be."""
    name = mark.absent or mark.claim
    value = lookup(claims, name) if name else MISSING
    if mark.value:
        return value == mark.value
    if value is not MISSING and not value:
        # Some issuers write `"username": null` for machines: neither present nor missing.
        raise InvalidToken("unknown_caller_kind").with_details(claim=name)
    return (value is MISSING) == bool(mark.absent)
