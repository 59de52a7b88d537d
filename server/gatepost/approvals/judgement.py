"""Who may decide about a request; pure."""

from gatepost.approvals.policy import Plan, satisfies
from gatepost.approvals.request import Approver, Operator, Party, Request

WORDS = {
    "approved": "was approved already",
    "rejected": "was rejected already",
    "expired": "has expired, as nobody decided in time",
    "withdrawn": "was withdrawn",
    "used": "was approved, and the call was made",
}


def objection(
    request: Request, who: Approver, *, now: float, plan: Plan | None = None, policy: str = ""
) -> str | None:
    """Why *who* cannot decide about it, in a sentence; None when they can."""
    if request.state != "waiting":
        return f"This request {WORDS[request.state]}."
    if request.kind == "call" and request.until <= now:
        return f"This request {WORDS['expired']}."
    if plan is not None and (demand := plan.get(request.tool)) is not None:
        if demand.version != policy:
            return "The rules for this tool have changed. The call has to be made again."
    elif plan is not None:
        return "This tool needs no approval any more, or is not served. Let the call be made again."
    return unfit(request, who)


def unfit(request: Request, who: Approver) -> str | None:
    """Why this person is not one who decides about the request."""
    if isinstance(who, Operator):
        # Names on a machine are easily taken: from there only one of two can come.
        if any(one.by.kind == "operator" for one in request.decisions):
            return "It was approved on the command line already; the second person signs in."
        return None
    if who.subject_kind != "user":
        return "Only people decide, and this is a machine's identity."
    if who.actor is not None:
        # A token that somebody else got to act for them (RFC 8693 section 4.1): perhaps the agent.
        return "Only people decide, and somebody else acts for this one."
    if same(request.caller, who):
        return (
            "You submitted this script, so somebody else decides about it."
            if request.kind == "script"
            else "This is your own call, so somebody else decides about it."
        )
    if request.caller.actor == who.subject:
        return "You made this call, for somebody else. Another person decides about it."
    if any(same(one.by, who) for one in request.decisions):
        return "You have approved it already; it takes a second person."
    if not satisfies(who, request.by):
        return f"You cannot decide about it: it takes {wanted(request.by)}."
    return None


def same(party: Party, who: Approver) -> bool:
    """Whether both are the same person: one issuer, one stable id (design, decision 15)."""
    if isinstance(who, Operator):
        return party.kind == "operator" and party.subject == who.name
    # A script's record has no issuer; there the id alone has to do.
    issuers = {party.issuer, who.issuer} - {""}
    return party.kind == "user" and party.subject == who.subject and len(issuers) == 1


def wanted(by: tuple[tuple[str, ...], ...]) -> str:
    """Who is needed, in words."""
    groups = (" or ".join(map(_said, group)) for group in by)
    return " and also ".join(groups) or "somebody whom a rule names"


def _said(entry: str) -> str:
    kind, _, rest = entry.partition(":")
    return f"the role {rest}" if kind == "role" else f"the person {rest.rpartition(' ')[2]}"
