"""What the agent learns if the outcome of an approved call is not known or not stored."""

import asyncio

import pytest

from gatepost import ToolFailure
from gatepost.policy.idempotency import idempotency_record
from gatepost.policy.idempotency.idempotency_record import CONFLICT_MESSAGES
from tests.support.runners import (
    ACME,
    BOB,
    ApprovalDeployment,
    WaitingClient,
    failure_kind,
    run_ready,
    text_of,
)


async def test_an_approved_call_of_a_killed_server_is_not_run_again() -> None:
    """The approval is used without a known outcome, so the agent is told to check."""
    deployment = ApprovalDeployment(require=["act", "put"])
    for tool, after in (("act", "conflict"), ("put", "")):
        first, other = deployment.replica(), deployment.replica()
        request = await first.asked(tool, what=tool)
        await first.service.approve(ACME, request.id, BOB)
        deployment.gate, deployment.entered = asyncio.Event(), asyncio.Event()
        dying = asyncio.create_task(first.call(tool, what=tool))
        await asyncio.wait_for(deployment.entered.wait(), 5)
        for run in first.runs._open.values():
            run.task.cancel()  # as a process ends that loses its power
        dying.cancel()
        await asyncio.wait([dying])
        deployment.gate = None
        deployment.clock.now += 60

        answer = await other.call(tool, what=tool)
        assert failure_kind(answer) == after
        # The agent sent no idempotency key, and another one would not help it.
        assert "idempotency key" not in text_of(answer)
        assert deployment.effects[tool] == (1 if after else 2)


@pytest.mark.parametrize("message", CONFLICT_MESSAGES.values(), ids=CONFLICT_MESSAGES)
async def test_a_tool_that_fails_in_the_words_of_a_conflict_has_used_its_approval(
    message: str,
) -> None:
    """Gatepost decides by the reason of a conflict, which no text of a tool can imitate."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked(what="a")
    await replica.service.approve(ACME, request.id, BOB)
    deployment.raises = ToolFailure("conflict", message)

    assert text_of(await replica.call(what="a")) == message
    assert failure_kind(await replica.call(what="a")) == "approval_pending"


async def test_the_conflict_over_a_large_outcome_speaks_of_the_approved_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the connection whose call ran has the outcome; the other sent no idempotency key."""
    monkeypatch.setattr(idempotency_record, "KEPT_BYTES", 10)
    deployment = ApprovalDeployment(require=["act"])
    first, other = deployment.replica(), deployment.replica()
    request = await first.asked(what="a")
    waiting = [
        asyncio.create_task(each.call(what="a", client=WaitingClient())) for each in (first, other)
    ]
    await run_ready()

    await other.service.approve(ACME, request.id, BOB)

    texts = sorted(text_of(outcome) for outcome in await asyncio.gather(*waiting))
    assert texts == [
        "This approved call was carried out, and its answer was too large to be kept. It was not "
        "run again.",
        "a 0 1",
    ]
