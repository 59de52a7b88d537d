"""Revoked callers get neither stored outcomes nor lost event streams."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.policy.conftest import RevocationReplicas, wait_for_end
from tests.policy.revocation.test_replicas import ACTOR_CLAIM, ROBOT_CLAIMS
from tests.support.client import message
from tests.support.replicas import WITHIN_S, ReplicaClient

pytestmark = pytest.mark.requirement("CO1", "CO2")

REVOKED_CALLERS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "a person": (["--subject", "bob"], {"sub": "bob"}),
    "who acts": (["--subject", "bot"], ACTOR_CLAIM),
    "a program": (["--client", "robot"], ROBOT_CLAIMS),
}


async def keyed_call(client: ReplicaClient, name: str, at: int) -> tuple[int, str]:
    """Call with the name as idempotency key; return the status, and the error or the result."""
    url = client.url(at).replace("/mcp", "/tool/hold/call")
    head = {"Idempotency-Key": name}
    answer = await client.send(json.dumps({"name": name}).encode(), head, url=url)
    body = answer.json()
    return answer.status_code, body.get("error") or body["result"]


@pytest.mark.parametrize("who", REVOKED_CALLERS)
async def test_an_idempotency_key_outlives_a_revocation(
    replicas: RevocationReplicas, who: str
) -> None:
    """After a new sign-in the repeated call gets the stored outcome and does not run again."""
    order, theirs = REVOKED_CALLERS[who]
    done, stopped = replicas.name(), replicas.name()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(replicas.client(**theirs))
        replicas.let_go(done)
        assert await keyed_call(client, done, 0) == (200, f"held {done}")
        running = asyncio.create_task(keyed_call(client, stopped, 0))
        stack.callback(running.cancel)
        await replicas.marked(f"holding {stopped}")

        ordered = await replicas.commands.order("revoke", *order)
        assert (await asyncio.wait_for(running, WITHIN_S))[0] == 401
        for at in (0, 1):

            async def is_refused(at: int = at) -> bool:
                return (await keyed_call(client, done, at))[0] == 401

            await replicas.until(is_refused)
        async with replicas.later(**theirs) as later:

            async def outcome_of(name: str) -> tuple[int, str]:
                outcome = (401, "")
                async with asyncio.timeout(WITHIN_S):
                    while outcome[0] == 401:
                        outcome = await keyed_call(later, name, 1)
                return outcome

            assert await outcome_of(done) == (200, f"held {done}")
            assert (await outcome_of(stopped))[0] == 409
        await replicas.commands.order("revoke", "--undo", ordered.out.split()[-1])
    for name in (done, stopped):
        assert replicas.marks(f"holding {name}") == 1


@pytest.mark.parametrize("who", REVOKED_CALLERS)
async def test_the_stream_of_a_revoked_token_cannot_be_resumed(
    replicas: RevocationReplicas, who: str
) -> None:
    """
    A resumed stream ends with its call; afterwards neither the old token nor one of a new sign-in
    gives access to its events.
    """
    order, theirs = REVOKED_CALLERS[who]
    name = replicas.name()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(replicas.client(**theirs))
        session = await client.open("2025-11-25", at=0)
        params = {"name": "hold", "arguments": {"name": name}, "_meta": {"progressToken": 1}}
        head = {"Mcp-Session-Id": session}
        async with client.stream("POST", message("tools/call", params, 9), head, at=0) as stream:
            await stream.until("notifications/progress")
        head["Last-Event-ID"] = stream.last_id
        again = client.stream("GET", headers=head, at=1)
        resumed = await stack.enter_async_context(again)

        ordered = await replicas.commands.order("revoke", *order)
        await wait_for_end(resumed)
        await replicas.marked(f"stopped {name}")

        async def is_refused() -> bool:
            return (await client.get(head, at=1)).status_code == 401

        # The call may be stopped by the one server a moment before the other hears of it.
        await replicas.until(is_refused)
        async with replicas.later(**theirs) as later:

            async def is_gone() -> bool:
                return (await later.get(head, at=1)).status_code == 404

            await replicas.until(is_gone)
        await replicas.commands.order("revoke", "--undo", ordered.out.split()[-1])
