"""Tools that are marked destructive ask a person unless the operator says otherwise."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.check.pack_loading import load
from gatepost.config.approvals import ApprovalsSettings
from gatepost.dev.composition import dev_config
from gatepost.policy.approvals.tool_policies import plan_of
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.server import check_problems, issuer_settings, running_server

pack = Pack("wrecking")
RUN_TOOLS: list[str] = []
"""What has run, by the label of its call."""


@pack.tool(destructive=True)
async def wreck(ctx: CallContext, label: str) -> str:
    """Destroy something."""
    RUN_TOOLS.append(label)
    return "done"


@pack.tool(destructive=True, read_only_form=lambda arguments: arguments["action"] == "look")
async def handle(ctx: CallContext, action: str, label: str) -> str:
    """Destroy something, or look at it."""
    RUN_TOOLS.append(label)
    return "done"


@pack.tool(destructive=False)
async def note(ctx: CallContext, label: str) -> str:
    """Write something down."""
    RUN_TOOLS.append(label)
    return "done"


@pack.tool
async def unmarked(ctx: CallContext, label: str) -> str:
    """Do something; the tool has no mark."""
    RUN_TOOLS.append(label)
    return "done"


TOOLS = {"load": [__name__]}
LABELS = map(str, count())
CALLS = [
    ("wreck", {}, True),
    ("handle", {"action": "drop"}, True),
    ("handle", {"action": "look"}, False),
    ("note", {}, False),
    ("unmarked", {}, False),
]
"""Tool, arguments, and whether a person is asked by default."""


@pytest.mark.requirement("A7")
@pytest.mark.parametrize(
    ("settings", "needs_approval"),
    [
        ({"destructive": None}, True),
        ({"destructive": "ask"}, True),
        ({"destructive": "run"}, False),
        ({"destructive": "ask", "auto_approve": ["pack:wrecking"]}, False),
    ],
)
def test_a_destructive_call_runs_only_when_a_person_or_the_operator_says_so(
    idp: Idp, settings: dict[str, Any], needs_approval: bool
) -> None:
    """A form that only reads needs no approval; neither does a tool that is not marked."""
    free = {"create_on_first_use": True}
    with running_server(
        idp, [issuer_settings(idp)], tools=TOOLS, tenancy=free, approvals=settings
    ) as server:
        token = server.token(org_id="acme")
        for tool, arguments, destroys in CALLS:
            label = next(LABELS)
            answer = RestClient(server, token).call(tool, {**arguments, "label": label})

            waits = needs_approval and destroys
            assert answer.status == (503 if waits else 200), (tool, arguments, answer)
            assert (label in RUN_TOOLS) is not waits
            if waits:
                assert answer.json["error"] == "approval_pending"


def test_the_plan_shows_when_a_call_needs_approval() -> None:
    """`gatepost tools` and the dashboard say when a person is asked."""
    plan = plan_of(ApprovalsSettings(), pack.tools.values())

    assert {name: policy.frequency() for name, policy in plan.items()} == {
        "wreck": "always",
        "handle": "sometimes",
    }


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"destructive": None}, "handle, wreck"),
        ({"destructive": None, "auto_approve": ["wreck"]}, "handle"),
        ({"destructive": None, "require": ["handle"]}, "wreck"),
        ({"destructive": "ask"}, None),
        ({"destructive": "run"}, None),
    ],
)
def test_check_names_destructive_tools_once(settings: dict[str, Any], named: str | None) -> None:
    """The check names them once, until the operator has configured them."""
    reported_problems = check_problems([], mode="production", tools=TOOLS, approvals=settings)

    messages = [problem.message for problem in reported_problems if problem.id == "config.W083"]
    assert messages == ([messages[0]] if named else [])
    assert named is None or messages[0].endswith(f": {named}")


def test_dev_asks_about_destructive_tools_as_production_does(tmp_path: Path) -> None:
    """This covers the samples of `gatepost dev` and an author's own tools."""
    config = dev_config(8000, tools=(__name__,), state=tmp_path)
    loaded_packs = load(config.tools)
    plan = plan_of(config.approvals, loaded_packs.tools)
    marked = {tool.name for tool in loaded_packs.tools if tool.annotations.destructive_hint is True}

    assert marked == {"delete_csv", "wreck", "handle"}
    assert marked <= set(plan)
