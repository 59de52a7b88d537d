"""Calls of machines: any approver decides, except a person for whom the machine may act."""

import pytest
from msgspec.structs import replace

from gatepost.policy.approvals.approval_request import GrantScope, Undecidable
from tests.support.endpoint import a_caller
from tests.support.runners import ACME, BOB, CAROL, ROBOT, ApprovalDeployment, failure_kind, text_of


@pytest.mark.requirement("A7")
async def test_a_machines_call_waits_for_any_approver_of_its_tenant() -> None:
    """No approver can be the caller, so any approver may decide, and no other caller may."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked("act", caller=ROBOT, what="a")

    for who in (a_caller(subject="eve"), ROBOT, a_caller(subject="robot", roles=BOB.roles)):
        with pytest.raises(Undecidable):
            await replica.service.approve(ACME, request.id, who)
    with pytest.raises(Undecidable):
        await replica.service.approve(ACME, request.id, replace(BOB, tenant_id="globex"))
    await replica.service.approve(ACME, request.id, BOB)

    assert text_of(await replica.call("act", ROBOT, what="a")) == "a 0 1"


ACTING_CALLERS = {
    "the person it acts for": {"actor": "bob"},
    "that person by another id": {"actor": "5f3c-bob-elsewhere"},
}


@pytest.mark.requirement("A7")
@pytest.mark.parametrize("change", ACTING_CALLERS.values(), ids=ACTING_CALLERS)
async def test_a_machine_that_acts_for_a_person_needs_a_rule(change: dict[str, str]) -> None:
    """
    The person could be the approver, and Gatepost cannot compare their ids; so only approvers that
    a rule names may decide.
    """
    acting = replace(ROBOT, **change)
    usual = ApprovalDeployment(require=["act"]).replica()
    ruled = ApprovalDeployment(
        rules=[{"tools": ["act"], "by": ["subject:https://id.example.com carol"]}]
    )
    replica = ruled.replica()

    refused = await usual.call("act", acting, what="a")
    request = await replica.asked("act", caller=acting, what="a")
    with pytest.raises(Undecidable):
        await replica.service.approve(ACME, request.id, BOB)
    await replica.service.approve(ACME, request.id, CAROL)

    assert failure_kind(refused) == "denied"
    assert "`by` in a rule of [[approvals.rules]]" in text_of(refused)
    assert await usual.service.waiting(ACME) == []
    assert text_of(await replica.call("act", acting, what="a")) == "a 0 1"


async def test_a_grant_for_a_machine_covers_its_calls_alone() -> None:
    """The grant ends once machines are refused; it covers no machine that acts for a person."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked("act", caller=ROBOT, what="a")
    await replica.service.approve(ACME, request.id, BOB, grant=GrantScope(uses=5, when="true"))

    assert text_of(await replica.call("act", ROBOT, what="b")) == "b 0 1"
    assert (
        failure_kind(await replica.call("act", replace(ROBOT, actor="bob"), what="c")) == "denied"
    )
    deployment.settings = replace(deployment.settings, machines="refuse")
    assert failure_kind(await deployment.replica().call("act", ROBOT, what="d")) == "denied"


async def test_a_request_of_a_now_refused_machine_cannot_be_approved() -> None:
    """The settings have changed since the request."""
    deployment = ApprovalDeployment(require=["act"])
    request = await deployment.replica().asked("act", caller=ROBOT, what="a")
    deployment.settings = replace(deployment.settings, machines="refuse")

    with pytest.raises(Undecidable, match="have changed"):
        await deployment.replica().service.approve(ACME, request.id, BOB)


async def test_a_machine_is_refused_if_no_rule_names_approvers() -> None:
    """With `machines = "refuse"` the refusal comes at once and names the setting."""
    rules = [{"tools": ["put"], "by": ["role:approver"]}]
    deployment = ApprovalDeployment(require=["act"], rules=rules, machines="refuse")
    replica = deployment.replica()

    refused = await replica.call("act", ROBOT, what="a")

    assert failure_kind(refused) == "denied"
    assert "`by` in a rule of [[approvals.rules]]" in text_of(refused)
    assert await replica.service.waiting(ACME) == []
    assert failure_kind(await replica.call("put", ROBOT, what="a")) == "approval_pending"
