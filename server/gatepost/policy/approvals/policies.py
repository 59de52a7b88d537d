"""The approval policies of tools: which calls need an approval, and whose."""

import fnmatch
import hashlib
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec.structs import asdict

from gatepost.config.approvals import ApprovalRule, ApprovalsSettings
from gatepost.policy.approvals.conditions import Condition, ConditionVariables
from gatepost.policy.approvals.request import ApprovalRequest, DisplayedParty, ToolFacts
from gatepost.policy.approvals.stored_request import token_claims
from gatepost.policy.idempotency.idempotency_record import only_reads
from gatepost.tools.api import Offer, Tool
from gatepost.tools.tool_search import SEARCH_TOOLS
from gatepost_authz.caller import TenantContext

PACK = "pack:"
DEFAULT_APPROVERS = ("role:approver",)
"""The approvers if no rule names any."""
MOST_KNOWN = 4_096
"""The number of tenants' tools whose policies are kept."""


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

    def within(self, caller: DisplayedParty, needed: int, by: Iterable[tuple[str, ...]]) -> bool:
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
        return self.condition is None or self.condition.holds(subject) is not False


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
        asked = self.always or (self.writes and not subject.tool["reads"])
        if not rules and not asked:
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
        return "always" if self.always or self.unconditional else "sometimes"

    @property
    def unconditional(self) -> bool:
        """Return whether a rule matches every call."""
        return any(clause.condition is None for clause in self.clauses)


Plan = Mapping[str, ApprovalPolicy]
"""Policies by the name of the tool; tools that never need approval are absent."""


def plan_of(settings: ApprovalsSettings, offers: Iterable[Offer]) -> Plan:
    """Return the policies of all tools; raises BadCondition."""
    conditions = conditions_of(settings)
    policies = {
        tool.name: policy_of(settings, ToolFacts.of(tool), conditions)
        for tool in offers
        if isinstance(tool, Tool)
    }
    return {name: policy for name, policy in policies.items() if policy is not None}


def conditions_of(settings: ApprovalsSettings) -> Mapping[str | None, Condition]:
    """Return the compiled conditions of the rules; raises BadCondition."""
    return {rule.when: Condition(rule.when) for rule in settings.rules if rule.when}


def policy_of(
    settings: ApprovalsSettings, tool: ToolFacts, conditions: Mapping[str | None, Condition]
) -> ApprovalPolicy | None:
    """Return the policy of a tool; None if its calls never need approval."""
    if matches_any(settings.auto_approve, tool):
        return None
    machines_wait = settings.machines == "wait"
    clauses = tuple(
        PolicyRule(rule, conditions.get(rule.when))
        for rule in settings.rules
        if matches_any(rule.tools, tool)
    )
    always = tool.approval or matches_any(settings.require, tool)
    writes = not always and settings.destructive != "run" and tool.destructive
    if writes and not tool.reading_form:
        always, writes = True, False
    if not (always or writes or clauses):
        return None
    deciding: list[Any] = [always, *(clause.rule for clause in clauses)]
    if writes:
        deciding.append("writes")
    if not machines_wait:
        deciding.append(settings.machines)
    digest = hashlib.sha256(msgspec.json.encode(deciding)).hexdigest()
    return ApprovalPolicy(always, clauses, settings.timeout_s, digest[:16], machines_wait, writes)


def asks_as_destructive(settings: ApprovalsSettings, tool: Tool) -> bool:
    """Return whether calls of the tool need approval because it is marked destructive."""
    return settings.destructive != "run" and tool.effects.destructive


def matches_any(patterns: Iterable[str], tool: Tool | ToolFacts) -> bool:
    """Return whether one of the patterns matches this tool."""
    return any(matches(pattern, tool) for pattern in patterns)


def matches(pattern: str, tool: Tool | ToolFacts) -> bool:
    """Return whether a pattern matches this tool; only `*` is a wildcard."""
    name = tool.name
    if pattern.startswith(PACK):
        pattern, name = pattern.removeprefix(PACK), tool.pack
    literal = pattern.replace("[", "[[]").replace("?", "[?]")
    return fnmatch.fnmatchcase(name, literal)


class TenantTools(Protocol):
    """The tools that tenants have beside those of the configuration, as the registry knows them."""

    def ready(self, caller: TenantContext) -> Awaitable[None]:
        """Load the tools of the caller's tenant; raises StoreUnavailable."""

    def known(self, caller: TenantContext, name: str) -> Tool | None:
        """Return the tool of that name, if it is at hand."""


class ToolPolicies:
    """
    The policies of one configuration.

    *plan* has those of its own *tools*. The policy of any other tool is worked out at the first
    call; the tools `find_tools` and `call_tool` have none, because the tool that they call has its
    own. *beside* are the tools of tenants.
    """

    def __init__(
        self,
        settings: ApprovalsSettings,
        plan: Plan,
        tools: Mapping[str, Tool],
        beside: TenantTools | None = None,
    ) -> None:
        self._settings, self.plan, self._tools, self._beside = settings, plan, tools, beside
        self._conditions = conditions_of(settings)
        self._others: dict[ToolFacts, ApprovalPolicy | None] = {}

    @property
    def has_others(self) -> bool:
        """Return whether tenants may have tools of their own."""
        return self._beside is not None

    def of(self, tool: Tool) -> ApprovalPolicy | None:
        """Return the policy of a tool; None if its calls never need approval."""
        if tool.name in self._tools:
            return self.plan.get(tool.name)
        if tool.name in SEARCH_TOOLS and tool.origin is None:
            return None
        return self._of_other(ToolFacts.of(tool))

    def asks(self, tool: Tool) -> bool:
        """Return whether calls of a tool may have to wait for an approval."""
        return self.of(tool) is not None

    def of_request(self, request: ApprovalRequest) -> ApprovalPolicy | None:
        """Return the current policy of a request's tool; None if it needs no approval any more."""
        if request.facts is None:
            return self.plan.get(request.tool)
        # A tool of the configuration may have taken the name of a tenant's tool meanwhile.
        if request.tool in self._tools:
            return None
        return self._of_other(request.facts)

    async def ready(self, request: ApprovalRequest) -> None:
        """Load the tools of the request's tenant; raises StoreUnavailable."""
        caller = _caller_of(request)
        if request.facts is not None and self._beside is not None and caller is not None:
            await self._beside.ready(caller)

    def tool_of(self, request: ApprovalRequest) -> Tool | None:
        """Return the request's tool; None if it is not at hand, or not the same any more."""
        if request.facts is None:
            return self._tools.get(request.tool)
        tool = self._current(request)
        return tool if tool is not None and ToolFacts.of(tool) == request.facts else None

    def has_changed(self, request: ApprovalRequest) -> bool:
        """Return whether the tool is known to be another than when the call was made."""
        tool = None if request.facts is None else self._current(request)
        return tool is not None and ToolFacts.of(tool) != request.facts

    def _current(self, request: ApprovalRequest) -> Tool | None:
        caller = _caller_of(request)
        if self._beside is None or caller is None or request.tool in self._tools:
            return None
        return self._beside.known(caller, request.tool)

    def _of_other(self, facts: ToolFacts) -> ApprovalPolicy | None:
        if facts in self._others:
            return self._others[facts]
        if len(self._others) >= MOST_KNOWN:
            del self._others[next(iter(self._others))]
        policy = self._others[facts] = policy_of(self._settings, facts, self._conditions)
        return policy


def _caller_of(request: ApprovalRequest) -> TenantContext | None:
    return token_claims(request.caller, request.tenant, request.created_at)
