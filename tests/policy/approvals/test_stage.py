"""A call that needs a person: asked for once, decided once, run once."""

import asyncio

import pytest

from gatepost import ToolFailure
from gatepost.policy.approvals.approval_request import Undecidable
from gatepost.tools.calls.runner import GRACE_S
from tests.support.endpoint import a_caller
from tests.support.runners import (
    ACME,
    ALICE,
    BOB,
    UNAVAILABLE_FAILURE,
    ApprovalDeployment,
    WaitingClient,
    failure_kind,
    run_until,
    text_of,
)


@pytest.mark.requirement("A7")
async def test_a_call_waits_and_runs_once_it_is_approved() -> None:
    """The same call finds its request; after one run it needs a new approval."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()

    request = await replica.asked(what="a")
    assert failure_kind(await replica.call(what="a")) == "approval_pending"
    assert len(await replica.service.waiting(ACME)) == 1
    assert deployment.effects["a"] == 0

    await replica.service.approve(ACME, request.id, BOB)
    assert text_of(await replica.call(what="a")) == "a 0 1"

    assert failure_kind(await replica.call(what="a")) == "approval_pending"
    assert deployment.effects["a"] == 1
    assert [change.kind for change in deployment.changes] == [
        "requested",
        "approved",
        "used",
        "requested",
    ]


async def test_a_call_that_needs_no_approval_runs_at_once() -> None:
    """Such a call makes no request and does not wait."""
    deployment = ApprovalDeployment(require=["act"], auto_approve=["look"])
    replica = deployment.replica()

    assert text_of(await replica.call("look", what="b")) == "b 0 1"
    assert await replica.service.waiting(ACME) == []


@pytest.mark.requirement("A7")
async def test_a_waiting_call_continues_after_a_decision_at_another_replica() -> None:
    """The decision is taken at another replica."""
    deployment = ApprovalDeployment(require=["act"])
    first, other = deployment.replica(), deployment.replica()
    client = WaitingClient()
    waiting = asyncio.create_task(first.call(what="a", client=client))
    await run_until(lambda: _waits(other))
    [request] = await other.service.waiting(ACME)

    await other.service.approve(ACME, request.id, BOB)

    assert text_of(await waiting) == "a 0 1"
    [wait] = client.waits
    assert wait.url == f"https://x.example/acme/{request.id}"
    assert "a person's approval" in wait.message


async def test_a_lost_notification_only_delays_a_decision() -> None:
    """The shared store may lose messages, so a waiting call also reads the database."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    waiting = asyncio.create_task(replica.call(what="a", client=WaitingClient()))
    await run_until(lambda: _waits(replica))
    [request] = await replica.service.waiting(ACME)
    approval = await replica.service.requests.get(ACME, request.id)
    assert approval is not None

    await replica.service.requests.change(approval, state="approved")  # wakes no call

    assert text_of(await waiting) == "a 0 1"


async def test_two_connections_of_one_call_get_one_outcome() -> None:
    """Both wait at different replicas, and the tool runs once."""
    deployment = ApprovalDeployment(require=["act"])
    first, other = deployment.replica(), deployment.replica()
    waiting = [
        asyncio.create_task(each.call(what="a", client=WaitingClient()))
        for each in (first, other, first)
    ]
    await run_until(lambda: _waits(other))
    [request] = await other.service.waiting(ACME)

    await other.service.approve(ACME, request.id, BOB)

    assert {text_of(outcome) for outcome in await asyncio.gather(*waiting)} == {"a 0 1"}
    assert deployment.effects["a"] == 1


@pytest.mark.requirement("A8")
async def test_a_rejection_has_its_reason_and_stays_for_a_time() -> None:
    """An agent cannot get an approval by asking again at once; later it may ask anew."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked(what="a")
    deployment.clock.now += 200

    await replica.service.reject(ACME, request.id, BOB, "Not on Fridays")

    for _ in range(2):
        outcome = await replica.call(what="a", key="k")
        assert failure_kind(outcome) == "denied"
        assert "Their reason: Not on Fridays." in text_of(outcome)
        deployment.clock.now += 150
    assert await replica.service.waiting(ACME) == []
    deployment.clock.now += 1
    assert failure_kind(await replica.call(what="a", key="k")) == "approval_pending"
    assert deployment.effects["a"] == 0


@pytest.mark.requirement("A8")
async def test_a_waiting_caller_learns_that_no_approver_decided() -> None:
    """After its time a request is denied, and the next call makes a new one."""
    deployment = ApprovalDeployment(require=["act"], timeout_s=5)
    replica = deployment.replica()
    waiting = asyncio.create_task(replica.call(what="a", client=WaitingClient()))
    await run_until(lambda: _waits(replica))
    deployment.clock.now += 5

    outcome = await waiting

    assert failure_kind(outcome) == "denied"
    assert "The call was not approved in time (5 seconds)" in text_of(outcome)
    assert [change.kind for change in deployment.changes] == ["requested", "expired"]
    assert failure_kind(await replica.call(what="a")) == "approval_pending"


@pytest.mark.requirement("A8")
async def test_a_repeated_call_learns_once_that_no_approver_decided() -> None:
    """No call polled in between; after this answer the same call makes a new request."""
    deployment = ApprovalDeployment(require=["act"], timeout_s=5)
    replica = deployment.replica()
    request = await replica.asked(what="a")
    deployment.clock.now += 5

    assert failure_kind(await replica.call(what="a")) == "denied"
    [past] = await replica.service.history(ACME)
    assert (past.id, past.state) == (request.id, "expired")
    assert failure_kind(await replica.call(what="a")) == "approval_pending"


async def test_an_unused_approval_expires() -> None:
    """An approval of this morning does not count tonight."""
    deployment = ApprovalDeployment(require=["act"], timeout_s=60)
    replica = deployment.replica()
    request = await replica.asked(what="a")
    deployment.clock.now += 50
    await replica.service.approve(ACME, request.id, BOB)
    deployment.clock.now += 60

    assert failure_kind(await replica.call(what="a")) == "approval_pending"
    expired = await replica.service.get(ACME, request.id)
    assert expired is not None
    assert expired.state == "expired"
    assert deployment.effects["a"] == 0


OTHER_CALLS = {
    "other arguments": {"what": "b"},
    "more arguments": {"what": "a", "amount": 1},
    "another tool": {"what": "a", "tool": "put"},
    "another caller": {"what": "a", "caller": a_caller(subject="mallory")},
    "another client of the caller": {"what": "a", "caller": a_caller(client_id="other")},
    "another issuer's alice": {"what": "a", "caller": a_caller(issuer="https://other.example")},
}


@pytest.mark.parametrize("call", OTHER_CALLS.values(), ids=OTHER_CALLS)
async def test_an_approval_is_for_one_call_and_no_other(call: dict[str, object]) -> None:
    """It covers this caller, client, tool and exact arguments only."""
    deployment = ApprovalDeployment(require=["*"])
    replica = deployment.replica()
    request = await replica.asked(what="a")
    await replica.service.approve(ACME, request.id, BOB)

    assert failure_kind(await replica.call(**call)) == "approval_pending"  # type: ignore[arg-type]
    assert not deployment.effects
    assert text_of(await replica.call(raw=b' {"what": "\\u0061"} ')) == "a 0 1"


async def test_an_approval_does_not_count_under_another_policy() -> None:
    """A changed rule needs a new approval."""
    rules = [{"tools": ["act"], "reason": "old"}]
    deployment = ApprovalDeployment(rules=rules)
    request = await deployment.replica().asked(what="a")
    after = ApprovalDeployment(
        records=deployment.records, rules=[{"tools": ["act"], "reason": "new"}]
    )
    replica = after.replica()

    with pytest.raises(Undecidable, match="rules for this tool have changed"):
        await replica.service.approve(ACME, request.id, BOB)
    assert "have changed" in (replica.service.objection(request, BOB) or ""), "no form is offered"
    assert failure_kind(await replica.call(what="a")) == "approval_pending"
    assert len(await replica.service.waiting(ACME)) == 2


async def test_an_idempotency_key_does_not_store_a_pending_approval() -> None:
    """Only the tool's result is stored; a retry replays it, and no approver is asked again."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked(what="a", key="k")
    await replica.service.approve(ACME, request.id, BOB)

    assert text_of(await replica.call(what="a", key="k")) == "a 0 1"
    assert text_of(await replica.call(what="a", key="k")) == "a 0 1"
    assert await replica.service.waiting(ACME) == []


async def test_an_approval_is_not_used_by_a_call_without_effect() -> None:
    """A busy upstream asks for another try, which needs no second approval."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked(what="a")
    await replica.service.approve(ACME, request.id, BOB)
    deployment.raises = UNAVAILABLE_FAILURE
    assert failure_kind(await replica.call(what="a")) == "upstream_unavailable"
    deployment.raises = ToolFailure("not_found", "No such account.")

    assert text_of(await replica.call(what="a")) == "No such account."
    assert failure_kind(await replica.call(what="a")) == "approval_pending"


async def test_the_tools_timeout_starts_when_it_runs() -> None:
    """The approver took longer than the tool's timeout; the tool still has all of it."""
    deployment = ApprovalDeployment(require=["act"], timeout_s=3000)
    replica = deployment.replica()
    waiting = asyncio.create_task(replica.call(what="a", client=WaitingClient()))
    await run_until(lambda: _waits(replica))
    deployment.clock.now += 2000
    [request] = await replica.service.waiting(ACME)
    await replica.service.approve(ACME, request.id, BOB)

    assert text_of(await waiting) == "a 0 1"


async def test_a_wait_ends_when_its_token_expires() -> None:
    """The same caller with a fresh token finds the same request."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    caller = a_caller(expires_at=int(deployment.clock.now) + 10)
    waiting = asyncio.create_task(replica.call("act", caller, what="a", client=WaitingClient()))
    await run_until(lambda: _waits(replica))
    deployment.clock.now += 11 + GRACE_S

    assert "access token expired" in text_of(await waiting)
    [request] = await replica.service.waiting(ACME)
    await replica.service.approve(ACME, request.id, BOB)
    fresh = a_caller(expires_at=int(deployment.clock.now) + 600)
    assert text_of(await replica.call("act", fresh, what="a")) == "a 0 1"


async def test_a_revoked_caller_waits_no_longer() -> None:
    """No approver can approve the revoked caller's request."""
    out: set[str] = set()
    deployment = ApprovalDeployment(require=["act"], revokes=lambda caller: caller.subject in out)
    replica = deployment.replica()
    waiting = asyncio.create_task(replica.call(what="a", client=WaitingClient()))
    await run_until(lambda: _waits(replica))
    [request] = await replica.service.waiting(ACME)
    out.add("alice")

    assert failure_kind(await waiting) == "denied"
    with pytest.raises(Undecidable, match="was withdrawn"):
        await replica.service.approve(ACME, request.id, BOB)
    assert failure_kind(await replica.call(what="a")) == "denied"
    assert deployment.effects["a"] == 0


async def test_the_number_of_waiting_requests_is_bounded() -> None:
    """Requests of one caller and of one tenant are bounded; others may still ask."""
    deployment = ApprovalDeployment(
        require=["act"], max_waiting_per_caller=3, max_waiting_per_tenant=4
    )
    replica = deployment.replica()
    for number in range(3):
        await replica.asked(what=f"{number}")

    full = await replica.call(what="3")
    assert failure_kind(full) == "rate_limit"
    assert text_of(full).startswith("3 of your calls already wait for approval")
    assert failure_kind(await replica.call(what="0")) == "approval_pending"
    assert (
        failure_kind(await replica.call("act", a_caller(subject="b"), what="3"))
        == "approval_pending"
    )
    assert failure_kind(await replica.call("act", a_caller(subject="c"), what="3")) == "rate_limit"
    other = a_caller(tenant_id="globex")
    assert failure_kind(await replica.call("act", other, what="3")) == "approval_pending"


UNREADABLE_ARGUMENTS = {
    "a name twice": (b'{"what": "a", "what": "b"}', "a name twice"),
    "a name twice, deep down": (b'{"what": "a", "amount": {"x": 1, "x": 2}}', "amount"),
    "more than a person reads": (b'{"what": "' + b"a" * 180_000 + b'"}', "at most 180000"),
}


@pytest.mark.parametrize(
    ("raw", "message"), UNREADABLE_ARGUMENTS.values(), ids=UNREADABLE_ARGUMENTS
)
async def test_arguments_that_parsers_read_differently_are_refused(
    raw: bytes, message: str
) -> None:
    """Such a call never reaches an approver."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()

    outcome = await replica.call(raw=raw)

    assert failure_kind(outcome) == "validation"
    assert message in text_of(outcome)
    assert await replica.service.waiting(ACME) == []


async def test_a_nested_call_passes_the_same_stage() -> None:
    """A script that may run may not therefore do what needs a person."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()

    assert failure_kind(await replica.call(what="a", depth=1)) == "approval_pending"
    [request] = await replica.service.waiting(ACME)
    assert request.caller.subject == ALICE.subject


async def _waits(replica: object) -> bool:
    return bool(await replica.service.waiting(ACME))  # type: ignore[attr-defined]
