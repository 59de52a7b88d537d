"""Approval requests and grants of revoked callers and approvers are withdrawn at two replicas."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gatepost.policy.approvals.approval_request import GrantScope
from gatepost.policy.approvals.service import ApprovalService
from gatepost_authz.caller import TenantContext
from tests.policy.conftest import TASKS, RevocationReplicas
from tests.policy.revocation.test_replicas import ACTOR_CLAIM, ROBOT_CLAIMS, is_served
from tests.support.client import message
from tests.support.replicas import WITHIN_S, ReplicaClient

pytestmark = pytest.mark.requirement("CO1", "CO2")

WITHDRAWN_TEXT = "The request for a person's approval was withdrawn"
"""What a call hears whose replica sees that before it reads why."""
REVOKED_TEXT = "The caller's access was revoked."
APPROVAL_PENDING = (503, "approval_pending")
REVOKED_CALLERS: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "a person": (["--subject", "bob"], {"sub": "bob"}, {"sub": "carol"}),
    "a client": (["--client", "agent"], {"client_id": "agent"}, {"client_id": "other"}),
    "who acts, not for whom": (["--subject", "bot"], ACTOR_CLAIM, {}),
    "for whom, not who acts": (["--subject", "erin"], {"sub": "erin"} | ACTOR_CLAIM, ACTOR_CLAIM),
    "a program": (["--client", "robot"], ROBOT_CLAIMS, {"sub": "robot"}),
    "a person of its id": (["--client", "client-1"], {"sub": "robot"}, ROBOT_CLAIMS),
}
"""The order, the caller that it matches, and a caller that it must not affect."""


def approver(replicas: RevocationReplicas, subject: str = "judy") -> TenantContext:
    """Return an approver who has signed in."""
    now = int(time.time())
    return TenantContext(
        tenant_id="acme",
        issuer=replicas.issuer,
        subject=subject,
        subject_kind="user",
        resource=replicas.url,
        expires_at=now + 3600,
        issued_at=now,
        roles=frozenset({"approver"}),
    )


async def paid(client: ReplicaClient, name: str, at: int) -> tuple[int, str]:
    """Make a payment; return the status, and the error or the tool's answer."""
    url = client.url(at).replace("/mcp", "/tool/pay/call")
    answer = await client.send(json.dumps({"name": name}).encode(), {}, url=url)
    body = answer.json()
    return answer.status_code, body.get("error") or body["result"]


async def waiting_payments(service: ApprovalService) -> dict[str, str]:
    """Return the waiting payments: their names with their ids."""
    return {
        json.loads(request.arguments)["name"]: request.id
        for request in await service.waiting("acme")
    }


class OpenApprovals:
    """What one caller has asked people for: a call that waits, an approval, a grant, a task."""

    def __init__(self, replicas: RevocationReplicas, client: ReplicaClient) -> None:
        self.replicas, self.client = replicas, client
        self.waits, self.approved, self.granted, self.held = (replicas.name() for _ in range(4))
        self.task = ""
        self.call: asyncio.Task[Any]

    async def open(
        self, service: ApprovalService, by: TenantContext, stack: AsyncExitStack
    ) -> None:
        """Ask for everything, at both replicas, and have some of it approved."""
        client = self.client
        for at, name in enumerate((self.waits, self.approved, self.granted)):
            self.replicas.let_go(name)
            assert await paid(client, name, at % 2) == APPROVAL_PENDING
        ids = await waiting_payments(service)
        await service.approve("acme", ids[self.approved], by)
        scope = GrantScope(uses=9)
        await service.approve("acme", ids[self.granted], by, grant=scope)
        params = {"name": "pay", "arguments": {"name": self.waits}}
        task = await client.ask("tools/call", params, at=0, capabilities=TASKS)
        self.task = task["taskId"]
        session = await client.open("2025-11-25", at=1)
        body = message("tools/call", {"name": "pay", "arguments": {"name": self.held}}, 77)
        head = {"Mcp-Session-Id": session, "Accept": "application/json"}
        sending = client.send(body, head, at=1)
        self.call = asyncio.create_task(sending)
        stack.callback(self.call.cancel)

        async def is_leased() -> bool:
            return self.held in await waiting_payments(service)

        await self.replicas.until(is_leased)

    async def is_there(self, service: ApprovalService) -> bool:
        """Tell whether all of it is still there."""
        names = await waiting_payments(service)
        grants = {
            json.loads(grant.arguments)["name"] for grant in await service.granting.all("acme")
        }
        task = await self.client.ask("tasks/get", {"taskId": self.task}, capabilities=TASKS)
        assert task["status"] == "working"
        assert not self.call.done()
        return {self.waits, self.held} <= names.keys() and self.granted in grants

    async def is_gone(self, service: ApprovalService) -> bool:
        """Tell whether nothing of it is open any more."""
        names = await waiting_payments(service)
        grants = {
            json.loads(grant.arguments)["name"] for grant in await service.granting.all("acme")
        }
        past = await service.history("acme")
        states = {json.loads(request.arguments)["name"]: request.state for request in past}
        mine = (self.waits, self.approved, self.held)
        return (
            not {*mine} & names.keys()
            and self.granted not in grants
            and {states.get(name) for name in mine} == {"withdrawn"}
        )


@pytest.mark.parametrize("who", REVOKED_CALLERS)
async def test_an_order_ends_the_waiting_work_of_exactly_its_callers(
    replicas: RevocationReplicas, who: str
) -> None:
    """
    An order ends the requests, approvals, grants, tasks and held calls of its callers at both
    replicas; a caller that only shares an id, a client or a person with them keeps everything.
    """
    order, theirs, others = REVOKED_CALLERS[who]
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(replicas.service())
        by = approver(replicas)
        victim = OpenApprovals(replicas, await stack.enter_async_context(replicas.client(**theirs)))
        bystander = OpenApprovals(
            replicas, await stack.enter_async_context(replicas.client(**others))
        )
        for caller in (victim, bystander):
            await caller.open(service, by, stack)

        ordered = await replicas.commands.order("revoke", *order, "--tenant", "acme")
        await replicas.until(lambda: victim.is_gone(service))
        refused = await asyncio.wait_for(victim.call, WITHIN_S)
        assert refused.status_code == 401 or WITHDRAWN_TEXT.encode() in refused.content
        assert await bystander.is_there(service)

        await assert_calls_ask_again(replicas, victim, theirs)
        await replicas.commands.order("revoke", "--undo", ordered.out.split()[-1])
        assert await bystander.is_there(service)
        for name in (bystander.approved, bystander.granted):
            assert await paid(bystander.client, name, 1) == (200, f"paid {name}")


async def assert_calls_ask_again(
    replicas: RevocationReplicas, victim: OpenApprovals, theirs: dict[str, Any]
) -> None:
    """Assert that a new sign-in needs new approvals at both replicas, and that no old call ran."""
    async with replicas.later(**theirs) as client:
        for at, name in enumerate((victim.approved, victim.granted)):

            async def asks(name: str = name, at: int = at) -> bool:
                return await paid(client, name, at) == APPROVAL_PENDING

            await replicas.until(asks)
        task = await client.ask("tasks/get", {"taskId": victim.task}, capabilities=TASKS)
        outcome = (task["status"], task.get("statusMessage"))
        assert outcome == ("failed", REVOKED_TEXT) or WITHDRAWN_TEXT in str(task["result"])
    for name in (victim.waits, victim.approved, victim.granted, victim.held):
        assert replicas.marks(f"paid {name}") == 0


async def test_approvals_by_an_erased_person_are_erased_too(replicas: RevocationReplicas) -> None:
    """
    An unused approval and a grant of a person whose sign-in is revoked count no more: the call
    needs a new approval at both replicas. Decisions of other approvers stand.
    """
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(replicas.service())
        client = await stack.enter_async_context(replicas.client(sub="fred"))
        mine, others = OpenApprovals(replicas, client), OpenApprovals(replicas, client)
        await mine.open(service, approver(replicas, "mallory"), stack)
        await others.open(service, approver(replicas), stack)

        mallory = await stack.enter_async_context(replicas.client(sub="mallory"))
        ordered = await replicas.commands.order(
            "revoke", "--subject", "mallory", "--issuer", replicas.issuer
        )
        for at in (0, 1):
            # Until a replica has heard of it the approval is good, and the call would be made.
            async def knows(at: int = at) -> bool:
                return not await is_served(mallory, at)

            await replicas.until(knows)
            for name in (mine.approved, mine.granted):
                assert await paid(client, name, at) == APPROVAL_PENDING
        assert await others.is_there(service)
        ids = await waiting_payments(service)
        await service.approve("acme", ids[mine.approved], approver(replicas))
        for name in (mine.approved, others.approved, others.granted):
            assert await paid(client, name, 0) == (200, f"paid {name}")
        assert replicas.marks(f"paid {mine.granted}") == 0
        await replicas.commands.order("revoke", "--undo", ordered.out.split()[-1])
