"""Who may decide about a request, and whose approvals still count after a revocation; pure."""

from collections.abc import Callable

from gatepost.policy.approvals.request import (
    ApprovalDecision,
    ApprovalGrant,
    ApprovalRequest,
    Approver,
    DisplayedParty,
    Operator,
)
from gatepost.policy.approvals.rules import DEFAULT_APPROVERS, Plan, satisfies
from gatepost_authz.caller import TenantContext

WORDS = {
    "approved": "was approved already",
    "rejected": "was rejected already",
    "expired": "has expired, because it was not decided in time",
    "withdrawn": "was withdrawn",
    "used": "was approved, and the call was made",
}


def objection(
    request: ApprovalRequest,
    who: Approver,
    *,
    now: float,
    plan: Plan | None = None,
    policy: str = "",
) -> str | None:
    """Return a sentence why *who* cannot decide about the request, or None."""
    if request.state != "waiting":
        return f"This request {WORDS[request.state]}."
    if request.kind == "call" and request.until <= now:
        return f"This request {WORDS['expired']}."
    if plan is not None and (current := plan.get(request.tool)) is not None:
        if current.version != policy:
            return "The rules for this tool have changed. The call has to be made again."
    elif plan is not None:
        return "This tool no longer needs approval or is not served. The call has to be made again."
    return ineligibility(request, who)


def ineligibility(request: ApprovalRequest, who: Approver) -> str | None:
    """Return a sentence why this person is not an approver of the request, or None."""
    if isinstance(who, Operator):
        # Operators can use any name, so only one of two approvals may come from an operator.
        if any(one.by.kind == "operator" for one in request.decisions):
            return "It was already approved on the command line. The second person has to sign in."
        return None
    if who.subject_kind != "user":
        return "Only people can decide, and this is a machine's identity."
    if who.actor is not None:
        # Another party, perhaps the agent, got a token to act for them (RFC 8693 section 4.1).
        return "Only people can decide, and another party acts for this one."
    if is_same_person(request.caller, who):
        return (
            "You submitted this script, so another person has to decide."
            if request.kind == "script"
            else "This is your own call, so another person has to decide."
        )
    if request.caller.actor == who.subject:
        return "You made this call for someone, so another person has to decide."
    if _is_namesake(request, who):
        return "This machine has your own id, so another person has to decide."
    if any(is_same_person(one.by, who) for one in request.decisions):
        return "You have already approved it. A second person has to approve."
    if not satisfies(who, request.by):
        return f"You cannot decide about it: it needs {required_approvers(request.by)}."
    return None


def is_same_person(party: DisplayedParty, who: Approver) -> bool:
    """Return whether both are the same person: same issuer and stable id (design, decision 15)."""
    if isinstance(who, Operator):
        return party.kind == "operator" and party.subject == who.name
    # Older records of scripts have no issuer; there the id decides alone.
    issuers = {party.issuer, who.issuer} - {""}
    return party.kind == "user" and party.subject == who.subject and len(issuers) == 1


def _is_namesake(request: ApprovalRequest, who: TenantContext) -> bool:
    """
    Return whether a machine without a named approver has the person's own id at their issuer.

    Then the machine may be the person's own program, so they cannot approve its calls.
    """
    caller = request.caller
    ids = (caller.issuer, caller.subject) == (who.issuer, who.subject)
    return caller.kind == "client" and request.by == (DEFAULT_APPROVERS,) and ids


def required_approvers(by: tuple[tuple[str, ...], ...]) -> str:
    """Return a phrase for the required approvers."""
    groups = (" or ".join(map(_approver_phrase, group)) for group in by)
    return " and also ".join(groups) or "an approver that a rule names"


def _approver_phrase(entry: str) -> str:
    kind, _, rest = entry.partition(":")
    return f"the role {rest}" if kind == "role" else f"the person {rest.rpartition(' ')[2]}"


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
