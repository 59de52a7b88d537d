"""Approvals whose call has begun, on every backend and at every replica."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gatepost.policy.approvals import request_lists
from gatepost.policy.approvals.approval_request import ApprovalRequest
from gatepost.policy.approvals.notifications import ApprovalChange
from gatepost.policy.idempotency import execution
from gatepost.policy.idempotency.execution import LEASE_S
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.records import Records
from tests.support.endpoint import a_caller
from tests.support.runners import (
    ACME,
    BOB,
    ApprovalDeployment,
    ApprovalReplica,
    failure_kind,
    text_of,
)

pytestmark = pytest.mark.requirement("A7")

LIVES_S = 300.0
"""How long an approval is valid here, in seconds: the default of the configuration."""
WITHIN_S = 30
OTHER_TENANT = "globex"


class RecordedDeployment(ApprovalDeployment):
    """Records what would be sent to the webhook."""

    def __init__(self, records: Records) -> None:
        super().__init__(records=records, require=["act", "put"])
        self.messages: list[str] = []
        self.message_of = self._message_of

    def _message_of(self, change: ApprovalChange) -> OutboxMessage | None:
        self.messages.append(change.kind)
        return None

    def reported_changes(self) -> list[str]:
        """Return the changes that any replica reported, in order."""
        return [change.kind for change in self.changes]


@pytest.fixture(autouse=True)
def leases_without_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent the renewal of leases, except where a test renews one."""
    monkeypatch.setattr(execution, "RENEW_S", 3600.0)


@pytest.fixture
def deployment(records: Records) -> RecordedDeployment:
    return RecordedDeployment(records)


async def running(
    deployment: ApprovalDeployment, replica: ApprovalReplica, tool: str
) -> "tuple[ApprovalRequest, asyncio.Task[object]]":
    """Start an approved call; return when its tool has had its effect and still runs."""
    request = await replica.asked(tool, what="a")
    await replica.service.approve(ACME, request.id, BOB)
    deployment.gate, deployment.entered = asyncio.Event(), asyncio.Event()
    call = asyncio.create_task(replica.call(tool, what="a"))
    async with asyncio.timeout(WITHIN_S):
        await deployment.entered.wait()
    return request, call


async def abandoned_call(deployment: ApprovalDeployment, tool: str = "act") -> ApprovalRequest:
    """Return the approval of a running call whose process lost power; its lease still runs."""
    replica = deployment.replica()
    request, call = await running(deployment, replica, tool)
    for run in replica.runs._open.values():
        run.task.cancel()
    call.cancel()
    await asyncio.wait([call], timeout=WITHIN_S)
    deployment.gate = None
    return request


async def at(replica: ApprovalReplica, request: ApprovalRequest) -> tuple[str, str]:
    """Return state and use as a page shows them."""
    opened = await replica.service.get(ACME, request.id)
    assert opened is not None
    return opened.state, opened.use


async def page(replica: ApprovalReplica, request: ApprovalRequest) -> None:
    await replica.service.get(ACME, request.id)


async def history(replica: ApprovalReplica, request: ApprovalRequest) -> None:
    [stored_request] = await replica.service.history(ACME)
    assert (stored_request.id, stored_request.state, stored_request.use) == (
        request.id,
        "used",
        "unknown",
    )


async def sweep(replica: ApprovalReplica, request: ApprovalRequest) -> None:
    replica.deployment.clock.now += LIVES_S
    await replica.service.expire_due()


Look = Callable[[ApprovalReplica, ApprovalRequest], Awaitable[None]]
READINGS: dict[str, Look] = {"its page": page, "the history": history, "the sweep": sweep}


@pytest.mark.parametrize("look", READINGS.values(), ids=READINGS)
async def test_the_approval_of_an_unfinished_call_is_used_and_not_expired(
    deployment: RecordedDeployment, look: Look
) -> None:
    """After its lease its approval counts as used; it is announced once, and not as expired."""
    request, other = await abandoned_call(deployment), deployment.replica()
    assert await at(other, request) == ("approved", "running")
    deployment.clock.now += LEASE_S + 1

    await look(other, request)

    assert await at(deployment.replica(), request) == ("used", "unknown")
    await sweep(other, request)
    assert deployment.reported_changes() == ["requested", "approved", "unknown"]
    assert "expired" not in deployment.messages


async def test_an_agent_learns_of_the_unknown_outcome_before_a_new_request(
    deployment: RecordedDeployment,
) -> None:
    """The answer is repeated for the lifetime of the request; the tool does not run again."""
    request, other = await abandoned_call(deployment), deployment.replica()
    await sweep(other, request)

    for _ in range(2):
        assert "is not known" in text_of(await other.call(what="a"))
    deployment.clock.now += LIVES_S
    assert failure_kind(await other.call(what="a")) == "approval_pending"
    assert deployment.effects["a"] == 1


async def test_a_returning_agent_also_marks_the_outcome_as_unknown(
    deployment: RecordedDeployment,
) -> None:
    """The history shows what the agent was told."""
    request, other = await abandoned_call(deployment), deployment.replica()
    deployment.clock.now += LEASE_S + 1

    assert "is not known" in text_of(await other.call(what="a"))

    assert await at(other, request) == ("used", "unknown")
    assert deployment.reported_changes() == ["requested", "approved", "unknown"]


async def test_a_call_that_runs_does_not_expire(deployment: RecordedDeployment) -> None:
    """The time of its approval may pass; afterwards it is used, and its outcome is known."""
    here, other = deployment.replica(), deployment.replica()
    request, call = await running(deployment, here, "act")
    tenant = deployment.records.for_tenant(ACME)
    deployment.clock.now += LIVES_S
    [its] = here.runs._open.values()
    await its._renew()

    await other.service.expire_due()

    assert await at(other, request) == ("approved", "running")
    assert deployment.gate is not None
    deployment.gate.set()
    await call
    assert await at(other, request) == ("used", "")
    assert deployment.reported_changes() == ["requested", "approved", "used"]
    assert await tenant.approvals.undecided() == []


async def test_running_calls_keep_no_other_request_from_expiring(
    deployment: RecordedDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant whose calls run for longer than their approvals delays no other tenant."""
    monkeypatch.setattr(request_lists, "DUE", 1)
    here, other = deployment.replica(), deployment.replica()
    _, call = await running(deployment, here, "act")
    for what in "bcd":
        await here.call(caller=a_caller(tenant_id=OTHER_TENANT), what=what)
    deployment.clock.now += LIVES_S
    [its] = here.runs._open.values()
    await its._renew()

    await other.service.expire_due()

    records = await deployment.records.for_tenant(OTHER_TENANT).approvals.ended(None, 9)
    assert [record.state for record in records] == ["expired"] * 3
    call.cancel()
    await asyncio.wait([call, its.task], timeout=WITHIN_S)


async def test_an_approval_counts_as_used_although_its_outcome_was_not_fetched(
    deployment: RecordedDeployment,
) -> None:
    """The caller was gone when the tool ended: the approval was used, and the agent may ask how."""
    here, other = deployment.replica(), deployment.replica()
    request, call = await running(deployment, here, "act")
    [its] = here.runs._open.values()
    call.cancel()
    await asyncio.wait([call, its.task], timeout=WITHIN_S)
    deployment.clock.now += LIVES_S

    await other.service.expire_due()

    assert await at(other, request) == ("used", "")
    assert "was stopped" in text_of(await other.call(what="a"))
    assert deployment.reported_changes() == ["requested", "approved", "used"]
    assert failure_kind(await other.call(what="a")) == "approval_pending"


async def test_an_unknown_outcome_can_become_known_later(deployment: RecordedDeployment) -> None:
    """The server was only cut off from the database for longer than its lease."""
    here, other = deployment.replica(), deployment.replica()
    request, call = await running(deployment, here, "act")
    deployment.clock.now += LEASE_S + 1
    assert await at(other, request) == ("used", "unknown")
    assert deployment.gate is not None
    deployment.gate.set()
    await call

    assert await at(other, request) == ("used", "")
    assert deployment.reported_changes() == ["requested", "approved", "unknown", "used"]


async def test_a_repeatable_tool_keeps_its_approval_until_its_expiry(
    deployment: RecordedDeployment,
) -> None:
    """Reading the request does not use it, so the agent can make the call again."""
    request, other = await abandoned_call(deployment, "put"), deployment.replica()
    deployment.clock.now += LEASE_S + 1

    assert await at(other, request) == ("approved", "unknown")
    assert text_of(await other.call("put", what="a")) == "a 0 2"
    assert await at(other, request) == ("used", "")


async def test_a_repeatable_tool_does_not_run_after_its_approval_expired(
    deployment: RecordedDeployment,
) -> None:
    """A tool that may repeat has no approval for it then."""
    request, other = await abandoned_call(deployment, "put"), deployment.replica()
    await sweep(other, request)

    assert await at(other, request) == ("used", "unknown")
    assert "is not known" in text_of(await other.call("put", what="a"))
    assert deployment.effects["a"] == 1


async def test_an_expiry_is_recorded_before_it_takes_effect(deployment: RecordedDeployment) -> None:
    """While the audit record cannot be written, the request does not change."""
    request = await abandoned_call(deployment)
    deployment.clock.now += LIVES_S
    kinds: list[str] = []

    async def away(change: ApprovalChange) -> None:
        raise StoreUnavailable("away")

    async def audit(change: ApprovalChange) -> None:
        kinds.append(change.kind)

    with pytest.raises(StoreUnavailable):
        await deployment.replica(audit=away).service.expire_due()
    record = await deployment.records.for_tenant(ACME).approvals.get(request.id)
    assert record is not None
    assert record.state == "approved"
    assert await deployment.replica(audit=audit).service.expire_due() == 1
    assert kinds == ["unknown"]


async def test_an_approval_that_was_not_used_expires(deployment: RecordedDeployment) -> None:
    """No call had started; the state and the webhook say that it expired."""
    replica = deployment.replica()
    request = await replica.asked(what="a")
    await replica.service.approve(ACME, request.id, BOB)

    await sweep(replica, request)

    assert await at(replica, request) == ("expired", "")
    assert deployment.messages == ["requested", "approved", "expired"]
