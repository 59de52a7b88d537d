"""The approval policies of tools, as the rules of the configuration say."""

import fnmatch
import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from gatepost.config.approvals import ApprovalsSettings
from gatepost.policy.approvals.approval_request import ApprovalRequest, ToolFacts
from gatepost.policy.approvals.conditions import Condition
from gatepost.policy.approvals.policies import ApprovalPolicy, PolicyRule, token_claims
from gatepost.policy.idempotency.idempotency_record import may_repeat
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.tool_search import SEARCH_TOOLS
from gatepost.tools.offers.offer import Offer, Tool, ToolFailure
from gatepost_authz.caller import TenantContext

PACK = "pack:"
MAX_POLICIES = 4_096
"""The number of tenants' tools whose policies are kept."""

Plan = Mapping[str, ApprovalPolicy]
"""Policies by the name of the tool; tools that never need approval are absent."""


def plan_of(settings: ApprovalsSettings, offers: Iterable[Offer]) -> Plan:
    """Return the policies of all tools; raises BadCondition."""
    conditions = conditions_of(settings)
    policies = {
        tool.name: policy_of(settings, ToolFacts.from_tool(tool), conditions)
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


class ToolPolicies:
    """
    The policies of one configuration.

    ``plan`` has those of its own *tools*. The policy of any other tool is worked out at the first
    call; the tools `find_tools` and `call_tool` have none, because the tool that they call has its
    own. *tenant_tools* are the tools of tenants.
    """

    def __init__(
        self,
        settings: ApprovalsSettings,
        tools: Mapping[str, Tool],
        tenant_tools: Registry | None = None,
    ) -> None:
        self._tools, self._tenant_tools = tools, tenant_tools
        self.plan = plan_of(settings, tools.values())
        conditions = conditions_of(settings)
        self._of_tenant_tool: Callable[[ToolFacts], ApprovalPolicy | None] = lru_cache(
            MAX_POLICIES
        )(lambda facts: policy_of(settings, facts, conditions))

    @property
    def has_others(self) -> bool:
        """Return whether tenants may have tools of their own."""
        return self._tenant_tools is not None

    def policy_for(self, tool: Tool) -> ApprovalPolicy | None:
        """Return the policy of a tool; None if its calls never need approval."""
        if tool.name in self._tools:
            return self.plan.get(tool.name)
        if tool.name in SEARCH_TOOLS and tool.origin is None:
            return None
        return self._of_tenant_tool(ToolFacts.from_tool(tool))

    def needs_approval(self, tool: Tool) -> bool:
        """Return whether calls of a tool may have to wait for an approval."""
        return self.policy_for(tool) is not None

    def of_request(self, request: ApprovalRequest) -> ApprovalPolicy | None:
        """Return the policy of a tenant's tool; None if it needs no approval any more."""
        # A tool of the configuration may have taken the name of a tenant's tool meanwhile.
        if request.facts is None or request.tool in self._tools:
            return None
        return self._of_tenant_tool(request.facts)

    async def load_tools(self, request: ApprovalRequest) -> None:
        """Load the tools of the request's tenant; raises StoreUnavailable."""
        caller = _caller_of(request)
        if request.facts is not None and self._tenant_tools is not None and caller is not None:
            await self._tenant_tools.prepare(caller)

    def tool_of(self, request: ApprovalRequest) -> Tool | None:
        """Return the request's tool; None if it is not at hand, or not the same any more."""
        if request.facts is None:
            return self._tools.get(request.tool)
        tool = self._current(request)
        return tool if tool is not None and ToolFacts.from_tool(tool) == request.facts else None

    def has_changed(self, request: ApprovalRequest) -> bool:
        """Return whether the tool is known to be another than when the call was made."""
        tool = None if request.facts is None else self._current(request)
        return tool is not None and ToolFacts.from_tool(tool) != request.facts

    def may_run_again(self, request: ApprovalRequest, arguments: bytes | None) -> bool:
        """
        Return whether the request's call may run again while its outcome is unknown.

        It may if its tool says so, or if this process does not serve the tool. *arguments* are None
        if they cannot be opened here.
        """
        tool = self.tool_of(request)
        if tool is None or arguments is None:
            return not self.has_changed(request)
        try:
            checked = tool.check(arguments)
        except ToolFailure:
            return False
        return may_repeat(tool, checked)

    def _current(self, request: ApprovalRequest) -> Tool | None:
        caller = _caller_of(request)
        if self._tenant_tools is None or caller is None or request.tool in self._tools:
            return None
        return self._tenant_tools.tool_of_tenant(caller, request.tool)


def _caller_of(request: ApprovalRequest) -> TenantContext | None:
    return token_claims(request.caller, request.tenant, request.created_at)
