"""Which approval a call needs, by the policy of its tool."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from gatepost.config.approvals import ApprovalRule
from gatepost.policy.approvals.approval_request import (
    ApprovalRequest,
    DisplayedParty,
)
from gatepost.policy.approvals.conditions import Condition, ConditionVariables
from gatepost.policy.idempotency.idempotency_record import only_reads
from gatepost.tools.offers.offer import Tool
from gatepost_authz.caller import TenantContext

ROLE, SUBJECT = "role:", "subject:"
DEFAULT_APPROVERS = ("role:approver",)
"""The approvers if no rule names any."""
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


def outdated(request: ApprovalRequest, current: ApprovalPolicy | None) -> str | None:
    """Return a sentence why the request is not for the *current* policy of its tool, or None."""
    if current is None:
        return NOT_SERVED
    return None if current.version == request.policy else OTHER_RULES
