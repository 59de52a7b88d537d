"""The approval policies of all tools: those of the configuration, and those of tenants."""

from collections.abc import Awaitable, Mapping
from typing import Protocol

from gatepost.config.approvals import ApprovalsSettings
from gatepost.policy.approvals.request import ApprovalRequest, ToolFacts, token_claims
from gatepost.policy.approvals.rules import ApprovalPolicy, Plan, conditions_of, facts_of, policy_of
from gatepost.tools.api import Tool
from gatepost.tools.tool_search import SEARCH_TOOLS
from gatepost_authz.caller import TenantContext

MOST_KNOWN = 4_096
"""The number of tenants' tools whose policies are kept."""


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
        return self._of_other(facts_of(tool))

    def asks(self, tool: Tool) -> bool:
        """Return whether calls of a tool may have to wait for an approval."""
        return self.of(tool) is not None

    def of_request(self, request: ApprovalRequest) -> ApprovalPolicy | None:
        """Return the policy of a tenant's tool; None if no approval is needed any more."""
        # A tool of the configuration may have taken the name meanwhile.
        if request.facts is None or request.tool in self._tools:
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
        return tool if tool is not None and facts_of(tool) == request.facts else None

    def has_changed(self, request: ApprovalRequest) -> bool:
        """Return whether the tool is known to be another than when the call was made."""
        tool = None if request.facts is None else self._current(request)
        return tool is not None and facts_of(tool) != request.facts

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
