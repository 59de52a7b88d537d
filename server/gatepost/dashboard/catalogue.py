"""Every tool that is served, who may call it, and why not."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gatepost.approvals.policy import Demand, Plan
from gatepost.callers import KEPT_S
from gatepost.dashboard.sheet import Sheet
from gatepost.dashboard.visit import Answer, Visit
from gatepost.tools.api import Call, Tool
from gatepost.tools.registry import UnknownTool
from gatepost.tools.runner import Runner
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import InsufficientAuthentication, InsufficientScope
from gatepost_authz.scopes import Implications

Level = Literal["may", "asks", "steps_up", "may_not"]

MOST_CALLERS = 40
MOST_SCOPES = 2_000
"""Characters that are taken of scopes somebody enters."""


class Standing(msgspec.Struct, frozen=True):
    """How somebody stands with one tool, in a sentence."""

    level: Level
    sentence: str


class Somebody(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the page judges: a caller seen lately, or (not *known*) scopes that were entered."""

    caller: TenantContext
    known: bool
    implied: frozenset[str] = frozenset()
    """Of the scopes those that others brought along."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One tool as the page shows it."""

    tool: Tool
    rules: tuple[str, ...]
    """When a person is asked, in words; empty: never."""
    standing: Standing | None = None


Seen = Callable[[str, int], Awaitable[Sequence[TenantContext]]]
"""So many callers of a tenant that any process has seen lately, the latest first."""


class Catalogue:
    """The page of tools; *terms* are what decides now, which a reload replaces."""

    def __init__(
        self,
        sheet: Sheet,
        *,
        runner: Callable[[], Runner],
        plan: Callable[[], Plan],
        seen: Seen,
        baseline: frozenset[str],
        implied: Mapping[str, Sequence[str]],
    ) -> None:
        self._sheet, self._runner, self._plan, self._seen = sheet, runner, plan, seen
        self._baseline, self._implications = baseline, Implications(implied)

    async def show(self, visit: Visit) -> Answer:
        """All tools, judged for whom the visitor has chosen."""
        query, callers = visit.query, await self._seen(visit.tenant, MOST_CALLERS)
        chosen = query.get("caller", "")
        caller = next((one for one in callers if key_of(one) == chosen), None)
        entered = query.get("scopes", "")[:MOST_SCOPES]
        somebody = None
        if caller is not None:
            somebody = Somebody(caller=caller, known=True)
        elif "scopes" in query:
            somebody = self._entered(visit.tenant, entered)
        runner, plan, baseline = self._runner(), self._plan(), self._baseline
        rows = [
            Row(
                tool=tool,
                rules=rules_of(plan.get(tool.name)),
                standing=standing(tool, somebody.caller, runner, plan, baseline=baseline)
                if somebody
                else None,
            )
            for tool in runner.registry.tools.values()
        ]
        return self._sheet.page(
            "tools.html",
            visit,
            here="/tools",
            packs=_by_pack(rows),
            count=len(rows),
            callers=[(key_of(one), one) for one in callers],
            kept=f"{KEPT_S / 86_400:g} days",
            chosen=chosen if caller else "",
            entered=entered,
            somebody=somebody,
        )

    def _entered(self, tenant: str, entered: str) -> Somebody:
        given = frozenset(entered.replace(",", " ").split())
        held = self._implications.expand(given)
        nobody = TenantContext(
            tenant_id=tenant,
            issuer="",
            subject="",
            subject_kind="user",
            resource="",
            expires_at=0,
            scopes=held,
        )
        return Somebody(caller=nobody, known=False, implied=held - given)


def key_of(caller: TenantContext) -> str:
    """By which a form names a caller: nothing of a person stands in an address."""
    who = (*caller.principal_key, caller.client_id or "")
    return hashlib.sha256("\0".join(who).encode()).hexdigest()[:16]


def standing(
    tool: Tool,
    caller: TenantContext,
    runner: Runner,
    plan: Plan,
    *,
    baseline: frozenset[str] = frozenset(),
) -> Standing:
    """Whether the caller may call the tool: what the gate and the runner would say to a call."""
    call = Call(caller=caller, name=tool.name, arguments=b"", request_id="")
    try:
        caller.require(baseline)
    except InsufficientScope as missing:
        lacks = _list({*missing.scopes} - caller.scopes)
        return Standing("may_not", f"Every request needs {lacks}.")
    try:
        runner.allowed(call)
    except UnknownTool:
        lacks = _list(runner.registry.withheld(tool, caller))
        return Standing("may_not", f"Lacks {lacks}: the tool is unknown to it.")
    except InsufficientScope as missing:
        lacks = _list({*missing.scopes} - caller.scopes)
        return Standing("steps_up", f"Lacks {lacks}, which its client may ask for.")
    except InsufficientAuthentication:
        return Standing("steps_up", f"Needs a sign-in {_signin(tool)}.")
    demand = plan.get(tool.name)
    if demand is None:
        return Standing("may", "Has every scope; nobody is asked.")
    if demand.told() == "always":
        return Standing("asks", "Has every scope; each call waits for a person.")
    return Standing("asks", "Has every scope; some calls wait for a person.")


def rules_of(demand: Demand | None) -> tuple[str, ...]:
    """When a person is asked about calls of a tool, in words."""
    if demand is None:
        return ()
    told = ["each call"] if demand.always else []
    for clause in demand.clauses:
        rule = clause.rule
        words = f"when {rule.when}" if rule.when else "each call"
        if rule.approvals > 1:
            words += f", by {rule.approvals} people"
        if rule.by:
            words += f" ({' or '.join(rule.by)})"
        told.append(words)
    return tuple(dict.fromkeys(told))


def _by_pack(rows: Iterable[Row]) -> Mapping[str, list[Row]]:
    packs: dict[str, list[Row]] = {}
    for row in rows:
        packs.setdefault(row.tool.pack, []).append(row)
    return dict(sorted(packs.items()))


def _signin(tool: Tool) -> str:
    parts = [f"of the strength {' or '.join(tool.acr_values)}"] if tool.acr_values else []
    if tool.max_age_s is not None:
        parts.append(f"not older than {tool.max_age_s:g} seconds")
    return " and ".join(parts)


def _list(scopes: Iterable[str]) -> str:
    return ", ".join(sorted(scopes))
