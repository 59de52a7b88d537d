"""A revocation at one replica ends everything of the caller at every replica."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from tests.policy.conftest import TASKS, OpenRequests, RevocationReplicas, are_stopped, wait_for_end
from tests.support.issuers import ABSENT
from tests.support.replicas import ReplicaClient

pytestmark = pytest.mark.requirement("CO1", "CO2")

SUSPENDED_CODE = -31001
REVOKED_ANSWERS = {"modern": (401, -31003), "legacy": (401, -31003), "rest": (401, "invalid_token")}
SUSPENDED_ANSWERS = {
    "modern": (200, SUSPENDED_CODE),
    "legacy": (200, SUSPENDED_CODE),
    "rest": (403, "tenant_suspended"),
}

ACTOR_CLAIM = {"act": {"sub": "bot"}}
"""A token that was issued to a program that acts for a person (RFC 8693 section 4.1)."""
ROBOT_CLAIMS = {"sub": "robot", "gty": "client-credentials", "client_id": ABSENT}
"""A program that calls for itself, whose token names no client."""
REVOCATION_ORDERS: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "a person": (["revoke", "--subject", "bob"], {"sub": "bob"}, {"sub": "carol"}),
    "a client": (["revoke", "--client", "agent"], {"client_id": "agent"}, {"client_id": "other"}),
    "a tenant": (["revoke", "--tenant", "globex"], {"org_id": "globex"}, {"org_id": "acme"}),
    "who acts": (["revoke", "--subject", "bot"], ACTOR_CLAIM, {}),
    "a program": (["revoke", "--client", "robot"], ROBOT_CLAIMS, {"sub": "robot"}),
    "shut": (["tenant", "suspend", "globex"], {"org_id": "globex"}, {"org_id": "acme"}),
}


async def is_served(client: ReplicaClient, at: int) -> bool:
    """Tell whether a small request is served."""
    answer = await client.send(
        client.modern("server/discover", None), client.mirrors("server/discover", None), at=at
    )
    return b'"result"' in answer.content


@pytest.mark.parametrize(
    "shared_store", ["shared_store", pytest.param("none", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("order", REVOCATION_ORDERS)
async def test_an_order_ends_all_open_work_of_its_callers_at_every_replica(
    replicas: RevocationReplicas, order: str, shared_store: str
) -> None:
    """Calls, streams, sessions and tasks end, even without the shared store; others continue."""
    command, theirs, others = REVOCATION_ORDERS[order]
    shut = order == "shut"
    async with AsyncExitStack() as stack:
        victims = []
        for at in (0, 1):
            client = await stack.enter_async_context(replicas.client(**theirs))
            victims.append(OpenRequests(replicas, client, at))
        bystander = OpenRequests(
            replicas, await stack.enter_async_context(replicas.client(**others)), 1
        )
        await asyncio.gather(*(caller.open(stack) for caller in (*victims, bystander)))

        with replicas.without_shared_store(really=shared_store == "none"):
            ordered = await replicas.commands.order(*command)
            await assert_all_ends(replicas, victims, shut=shut)
        if shut:
            await replicas.commands.order("tenant", "resume", "globex")
        await assert_new_token_works(replicas, victims, theirs, shut=shut)
        if not shut:
            await replicas.commands.order("revoke", "--undo", ordered.out.split()[-1])
        assert not any(call.done() for call in bystander.calls.values())
        await bystander.let_go()
        assert {status for status, _ in (await bystander.answers()).values()} == {200}


async def assert_all_ends(
    replicas: RevocationReplicas, victims: list[OpenRequests], *, shut: bool
) -> None:
    """Assert that all open requests of the victims ended and that new ones are refused."""
    for victim in victims:
        await wait_for_end(victim.listener)
        await wait_for_end(victim.getter)
        assert await victim.answers() == (SUSPENDED_ANSWERS if shut else REVOKED_ANSWERS)
        assert are_stopped(replicas, victim)
    for at in (0, 1):
        await assert_refused(victims[1 - at].client, at, shut=shut)


async def assert_refused(client: ReplicaClient, at: int, *, shut: bool) -> None:
    """Assert that a replica refuses the old token, however often it was accepted there."""
    answer = await client.send(
        client.modern("server/discover", None), client.mirrors("server/discover", None), at=at
    )
    if shut:
        assert (answer.status_code, answer.json()["error"]["code"]) == (200, SUSPENDED_CODE)
    else:
        assert answer.status_code == 401
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]


async def assert_new_token_works(
    replicas: RevocationReplicas, victims: list[OpenRequests], theirs: dict[str, Any], *, shut: bool
) -> None:
    """Assert that a new token is served, and finds the tasks and revoked sessions ended."""
    async with replicas.later(**theirs) as client:

        async def served() -> bool:
            return await is_served(client, 0) and await is_served(client, 1)

        await replicas.until(served)
        for victim in victims:
            pinged = await client.within(victim.session, "ping", at=1 - victim.at)
            assert pinged.status_code == (200 if shut else 404)
            await replicas.until(partial(task_failed, client, victim.task))


async def task_failed(client: ReplicaClient, task_id: str) -> bool:
    """
    Tell whether the task says why it ended; the replica that ran it stores that after the end.
    """
    task = await client.ask("tasks/get", {"taskId": task_id}, capabilities=TASKS)
    return (task["status"], task.get("statusMessage")) == (
        "failed",
        "The caller's access was revoked.",
    )
