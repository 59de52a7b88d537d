"""The tools page: every tool, and whether a caller can call it."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gatepost.dashboard.page import PageRequest, PageResponse
from gatepost.dashboard.templating import Templates
from gatepost.policy.approvals.approval_request import party_of
from gatepost.policy.approvals.policies import ApprovalPolicy
from gatepost.policy.approvals.tool_policies import Plan, ToolPolicies
from gatepost.runtime.recent_callers import KEPT_S
from gatepost.tools.calls.registry import UnknownTool
from gatepost.tools.calls.runner import Runner
from gatepost.tools.offers.offer import Call, Tool
from gatepost.tools.offers.tenant_offers import capability_of
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import InsufficientAuthentication, InsufficientScope
from gatepost_authz.scopes import Implications

AccessLevel = Literal["may", "asks", "steps_up", "may_not"]

MAX_CALLERS = 40
MAX_SCOPES = 2_000
"""Maximum length of the scopes that a user enters."""


class ToolAccess(msgspec.Struct, frozen=True):
    """Whether a caller can call a tool, with the reason."""

    level: AccessLevel
    sentence: str


class JudgedCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller that the page checks: a recent caller (*is_recent*), or entered scopes."""

    caller: TenantContext
    is_recent: bool
    implied: frozenset[str] = frozenset()
    """The scopes that other scopes imply."""


class ToolRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tool as the page shows it."""

    tool: Tool
    rules: tuple[str, ...]
    """When calls need approval, in words; empty for never."""
    access: ToolAccess | None = None


ReadRecentCallers = Callable[[str, int], Awaitable[Sequence[TenantContext]]]
"""Returns the latest callers of a tenant that any process has seen, at most the given number."""


class ToolsPage:
    """
    Render the tools page.

    *runner* and *policies* return the current objects, which a reload replaces.
    """

    def __init__(
        self,
        view: Templates,
        *,
        runner: Callable[[], Runner],
        policies: Callable[[], ToolPolicies],
        recent_callers: ReadRecentCallers,
        baseline: frozenset[str],
        implied: Mapping[str, Sequence[str]],
    ) -> None:
        self._view, self._runner, self._policies = view, runner, policies
        self._recent_callers = recent_callers
        self._baseline, self._implications = baseline, Implications(implied)

    async def show(self, page_request: PageRequest) -> PageResponse:
        """Show all tools, checked for the caller that the user chose."""
        query, callers = (
            page_request.query,
            await self._recent_callers(page_request.tenant, MAX_CALLERS),
        )
        caller_key = query.get("caller", "")
        caller = next((candidate for candidate in callers if key_of(candidate) == caller_key), None)
        entered = query.get("scopes", "")[:MAX_SCOPES]
        judged_caller = None
        if caller is not None:
            judged_caller = JudgedCaller(caller=caller, is_recent=True)
        elif "scopes" in query:
            judged_caller = self._entered(page_request.tenant, entered)
        runner, policies, baseline = self._runner(), self._policies(), self._baseline
        shown_caller = (
            judged_caller.caller if judged_caller else self._entered(page_request.tenant, "").caller
        )
        await runner.registry.prepare(shown_caller)
        tools = runner.registry.known_tools(shown_caller)
        named_policies = [(tool.name, policies.policy_for(tool)) for tool in tools]
        plan: Plan = {name: policy for name, policy in named_policies if policy is not None}
        rows = [
            ToolRow(
                tool=tool,
                rules=rules_of(plan.get(tool.name)),
                access=access(tool, judged_caller.caller, runner, plan, baseline=baseline)
                if judged_caller
                else None,
            )
            for tool in tools
        ]
        return await self._view.page(
            "tools.html",
            page_request,
            tab="/tools",
            packs=_by_pack(rows),
            count=len(rows),
            callers=[(key_of(candidate), candidate) for candidate in callers],
            kept=f"{KEPT_S / 86_400:g} days",
            chosen=caller_key if caller else "",
            entered=entered,
            judged=judged_caller,
        )

    def _entered(self, tenant: str, entered: str) -> JudgedCaller:
        scopes = frozenset(entered.replace(",", " ").split())
        expanded = self._implications.expand(scopes)
        unknown = TenantContext(
            tenant_id=tenant,
            issuer="",
            subject="",
            subject_kind="user",
            resource="",
            expires_at=0,
            scopes=expanded,
        )
        return JudgedCaller(caller=unknown, is_recent=False, implied=expanded - scopes)


def key_of(caller: TenantContext) -> str:
    """Return the form's key for a caller: a digest, so that URLs contain no personal data."""
    identity = (*caller.principal_key, caller.client_id or "")
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]


def access(
    tool: Tool,
    caller: TenantContext,
    runner: Runner,
    plan: Plan,
    *,
    baseline: frozenset[str] = frozenset(),
) -> ToolAccess:
    """Return whether the caller can call the tool, decided as for a call."""
    call = Call(caller=caller, name=tool.name, arguments=b"", request_id="")
    try:
        caller.require(baseline)
    except InsufficientScope as missing:
        lacks = _list({*missing.scopes} - caller.scopes)
        return ToolAccess("may_not", f"Missing scope {lacks}, which every request needs.")
    try:
        runner.allowed(call)
    except UnknownTool:
        lacks = _list(runner.registry.withheld(tool, caller))
        if not lacks:
            lacks = capability_of(tool)
            return ToolAccess("may_not", f"The agent of this client lacks the capability {lacks}.")
        return ToolAccess("may_not", f"Missing scope {lacks}. The tool is hidden from this caller.")
    except InsufficientScope as missing:
        lacks = _list({*missing.scopes} - caller.scopes)
        return ToolAccess("steps_up", f"Missing scope {lacks}. The client can request it.")
    except InsufficientAuthentication:
        return ToolAccess("steps_up", f"Needs another sign-in: {_signin(tool)}.")
    policy = plan.get(tool.name)
    if policy is None:
        return ToolAccess("may", "Has all scopes. Calls run without approval.")
    if policy.frequency() == "always":
        if policy.has_no_approver(party_of(caller)):
            return ToolAccess(
                "may_not", "Has all scopes, but no rule names an approver for this machine's calls."
            )
        return ToolAccess("asks", "Has all scopes. Every call needs approval.")
    return ToolAccess("asks", "Has all scopes. Some calls need approval.")


def rules_of(policy: ApprovalPolicy | None) -> tuple[str, ...]:
    """Return the approval rules of a tool in words."""
    if policy is None:
        return ()
    rules = ["every call"] if policy.always else []
    if policy.writes:
        rules.append("every call that is not read-only")
    for clause in policy.clauses:
        rule = clause.rule
        words = f"when {rule.when}" if rule.when else "every call"
        if rule.approvals > 1:
            words += f", {rule.approvals} approvers"
        if rule.by:
            words += f" ({' or '.join(rule.by)})"
        rules.append(words)
    return tuple(dict.fromkeys(rules))


def _by_pack(rows: Iterable[ToolRow]) -> Mapping[str, list[ToolRow]]:
    packs: dict[str, list[ToolRow]] = {}
    for row in rows:
        packs.setdefault(row.tool.pack, []).append(row)
    return dict(sorted(packs.items()))


def _signin(tool: Tool) -> str:
    parts = [f"with acr {' or '.join(tool.acr_values)}"] if tool.acr_values else []
    if tool.max_age_s is not None:
        parts.append(f"at most {tool.max_age_s:g} seconds old")
    return " and ".join(parts)


def _list(scopes: Iterable[str]) -> str:
    return ", ".join(sorted(scopes))
