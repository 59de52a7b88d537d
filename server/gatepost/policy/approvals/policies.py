"""Which approval a call needs, who may give it, and whose part in it is revoked."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from gatepost.config.approvals import ApprovalRule
from gatepost.policy.approvals.approval_request import (
    ApprovalDecision,
    ApprovalGrant,
    ApprovalRequest,
    Approver,
    DisplayedParty,
    Operator,
)
from gatepost.policy.approvals.conditions import Condition, ConditionVariables
from gatepost.policy.idempotency.idempotency_record import only_reads
from gatepost.tools.offers.offer import Tool
from gatepost_authz.caller import TenantContext

ROLE, SUBJECT = "role:", "subject:"
DEFAULT_APPROVERS = ("role:approver",)
"""The approvers if no rule names any."""
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


def caller_variables(caller: TenantContext) -> dict[str, Any]:
    """Return the variable `caller` of conditions."""
    return {
        "subject": caller.subject,
        "issuer": caller.issuer,
        "kind": caller.subject_kind,
        "client_id": caller.client_id or "",
        "tenant": caller.tenant_id,
        "scopes": sorted(caller.scopes),
        "roles": sorted(caller.roles),
    }


def variables_of(
    caller: Mapping[str, Any], tool: Tool, raw: bytes, arguments: Any
) -> ConditionVariables:
    """
    Return the variables for a call; *caller* comes from `caller_variables`.

    *arguments* are the checked arguments, *raw* are the arguments as sent.
    """
    return ConditionVariables(
        raw,
        caller,
        {
            "name": tool.name,
            "pack": tool.pack,
            "reads": only_reads(tool, arguments),
            **asdict(tool.effects),
        },
    )


class ApprovalNeed(msgspec.Struct, frozen=True):
    """The approval that one call needs before it runs."""

    approvals: int
    by: tuple[tuple[str, ...], ...]
    """The approver must match one entry of each group; empty: no rule names approvers."""
    reason: str
    timeout_s: float
    machines_wait: bool = True
    """Whether the default approvers also decide about calls of machines."""

    def of(self, caller: DisplayedParty) -> tuple[tuple[str, ...], ...]:
        """Return the approvers for that caller; empty if no person may approve its calls."""
        return self.by or _default_approvers(caller, machines_wait=self.machines_wait)

    def is_met_by(self, caller: DisplayedParty, needed: int, by: Iterable[tuple[str, ...]]) -> bool:
        """Return whether *needed* people who match every group of *by* are enough."""
        return self.approvals <= needed and set(self.of(caller)) <= set(by)


def _default_approvers(
    caller: DisplayedParty, *, machines_wait: bool
) -> tuple[tuple[str, ...], ...]:
    # The person that a machine acts for could be the approver. The token's name for them (`act`)
    # may differ from the one that they sign in with, so the server could not tell.
    usual = caller.kind == "user" or (machines_wait and caller.actor is None)
    return (DEFAULT_APPROVERS,) if usual else ()


class PolicyRule(msgspec.Struct, frozen=True):
    """One rule that matches a tool."""

    rule: ApprovalRule
    condition: Condition | None

    def counts(self, subject: ConditionVariables) -> bool:
        """Return whether the rule matches the call; True if that cannot be evaluated."""
        return self.condition is None or self.condition.is_true(subject) is not False


class ApprovalPolicy(msgspec.Struct, frozen=True):
    """The approval policy of one tool."""

    always: bool
    """Every call needs approval: by declaration, by `approvals.require`, or as destructive."""
    clauses: tuple[PolicyRule, ...]
    timeout_s: float
    version: str
    """A digest that changes when the policy changes."""
    machines_wait: bool = True
    """Whether the default approvers also decide about calls of machines."""
    writes: bool = False
    """Calls need approval unless they only read: the tool is destructive but has a reading form."""

    def need(self, subject: ConditionVariables) -> ApprovalNeed | None:
        """Return the approval that the call needs, or None."""
        rules = [clause.rule for clause in self.clauses if clause.counts(subject)]
        is_needed = self.always or (self.writes and not subject.tool["reads"])
        if not rules and not is_needed:
            return None
        limits = [rule.timeout_s for rule in rules if rule.timeout_s is not None]
        return ApprovalNeed(
            approvals=max([1, *(rule.approvals for rule in rules)]),
            by=tuple(dict.fromkeys(rule.by for rule in rules if rule.by)),
            reason=" ".join(dict.fromkeys(rule.reason for rule in rules if rule.reason)),
            timeout_s=min(limits) if limits else self.timeout_s,
            machines_wait=self.machines_wait,
        )

    def has_no_approver(self, caller: DisplayedParty) -> bool:
        """Return whether no person may approve calls of that caller."""
        named = any(clause.rule.by for clause in self.clauses)
        return not named and not _default_approvers(caller, machines_wait=self.machines_wait)

    def frequency(self) -> str:
        """Return `always` or `sometimes`: when calls need approval."""
        is_always = self.always or any(clause.condition is None for clause in self.clauses)
        return "always" if is_always else "sometimes"


def objection(request: ApprovalRequest, approver: Approver, *, now: float) -> str | None:
    """Return a sentence why *approver* cannot decide about the request, or None."""
    if request.state != "waiting":
        return f"This request {ENDINGS[request.state]}."
    if request.kind == "call" and request.until <= now:
        return f"This request {ENDINGS['expired']}."
    return ineligibility(request, approver)


def outdated(request: ApprovalRequest, current: ApprovalPolicy | None) -> str | None:
    """Return a sentence why the request is not for the *current* policy of its tool, or None."""
    if current is None:
        return NOT_SERVED
    return None if current.version == request.policy else OTHER_RULES


def ineligibility(request: ApprovalRequest, approver: Approver) -> str | None:
    """Return a sentence why this person is not an approver of the request, or None."""
    if isinstance(approver, Operator):
        # Operators can use any name, so only one of two approvals may come from an operator.
        if any(decision.by.kind == "operator" for decision in request.decisions):
            return "It was already approved on the command line. The second person has to sign in."
        return None
    if approver.subject_kind != "user":
        return "Only people can decide, and this is a machine's identity."
    if approver.actor is not None:
        # Another party, perhaps the agent, got a token to act for them (RFC 8693 section 4.1).
        return "Only people can decide, and another party acts for this one."
    if is_same_person(request.caller, approver):
        return (
            "You submitted this script, so another person has to decide."
            if request.kind == "script"
            else "This is your own call, so another person has to decide."
        )
    if request.caller.actor == approver.subject:
        return "You made this call on behalf of its caller, so another person has to decide."
    if _is_namesake(request, approver):
        return "This machine has your own id, so another person has to decide."
    if any(is_same_person(decision.by, approver) for decision in request.decisions):
        return "You have already approved it. A second person has to approve."
    if not all(any(_matches_entry(approver, entry) for entry in group) for group in request.by):
        return f"You cannot decide about it: it needs {_required_approvers(request.by)}."
    return None


def is_same_person(party: DisplayedParty, approver: Approver) -> bool:
    """Return whether both are the same person: same issuer and stable id."""
    if isinstance(approver, Operator):
        return party.kind == "operator" and party.subject == approver.name
    ids = (party.issuer, party.subject) == (approver.issuer, approver.subject)
    return party.kind == "user" and ids


def _is_namesake(request: ApprovalRequest, approver: TenantContext) -> bool:
    """
    Return whether a machine without a named approver has the person's own id at their issuer.

    Then the machine may be the person's own program, so they cannot approve its calls.
    """
    caller = request.caller
    ids = (caller.issuer, caller.subject) == (approver.issuer, approver.subject)
    return caller.kind == "client" and request.by == (DEFAULT_APPROVERS,) and ids


def _matches_entry(approver: TenantContext, entry: str) -> bool:
    if entry.startswith(ROLE):
        return entry.removeprefix(ROLE) in approver.roles
    issuer, _, subject = entry.removeprefix(SUBJECT).partition(" ")
    return (approver.issuer, approver.subject) == (issuer, subject)


def _required_approvers(by: tuple[tuple[str, ...], ...]) -> str:
    """Return a phrase for the required approvers."""
    groups = (" or ".join(map(_approver_phrase, group)) for group in by)
    return " and also ".join(groups) or "an approver that a rule names"


def _approver_phrase(entry: str) -> str:
    kind, _, value = entry.partition(":")
    return f"the role {value}" if kind == "role" else f"the person {value.rpartition(' ')[2]}"


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
        decision
        for decision in request.decisions
        if decision.verdict == "approved"
        and _revoked(decision.by, request.tenant, decision.at, is_revoked)
    )


def is_valid_grant(grant: ApprovalGrant, is_revoked: IsRevoked) -> bool:
    """Return whether neither the grant's caller nor its approver is revoked."""
    people = (grant.caller, grant.by)
    return not any(_revoked(party, grant.tenant, grant.created_at, is_revoked) for party in people)


def _revoked(party: DisplayedParty, tenant: str, at: float, is_revoked: IsRevoked) -> bool:
    token = token_claims(party, tenant, at)
    return token is not None and is_revoked(token)
