"""Who may decide about an approval request."""

from collections.abc import Iterable

from gatepost.policy.approvals.policies import DEFAULT_APPROVERS, ToolPolicies
from gatepost.policy.approvals.request import (
    ApprovalRequest,
    Approver,
    DisplayedParty,
    Operator,
)
from gatepost_authz.caller import TenantContext

ROLE, SUBJECT = "role:", "subject:"
ENDINGS = {
    "approved": "was approved already",
    "rejected": "was rejected already",
    "expired": "has expired, because it was not decided in time",
    "withdrawn": "was withdrawn",
    "used": "was approved, and the call was made",
}
NOT_SERVED = "This tool no longer needs approval or is not served. The call has to be made again."
OTHER_RULES = "The rules for this tool have changed. The call has to be made again."
OTHER_TOOL = (
    "The definition of this tool has changed, or its server. The call has to be made again."
)


def objection(request: ApprovalRequest, who: Approver, *, now: float) -> str | None:
    """Return a sentence why *who* cannot decide about the request, or None."""
    if request.state != "waiting":
        return f"This request {ENDINGS[request.state]}."
    if request.kind == "call" and request.until <= now:
        return f"This request {ENDINGS['expired']}."
    return ineligibility(request, who)


def outdated(request: ApprovalRequest, policies: ToolPolicies) -> str | None:
    """Return a sentence why the request is not for its tool or policy any more, or None."""
    current = policies.of_request(request)
    if current is None:
        return NOT_SERVED
    if current.version != request.policy:
        return OTHER_RULES
    return OTHER_TOOL if policies.has_changed(request) else None


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
        return "You made this call on behalf of its caller, so another person has to decide."
    if _is_namesake(request, who):
        return "This machine has your own id, so another person has to decide."
    if any(is_same_person(one.by, who) for one in request.decisions):
        return "You have already approved it. A second person has to approve."
    if not _satisfies(who, request.by):
        return f"You cannot decide about it: it needs {_required_approvers(request.by)}."
    return None


def is_same_person(party: DisplayedParty, who: Approver) -> bool:
    """Return whether both are the same person: same issuer and stable id (design, decision 15)."""
    if isinstance(who, Operator):
        return party.kind == "operator" and party.subject == who.name
    ids = (party.issuer, party.subject) == (who.issuer, who.subject)
    return party.kind == "user" and ids


def _is_namesake(request: ApprovalRequest, who: TenantContext) -> bool:
    """
    Return whether a machine without a named approver has the person's own id at their issuer.

    Then the machine may be the person's own program, so they cannot approve its calls.
    """
    caller = request.caller
    ids = (caller.issuer, caller.subject) == (who.issuer, who.subject)
    return caller.kind == "client" and request.by == (DEFAULT_APPROVERS,) and ids


def _satisfies(who: Approver, by: Iterable[tuple[str, ...]]) -> bool:
    """Return whether an approver matches one entry of each group; an operator always does."""
    if isinstance(who, Operator):
        return True
    return all(any(_is(who, entry) for entry in group) for group in by)


def _is(who: TenantContext, entry: str) -> bool:
    if entry.startswith(ROLE):
        return entry.removeprefix(ROLE) in who.roles
    issuer, _, subject = entry.removeprefix(SUBJECT).partition(" ")
    return (who.issuer, who.subject) == (issuer, subject)


def _required_approvers(by: tuple[tuple[str, ...], ...]) -> str:
    """Return a phrase for the required approvers."""
    groups = (" or ".join(map(_approver_phrase, group)) for group in by)
    return " and also ".join(groups) or "an approver that a rule names"


def _approver_phrase(entry: str) -> str:
    kind, _, rest = entry.partition(":")
    return f"the role {rest}" if kind == "role" else f"the person {rest.rpartition(' ')[2]}"
