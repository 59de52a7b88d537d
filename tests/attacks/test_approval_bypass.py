"""What attacks on approvals found: rules that an edit, a grant or a condition went around."""

import json

import pytest

from gatepost.policy.approvals.approval_request import GrantScope, Operator, Undecidable
from gatepost.policy.approvals.conditions import BadCondition, Condition, ConditionVariables
from tests.support.endpoint import a_caller
from tests.support.runners import ACME, BOB, ApprovalDeployment, failure_kind

TREASURER = a_caller(subject="tessa", roles=frozenset({"approver", "treasurer"}))
LARGE_AMOUNT = "arguments.amount > 1000"
STRICTER_SETTINGS = {
    "two people": {"tools": ["act"], "when": LARGE_AMOUNT, "approvals": 2},
    "other approver": {"tools": ["act"], "when": LARGE_AMOUNT, "by": ["role:treasurer"]},
}


def bank(stricter: str) -> ApprovalDeployment:
    """Require an approver for every call, and more than that for a large call."""
    return ApprovalDeployment(require=["act"], rules=[STRICTER_SETTINGS[stricter]])


@pytest.mark.parametrize("stricter", STRICTER_SETTINGS)
async def test_an_edit_cannot_bypass_a_stricter_rule(stricter: str) -> None:
    """An approver may not edit a small call into one that needs other or more approvers."""
    replica = bank(stricter).replica()
    request = await replica.asked(what="a", amount=1)

    edited = json.dumps({"what": "a", "amount": 5000}).encode()
    with pytest.raises(Undecidable, match="need other approvers"):
        await replica.service.approve(ACME, request.id, BOB, edited=edited)

    edited = json.dumps({"what": "a", "amount": 2}).encode()
    await replica.service.approve(ACME, request.id, BOB, edited=edited)


@pytest.mark.parametrize("stricter", STRICTER_SETTINGS)
async def test_a_grant_cannot_bypass_a_stricter_rule(stricter: str) -> None:
    """A grant given with a small call does not cover a call that needs a stricter approval."""
    deployment = bank(stricter)
    replica = deployment.replica()
    request = await replica.asked(what="a", amount=1)
    await replica.service.approve(ACME, request.id, BOB, grant=GrantScope(uses=9, when="true"))

    assert failure_kind(await replica.call(what="b", amount=2)) == ""
    assert failure_kind(await replica.call(what="c", amount=5000)) == "approval_pending"
    assert deployment.effects == {"b": 1}


async def test_a_grant_covers_calls_that_its_approver_could_approve_alone() -> None:
    """A treasurer's grant covers large calls; an operator's grant covers any call."""
    replica = bank("other approver").replica()
    request = await replica.asked(what="a", amount=5000)
    await replica.service.approve(
        ACME, request.id, TREASURER, grant=GrantScope(uses=1, when=LARGE_AMOUNT)
    )
    assert failure_kind(await replica.call(what="b", amount=6000)) == ""

    request = await replica.asked(what="c", amount=1)
    await replica.service.approve(
        ACME, request.id, Operator("root"), grant=GrantScope(uses=1, when=LARGE_AMOUNT)
    )
    assert failure_kind(await replica.call(what="d", amount=7000)) == ""


DELEGATE_CALLER = a_caller(actor="agent")


async def test_an_approval_of_a_users_call_does_not_cover_a_delegate() -> None:
    """A delegate that uses the person's client gets neither their approvals nor their grants."""
    replica = ApprovalDeployment(require=["act"]).replica()
    request = await replica.asked(what="a")
    await replica.service.approve(ACME, request.id, BOB, grant=GrantScope(uses=9, when="true"))

    delegated = await replica.asked(caller=DELEGATE_CALLER, what="a")

    assert delegated.caller.actor == "agent"
    assert failure_kind(await replica.call(what="b")) == ""


async def test_an_approver_cannot_approve_a_call_that_they_make_for_another_user() -> None:
    """Bob acts for Alice and must not approve that call as himself."""
    replica = ApprovalDeployment(require=["act"]).replica()
    request = await replica.asked(caller=a_caller(actor=BOB.subject), what="a")

    with pytest.raises(Undecidable, match="You made this call"):
        await replica.service.approve(ACME, request.id, BOB)


NESTED_ALL = "arguments.a.all(y, x == y)"
HIDDEN_CONDITIONS = {
    "behind a comment": "arguments.a.all//\n(x, arguments.a.all//\n(y, x == y))",
    "behind a parenthesis in a comment": f"arguments.a.all(x, // )\n {NESTED_ALL})",
    "between quotation marks in comments": f'// "\n arguments.a.all(x, {NESTED_ALL}) // "',
    "between raw texts": rf'r"\" == "" || arguments.a.all(x, {NESTED_ALL}) || r"\" == ""',
    "between long texts": rf"'''\'''' == '' || arguments.a.all(x, {NESTED_ALL}) || '''' '''== ''",
    "by another name": "arguments.a.existsOne(x, arguments.a.existsOne(y, x == y))",
    "in a chain that doubles": "[arguments.s]" + ".map(x, x + x)" * 100 + "== []",
    "in a pattern of the caller's": "arguments.s.matches(arguments.p)",
    "in a pattern that is put together": "arguments.s.matches('a' + arguments.p)",
    "in a pattern's repetitions": "arguments.s.matches('((a{1,99}){1,99}){1,3}b')",
    "in repetitions in disguise": r"arguments.s.matches('(a\x7b1,99}){1,99}b')",
    "in a long pattern": f"arguments.s.matches('{'a?' * 150}')",
    "in a sum": "arguments.a.map(x, x" + " + x" * 400 + ").all(y, y" + " + y" * 400 + " == '')",
}


@pytest.mark.parametrize("text", HIDDEN_CONDITIONS.values(), ids=HIDDEN_CONDITIONS)
def test_a_condition_that_would_delay_all_callers_is_refused(text: str) -> None:
    """Approvers of one tenant write conditions of grants, but all tenants share the process."""
    with pytest.raises(BadCondition):
        Condition(text)


def test_conditions_may_contain_macro_names_in_strings_and_comments() -> None:
    """The check for nested loops ignores strings and comments of a condition."""
    for text in (
        "arguments.to != 'https://x/.all(y, y.map(' // it's .all(x, y.map(",
        r"""arguments.to != "a\".all(x, b.all(y" && arguments.to != r'\' && arguments.to != ''""",
        "arguments.to != '''a'b.all(x, c.all(''' && arguments.to.startsWith('m')",
    ):
        assert Condition(text).is_true(ConditionVariables(b'{"to":"m"}', {}, {})) is True


def test_negating_the_smallest_integer_does_not_satisfy_a_condition() -> None:
    """The library negates the smallest integer to itself, below every bound."""
    subject = ConditionVariables(b'{"amount":-9223372036854775808}', {}, {})
    assert Condition("-arguments.amount > 1000").is_true(subject) is None
