"""Which calls need a person, and what a condition may cost."""

from typing import Any

import msgspec
import pytest

from gatepost import Pack
from gatepost.config.approvals import ApprovalsSettings
from gatepost.policy.approvals.conditions import (
    BadCondition,
    Condition,
    ConditionVariables,
)
from gatepost.policy.approvals.policies import ApprovalNeed, caller_variables, variables_of
from gatepost.policy.approvals.tool_policies import Plan, plan_of
from gatepost.tools.offers.offer import CallContext, Tool
from tests.support.endpoint import a_caller


def a_pack(name: str, *tools: str, **options: Any) -> Pack:
    pack = Pack(name)

    async def function(ctx: CallContext, command: str = "") -> str:
        """Do something."""
        return command

    for tool in tools:
        pack.tool(name=tool, **options)(function)
    return pack


PACKS = [
    a_pack(
        "git", "git", "git_log", read_only_form=lambda arguments: arguments["command"] == "status"
    ),
    a_pack("files", "read_file", read_only=True),
    a_pack("files2", "write_file", destructive=True),
    a_pack("bank", "pay", approval=True),
]
TOOLS: list[Tool] = [tool for pack in PACKS for tool in pack.tools.values()]


def plan(**settings: Any) -> Plan:
    chosen = {"destructive": "run"} | settings
    return plan_of(msgspec.convert(chosen, ApprovalsSettings), TOOLS)


NAMES = {
    "what a tool declares": ({}, ["pay"]),
    "a name": ({"require": ["git"]}, ["git", "pay"]),
    "a pattern": ({"require": ["git*"]}, ["git", "git_log", "pay"]),
    "a pattern of several": ({"require": ["*_file"]}, ["pay", "read_file", "write_file"]),
    "a pack": ({"require": ["pack:files"]}, ["pay", "read_file"]),
    "packs": ({"require": ["pack:files*"]}, ["pay", "read_file", "write_file"]),
    "a pack is no tool": ({"require": ["files"]}, ["pay"]),
    "no letter stands for another": ({"require": ["g?t", "[g]it"]}, ["pay"]),
    "a rule": ({"rules": [{"tools": ["git"]}]}, ["git", "pay"]),
    "a rule with a condition": ({"rules": [{"tools": ["git"], "when": "false"}]}, ["git", "pay"]),
    "freed": ({"require": ["*"], "auto_approve": ["pack:files*", "git*"]}, ["pay"]),
    "freed by name": ({"auto_approve": ["pay"]}, []),
    "what destroys": ({"destructive": "ask"}, ["pay", "write_file"]),
    "what destroys, freed": ({"destructive": "ask", "auto_approve": ["write*"]}, ["pay"]),
    "everything freed": ({"require": ["*"], "auto_approve": ["*"]}, []),
}


@pytest.mark.requirement("A7")
@pytest.mark.parametrize(("settings", "names"), NAMES.values(), ids=NAMES)
def test_settings_decide_which_tools_need_approval(
    settings: dict[str, Any], names: list[str]
) -> None:
    """`auto_approve` overrides every other setting; the other settings add up."""
    assert sorted(plan(**settings)) == names


def need_of(settings: dict[str, Any], arguments: bytes, tool: str = "git") -> ApprovalNeed | None:
    need = plan(**settings).get(tool)
    if need is None:
        return None
    [offer] = [candidate for candidate in TOOLS if candidate.name == tool]
    checked = msgspec.json.decode(arguments)
    return need.need(
        variables_of(caller_variables(a_caller()), offer, arguments, {"command": "", **checked})
    )


STATUS, PUSH_ARGUMENTS, NO_ARGUMENTS = b'{"command":"status"}', b'{"command":"push"}', b"{}"
CONDITIONS = {
    "it is true": ("arguments.command == 'push'", PUSH_ARGUMENTS, True),
    "it is false": ("arguments.command == 'push'", STATUS, False),
    "an argument is missing": ("arguments.command == 'push'", NO_ARGUMENTS, True),
    "it looks first whether it is there": ("has(arguments.command)", NO_ARGUMENTS, False),
    "types that cannot be compared": ("arguments.command > 5", PUSH_ARGUMENTS, True),
    "no yes or no": ("arguments.command", PUSH_ARGUMENTS, True),
    "an unknown name": ("argument.command == 'push'", STATUS, True),
    "the caller": ("caller.subject == 'alice' && caller.kind == 'user'", PUSH_ARGUMENTS, True),
    "the caller's scopes": ("'files:write' in caller.scopes", PUSH_ARGUMENTS, True),
    "the tool": ("tool.name == 'git' && tool.pack == 'git'", PUSH_ARGUMENTS, True),
    "a form that only reads": ("!tool.reads", STATUS, False),
    "a form that does not": ("!tool.reads", PUSH_ARGUMENTS, True),
    "a hint that is not given": ("tool.destructive", PUSH_ARGUMENTS, False),
    "a pattern": ("arguments.command.matches('^pu')", PUSH_ARGUMENTS, True),
    "a loop": ("['push', 'reset'].exists(c, c == arguments.command)", PUSH_ARGUMENTS, True),
    "too much to look at": ("false", b'{"command":"%s"}' % (b"x" * 70_000), True),
    "a loop over a long text": (
        "['x'].exists(c, arguments.command == c)",
        b'{"command":"%s"}' % (b"x" * 9_000),
        True,
    ),
    "a loop over too much": (
        "arguments.command.exists(c, c == 'x')",
        b'{"command":[%s]}' % b",".join([b'"y"'] * 600),
        True,
    ),
}


@pytest.mark.parametrize(
    ("condition", "arguments", "needs_approval"), CONDITIONS.values(), ids=CONDITIONS
)
def test_a_condition_decides_which_calls_need_approval(
    condition: str, arguments: bytes, needs_approval: bool
) -> None:
    """A call needs approval if the condition cannot be evaluated."""
    rules = {"rules": [{"tools": ["git"], "when": condition}]}

    assert (need_of(rules, arguments) is not None) is needs_approval


def test_matching_rules_add_up() -> None:
    """The call needs the most approvals, the shortest time, every `by` and every reason."""
    rules = [
        {"tools": ["git"], "reason": "One.", "by": ["role:a"], "timeout_s": 50.0},
        {"tools": ["g*"], "reason": "Two.", "by": ["role:b"], "approvals": 2, "timeout_s": 20.0},
        {"tools": ["pack:git"], "when": "false", "approvals": 2, "reason": "Never."},
    ]
    need = need_of({"rules": rules, "require": ["git"]}, PUSH_ARGUMENTS)

    assert need == ApprovalNeed(2, (("role:a",), ("role:b",)), "One. Two.", 20.0)
    assert need_of({"require": ["git"], "timeout_s": 7.0}, PUSH_ARGUMENTS) == ApprovalNeed(
        1, (), "", 7.0
    )


VERSIONS: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({"require": ["pay"]}, True),
    "a rule for another tool": ({"rules": [{"tools": ["git"]}]}, True),
    "a rule for this one": ({"rules": [{"tools": ["pay"]}]}, False),
    "how long a request waits": ({"timeout_s": 10.0}, True),
}


@pytest.mark.parametrize(("settings", "is_same_version"), VERSIONS.values(), ids=VERSIONS)
def test_relevant_settings_change_the_policy_version(
    settings: dict[str, Any], is_same_version: bool
) -> None:
    """An approval counts as long as nothing changes that decides about its tool."""
    assert (plan(**settings)["pay"].version == plan()["pay"].version) is is_same_version


REFUSED_CONDITIONS = {
    "no expression": "arguments.",
    "nothing": " ",
    "too long": "true || " * 300 + "true",
    "nested too deeply": "(" * 5_000 + "true" + ")" * 5_000,
    "a loop in a loop": "arguments.a.all(x, arguments.a.exists(y, x == y))",
    "a loop in a loop's head": "arguments.a.filter(x, x > 1).map(y, [1].all(z, z == y))",
}


@pytest.mark.parametrize("text", REFUSED_CONDITIONS.values(), ids=REFUSED_CONDITIONS)
def test_an_unusable_condition_is_refused(text: str) -> None:
    """An unusable condition stops the start with an error, so no call meets it."""
    with pytest.raises(BadCondition):
        Condition(text)


def test_consecutive_loops_in_a_condition_are_not_nested() -> None:
    """Two loops in a row are not nested, nor is a loop inside a text."""
    condition = Condition("arguments.a.filter(x, x > 1).all(y, y > 2) && 'b.all(x, .map(y' != ''")

    assert condition.is_true(ConditionVariables(b'{"a":[3]}', {}, {})) is True


EXPENSIVE_CONDITIONS = {
    "every one in every one": "arguments.a.all(x, x in arguments.a)",
    "texts": "arguments.a.all(x, string(x).matches('(a+)+$') == false)",
}


@pytest.mark.parametrize("text", EXPENSIVE_CONDITIONS.values(), ids=EXPENSIVE_CONDITIONS)
def test_a_condition_evaluates_a_bounded_number_of_values(text: str) -> None:
    """A call with more values needs approval."""
    condition = Condition(text)
    most, more = (b'{"a":[%s]}' % b",".join([b"1"] * count) for count in (501, 502))

    assert condition.is_true(ConditionVariables(most, {}, {})) is True
    assert condition.is_true(ConditionVariables(more, {}, {})) is None
