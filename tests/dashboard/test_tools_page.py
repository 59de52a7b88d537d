"""The page of tools shows what a call of the caller would meet."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.config.approvals import ApprovalsSettings
from gatepost.dashboard.tools import access
from gatepost.policy.approvals.tool_policies import plan_of
from gatepost.tools.authoring.pack import Pack
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.offers.offer import Call, CallContext
from gatepost.tools.offers.tenant_offers import Agent
from tests.dashboard.conftest import open_dashboard_server
from tests.support.endpoint import a_caller
from tests.support.tools import MemorySource, ToolUpstream

NOW = 2_000_000.0
pack = Pack("vaults")


@pack.tool(acr_values=("phr",), max_age_s=300)
async def unlock(ctx: CallContext) -> str:
    """Open the vault."""
    return ""


@pack.tool(scopes={"vault:read", "vault:open"})
async def peek(ctx: CallContext) -> str:
    """Look into the vault."""
    return ""


ACCESS_CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "strong and fresh": (
        "unlock",
        {"acr": "phr", "auth_time": int(NOW) - 10},
        "may",
        "Has all scopes. Calls run without approval.",
    ),
    "stale": (
        "unlock",
        {"acr": "phr", "auth_time": int(NOW) - 1_000},
        "steps_up",
        "Needs another sign-in: with acr phr and at most 300 seconds old.",
    ),
    "weak": (
        "unlock",
        {"acr": "pwd", "auth_time": int(NOW) - 10},
        "steps_up",
        "Needs another sign-in: with acr phr and at most 300 seconds old.",
    ),
    "only scopes": (
        "unlock",
        {},
        "steps_up",
        "Needs another sign-in: with acr phr and at most 300 seconds old.",
    ),
    "may ask for more": (
        "peek",
        {"scopes": frozenset({"base", "vault:read"})},
        "steps_up",
        "Missing scope vault:open. The client can request it.",
    ),
    "out of reach": (
        "peek",
        {"scopes": frozenset({"base", "vault:open"})},
        "may_not",
        "Missing scope vault:read. The tool is hidden from this caller.",
    ),
    "not let in": (
        "peek",
        {"scopes": frozenset({"vault:read", "vault:open"})},
        "may_not",
        "Missing scope base, which every request needs.",
    ),
}


@pytest.mark.parametrize("name", ACCESS_CASES)
def test_the_tools_page_judges_a_caller_like_a_call(name: str) -> None:
    """The runner decides for both, so the page and a call never disagree."""
    tool, claims, level, sentence = ACCESS_CASES[name]
    registry = Registry(pack.offers, obtainable=frozenset({"vault:open"}))
    runner = Runner(registry, context_for=refuse_calls, clock=lambda: NOW)
    caller = a_caller(**{"scopes": frozenset({"base"}), **claims})
    verdict = access(registry.tools[tool], caller, runner, {}, baseline=frozenset({"base"}))

    assert (verdict.level, verdict.sentence) == (level, sentence)


def refuse_calls(call: Call) -> CallContext:
    """Raise an error for every call."""
    raise AssertionError(call.name)


BY_A_ROLE = {"tools": ["peek"], "by": ["role:a"]}
MACHINES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    # settings                     caller                                   level
    ({}, {"subject_kind": "client"}, "asks"),
    ({"machines": "refuse"}, {"subject_kind": "client"}, "may_not"),
    ({"machines": "refuse"}, {}, "asks"),
    ({}, {"subject_kind": "client", "actor": "bob"}, "may_not"),
    ({"rules": [BY_A_ROLE]}, {"subject_kind": "client", "actor": "b"}, "asks"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "claims", "level"), MACHINES)
def test_the_tools_page_says_if_calls_of_a_machine_have_no_approver(
    settings: dict[str, Any], claims: dict[str, Any], level: str
) -> None:
    """The call would be refused at once or wait for a person."""
    registry = Registry(pack.offers)
    runner = Runner(registry, context_for=refuse_calls, clock=lambda: NOW)
    approvals = msgspec.convert({"require": ["peek"], **settings}, ApprovalsSettings)
    plan = plan_of(approvals, registry.tools.values())
    caller = a_caller(scopes=frozenset({"vault:read", "vault:open"}), **claims)

    assert access(registry.tools["peek"], caller, runner, plan).level == level


async def test_the_tools_page_names_the_capability_that_an_agent_lacks() -> None:
    """The agent has the scopes of the tool."""
    source, crm = MemorySource(), ToolUpstream()
    tool = crm.tool("find")
    source.put("acme", tool, agents={"agent": Agent(frozenset())})
    registry = Registry(pack.offers, source=source)
    runner = Runner(registry, context_for=refuse_calls, clock=lambda: NOW)
    caller = a_caller(client_id="agent")
    await registry.prepare(caller)
    verdict = access(tool, caller, runner, {})

    assert verdict.level == "may_not"
    assert verdict.sentence == f"The agent of this client lacks the capability {crm.capability}."


def test_the_page_shows_the_tools_of_the_users_tenant(tmp_path: Path) -> None:
    """They are listed beside the configured tools, with their rules."""
    source = MemorySource()
    source.put("acme", ToolUpstream().tool("find", "Find a person."))
    source.put("globex", ToolUpstream("wiki").tool("read"))
    with (
        open_dashboard_server(tmp_path, source_of=lambda services, config: source) as server,
        server.user_browser("dave") as dave,
    ):
        page = dave.get("/tools").text

    assert "mcp_crm__find" in page
    assert "every call" in page
    assert "mcp_wiki__read" not in page
