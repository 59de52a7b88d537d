"""Whose word requests and grants rest on, so that they end when one of them is shut out; pure."""

from collections.abc import Callable

from gatepost.approvals.request import Decision, Grant, Party, Request
from gatepost_authz.caller import TenantContext

CLOCKS_S = 60.0
"""
Where nobody kept when a token was issued, it counts as issued so long before it was used: clocks
differ, and whoever is shut out must not be taken for somebody who has signed in since.
"""

IsCut = Callable[[TenantContext], bool]
"""Whether somebody is shut out: the one rule of cut-offs, asked here about what is kept."""


def nobody(caller: TenantContext) -> bool:
    """Nobody is shut out."""
    return False


def token_of(party: Party, tenant: str, at: float) -> TenantContext | None:
    """
    What the token said that somebody used *at* that time, as far as cut-offs ask; None: they used
    none, at the command line.
    """
    if party.kind == "operator":
        return None
    return TenantContext(
        tenant_id=tenant,
        issuer=party.issuer,
        subject=party.subject,
        subject_kind=party.kind,
        client_id=party.client_id,
        actor=party.actor,
        issued_at=int(at - CLOCKS_S) if party.issued_at is None else party.issued_at,
        resource="",
        expires_at=0,
    )


def is_dropped(request: Request, is_cut: IsCut) -> bool:
    """Whether whoever called may not call any more."""
    return _is_cut(request.caller, request.tenant, request.created_at, is_cut)


def taken_back(request: Request, is_cut: IsCut) -> tuple[Decision, ...]:
    """The approvals of people who may not decide any more; a rejection of theirs stands."""
    return tuple(
        one
        for one in request.decisions
        if one.verdict == "approved" and _is_cut(one.by, request.tenant, one.at, is_cut)
    )


def stands(grant: Grant, is_cut: IsCut) -> bool:
    """Whether neither whose calls it is for nor whoever gave it is shut out."""
    people = (grant.caller, grant.by)
    return not any(_is_cut(one, grant.tenant, grant.created_at, is_cut) for one in people)


def _is_cut(party: Party, tenant: str, at: float, is_cut: IsCut) -> bool:
    token = token_of(party, tenant, at)
    return token is not None and is_cut(token)
