"""Many calls, decisions and revocations at once, over real databases: one effect per approval."""

import asyncio
import random

import pytest

from gatepost.policy.approvals.approval_request import GrantScope, Undecidable
from gatepost.storage.records import Records
from tests.support.runners import (
    ACME,
    BOB,
    CAROL,
    ApprovalDeployment,
    ApprovalReplica,
    WaitingClient,
    failure_kind,
)

ARGUMENT_VALUES = ("a", "b", "c")


async def make_calls(replica: ApprovalReplica, generator: random.Random) -> list[str]:
    """Make some calls, at random with a client that waits; return the kinds of their failures."""
    kinds = []
    for _ in range(6):
        client = {"client": WaitingClient()} if generator.random() < 0.5 else {}
        outcome = await replica.call(what=generator.choice(ARGUMENT_VALUES), **client)  # type: ignore[arg-type]
        kinds.append(failure_kind(outcome))
        await asyncio.sleep(0)
    return kinds


async def decide_requests(
    replica: ApprovalReplica, generator: random.Random, over: asyncio.Event
) -> None:
    """Decide about every waiting request."""
    while not over.is_set():
        for request in await replica.service.waiting(ACME):
            by = generator.choice((BOB, CAROL))
            try:
                if generator.random() < 0.8:
                    await replica.service.approve(ACME, request.id, by)
                else:
                    await replica.service.reject(ACME, request.id, by, "")
            except Undecidable:
                continue  # the other one was first
        await asyncio.sleep(0)


@pytest.mark.requirement("A7")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_there_are_never_more_effects_than_approvals(records: Records, seed: int) -> None:
    """Clients wait and return at two replicas, and two approvers decide."""
    deployment = ApprovalDeployment(records=records, require=["act"])
    replicas = [deployment.replica(), deployment.replica()]
    generator, over = random.Random(seed), asyncio.Event()
    people = [asyncio.create_task(decide_requests(each, generator, over)) for each in replicas]
    async with asyncio.timeout(30):
        answers = await asyncio.gather(
            *(make_calls(replicas[at % 2], generator) for at in range(6))
        )
    over.set()
    await asyncio.gather(*people)

    kinds = {outcome for several in answers for outcome in several}
    assert kinds <= {"", "approval_pending", "denied", "conflict"}
    states = [
        request.state for request in await replicas[0].service.history(ACME, max_requests=500)
    ]
    assert sum(deployment.effects.values()) == states.count("used")
    effects = [change.kind for change in deployment.changes]
    assert effects.count("used") == states.count("used")


async def test_a_grant_and_its_approval_allow_an_exact_number_of_calls(records: Records) -> None:
    """Three granted calls and the approved one, of twenty that come at once."""
    deployment = ApprovalDeployment(records=records, require=["act"])
    replicas = [deployment.replica(), deployment.replica()]
    request = await replicas[0].asked(what="a")
    await replicas[1].service.approve(ACME, request.id, BOB, grant=GrantScope(uses=3))

    outcomes = await asyncio.gather(*(replicas[at % 2].call(what="a") for at in range(20)))

    assert deployment.effects["a"] == 4
    assert {failure_kind(outcome) for outcome in outcomes} <= {"", "approval_pending", "conflict"}
