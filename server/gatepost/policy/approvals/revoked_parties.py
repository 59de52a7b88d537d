"""Which requests, decisions and grants count no more, because a party is revoked; pure."""

from collections.abc import Callable

from gatepost.policy.approvals.request import (
    ApprovalDecision,
    ApprovalGrant,
    ApprovalRequest,
    DisplayedParty,
)
from gatepost_authz.caller import TenantContext

CLOCKS_S = 60.0
"""
If the issue time of a token is unknown, it counts as issued this long before it was used. Clocks
differ, and a revoked token must not be taken for one that was issued later.
"""

IsRevoked = Callable[[TenantContext], bool]
"""Returns whether a caller is revoked; the same rule as for tokens, applied to stored data."""


def none_revoked(caller: TenantContext) -> bool:
    """Return False: no caller is revoked."""
    return False


def token_claims(party: DisplayedParty, tenant: str, at: float) -> TenantContext | None:
    """
    Rebuild the claims of the token that a party used *at* that time, for the check of revocations.

    Return None for an operator on the command line, who used no token.
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


def caller_is_revoked(request: ApprovalRequest, is_revoked: IsRevoked) -> bool:
    """Return whether the caller of the request is revoked."""
    return _revoked(request.caller, request.tenant, request.created_at, is_revoked)


def revoked_approvals(
    request: ApprovalRequest, is_revoked: IsRevoked
) -> tuple[ApprovalDecision, ...]:
    """Return the approvals by revoked approvers; their rejections stay valid."""
    return tuple(
        one
        for one in request.decisions
        if one.verdict == "approved" and _revoked(one.by, request.tenant, one.at, is_revoked)
    )


def is_valid_grant(grant: ApprovalGrant, is_revoked: IsRevoked) -> bool:
    """Return whether neither the grant's caller nor its approver is revoked."""
    people = (grant.caller, grant.by)
    return not any(_revoked(one, grant.tenant, grant.created_at, is_revoked) for one in people)


def _revoked(party: DisplayedParty, tenant: str, at: float, is_revoked: IsRevoked) -> bool:
    token = token_claims(party, tenant, at)
    return token is not None and is_revoked(token)
