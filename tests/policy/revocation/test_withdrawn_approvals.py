"""A revocation withdraws the approvals of exactly the callers and approvers that it matches."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from gatepost.policy.approvals import waiting_call
from gatepost.policy.approvals.approval_request import (
    ApprovalRequest,
    GrantScope,
    Operator,
    Undecidable,
)
from gatepost.policy.approvals.stage import WITHDRAWN
from gatepost.policy.revocation.watch import Revocations, RevocationSnapshot
from gatepost.policy.revocation.withdrawn_approvals import WithdrawnApprovals, withdraw
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.storage.approvals import GrantQuota
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.revocations import RevocationRecord
from gatepost.tools.offers.offer import Outcome
from gatepost_authz.caller import TenantContext
from tests.policy.revocation.test_revocation_records import MATCHING_CASES, NOW, ordered_revocation
from tests.support.endpoint import a_caller
from tests.support.runners import (
    ACME,
    BOB,
    CAROL,
    ApprovalDeployment,
    ApprovalReplica,
    WaitingClient,
    failure_kind,
    run_until,
    text_of,
)

pytestmark = pytest.mark.requirement("CO2")

RULES = [{"tools": ["act"], "by": ["role:approver"]}]
TWO_APPROVALS = [{"tools": ["act"], "approvals": 2}]
DAVE = a_caller(subject="dave", roles=frozenset({"approver"}))
ALICE = a_caller(issued_at=int(NOW) - 100)


@pytest.fixture(autouse=True)
def short_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_call, "POLL_S", 0.02)


class Revocable(ApprovalDeployment):
    """Two replicas that know of the same revocations."""

    def __init__(self, **settings: object) -> None:
        super().__init__(revokes=self._revokes, **(settings or {"rules": RULES}))
        self.clock.now = NOW
        self.snapshot = RevocationSnapshot()
        self.replicas = (self.replica(), self.replica())

    def _revokes(self, caller: TenantContext) -> bool:
        return self.snapshot.revokes(caller, self.clock.now)

    def learn(self, *revocations: RevocationRecord) -> None:
        """Let both read these revocations, without acting on them yet."""
        self.snapshot = RevocationSnapshot([*self.snapshot.revocations, *revocations])

    async def shut(self, record: RevocationRecord) -> int:
        """Let both replicas read *record* and act on it; return how much they ended."""
        self.learn(record)
        return sum([await withdraw(replica.service, [record]) for replica in self.replicas])


@pytest.fixture
def deployment() -> Revocable:
    return Revocable()


@pytest.mark.parametrize("case", range(len(MATCHING_CASES)))
async def test_an_order_withdraws_the_approvals_of_exactly_its_callers(
    deployment: Revocable, case: int
) -> None:
    """Callers whose tokens it does not refuse keep their requests, approvals and grants."""
    selectors, caller, reached = MATCHING_CASES[case]
    here, remote = deployment.replicas
    for what in ("waiting", "approved", "granted"):
        request = await here.asked(caller=caller, what=what)
        if what != "waiting":
            scope = GrantScope(uses=3) if what == "granted" else None
            await remote.service.approve(ACME, request.id, CAROL, grant=scope)

    assert await deployment.shut(ordered_revocation(**selectors)) == (4 if reached else 0)
    assert len(await remote.service.waiting(ACME)) == (0 if reached else 1)
    assert len(await remote.service.granting.all(ACME)) == (0 if reached else 1)
    states = {request.state for request in await remote.service.history(ACME)}
    assert states == ({"withdrawn"} if reached else {"approved"})


@pytest.mark.parametrize("case", range(len(MATCHING_CASES)))
async def test_waiting_scripts_of_revoked_callers_are_withdrawn(
    deployment: Revocable, case: int
) -> None:
    """Scripts are in the same inbox as requests; a script that another caller calls waits again."""
    selectors, caller, reached = MATCHING_CASES[case]
    here, remote = deployment.replicas
    script = Script("report", b"x = 1", "workspace")
    approvals = ScriptApprovals(
        deployment.records.for_tenant(ACME).entries(SUBJECT), clock=deployment.clock
    )
    await approvals.request([script], caller=caller, max_waiting=9)
    [waits] = await here.service.waiting(ACME)
    assert (waits.caller.actor, waits.caller.kind) == (caller.actor, caller.subject_kind)
    record = ordered_revocation(**selectors)
    deployment.learn(record)

    assert len(await here.service.waiting(ACME)) == (0 if reached else 1)
    assert (await here.service.get(ACME, waits.id) is None) == reached
    if reached:
        with pytest.raises(Undecidable, match="No request for that content is waiting"):
            await remote.service.approve(ACME, waits.id, Operator("root"))
    assert not await approvals.is_approved(script)
    assert await deployment.shut(record) == 0  # who tried to decide has ended it
    assert [change.kind for change in deployment.changes] == (["withdrawn"] if reached else [])
    deployment.clock.now += 1000
    await approvals.request([script], caller=a_caller(subject="carol"), max_waiting=9)
    assert [request.caller.subject for request in await remote.service.waiting(ACME)] == (
        ["carol"] if reached else [caller.subject]
    )


async def test_a_caller_that_signed_in_again_keeps_its_new_requests(deployment: Revocable) -> None:
    """This holds whenever a server reads the order, even an hour later."""
    here, remote = deployment.replicas
    old = await here.asked(caller=ALICE, what="old")
    record = ordered_revocation(subject="alice")
    deployment.learn(record)
    deployment.clock.now += 1
    fresh = msgspec.structs.replace(ALICE, issued_at=int(NOW) + 1)
    new = await remote.asked(caller=fresh, what="new")

    assert await deployment.shut(record) == 0  # the old one went when the inbox was looked at
    assert [request.id for request in await here.service.waiting(ACME)] == [new.id]
    assert (await state_of(remote, old)) == "withdrawn"


def has_request(deployment: Revocable) -> Callable[[], Awaitable[bool]]:
    """Return a check whether the first request is there."""

    async def is_there() -> bool:
        return bool(deployment.changes)

    return is_there


async def begun_call(
    deployment: Revocable, by: TenantContext
) -> tuple[ApprovalRequest, "asyncio.Task[Outcome]"]:
    """Begin a call of Alice's that *by* has approved; it runs until the deployment's gate opens."""
    here, _ = deployment.replicas
    request = await here.asked(caller=ALICE, what="a")
    await here.service.approve(ACME, request.id, by)
    running = asyncio.create_task(here.call(caller=ALICE, what="a"))
    await asyncio.wait_for(deployment.entered.wait(), 20)
    return request, running


async def state_of(replica: ApprovalReplica, request: ApprovalRequest) -> str:
    expired = await replica.service.get(ACME, request.id)
    assert expired is not None
    return expired.state


def as_old_version(details: bytes) -> bytes:
    """Return *details* as stored by a version without the actor and the age of the token."""

    def without(value: object) -> object:
        if isinstance(value, dict):
            fields = {name: without(member) for name, member in value.items()}
            return {
                name: member
                for name, member in fields.items()
                if name not in {"issued_at", "actor"}
            }
        return [without(member) for member in value] if isinstance(value, list) else value

    return msgspec.msgpack.encode(without(msgspec.msgpack.decode(details)))


ISSUED_AT_CASES = {
    "of before": (0.0, True),
    "of about then": (30.0, True),
    "of later": (100.0, False),
}


@pytest.mark.parametrize(("later_s", "reached"), ISSUED_AT_CASES.values(), ids=ISSUED_AT_CASES)
async def test_requests_of_an_older_version_are_judged_by_their_age(
    deployment: Revocable, later_s: float, reached: bool
) -> None:
    """Requests from about the same time are withdrawn, too, as clocks may differ."""
    here, remote = deployment.replicas
    record = ordered_revocation(subject="alice")
    deployment.clock.now = NOW + later_s
    fresh = msgspec.structs.replace(ALICE, issued_at=int(NOW + 1000))
    for what in ("asked", "granted"):
        request = await here.asked(caller=fresh, what=what)
        if what == "granted":
            await here.service.approve(ACME, request.id, CAROL, grant=GrantScope(uses=3))
    tenant = deployment.records.for_tenant(ACME)
    for approval_id in await tenant.approvals.undecided():
        stored = await tenant.approvals.get(approval_id)
        assert stored is not None
        old = msgspec.structs.replace(stored, details=as_old_version(stored.details))
        assert await tenant.approvals.replace(old)
    [grant] = await tenant.grants.all(deployment.clock.now)
    await tenant.grants.revoke(grant.id)
    old_grant = msgspec.structs.replace(grant, details=as_old_version(grant.details))
    assert await tenant.grants.add(old_grant, GrantQuota(1, 1)) is None

    assert await deployment.shut(record) == (3 if reached else 0)
    assert len(await remote.service.granting.all(ACME)) == (0 if reached else 1)


async def test_an_unused_approval_of_a_revoked_approver_is_withdrawn(deployment: Revocable) -> None:
    """The call needs a new approval at both replicas."""
    here, remote = deployment.replicas
    request = await here.asked(caller=ALICE, what="a")
    await here.service.approve(ACME, request.id, BOB)
    deployment.learn(ordered_revocation(subject="bob"))

    assert failure_kind(await remote.call(caller=ALICE, what="a")) == "approval_pending"
    assert await state_of(here, request) == "withdrawn"
    [again] = await here.service.waiting(ACME)
    await remote.service.approve(ACME, again.id, CAROL)
    assert text_of(await here.call(caller=ALICE, what="a")) == "a 0 1"


async def test_a_grant_of_a_revoked_approver_does_not_count(deployment: Revocable) -> None:
    """The grant stops counting once a replica has read the order, even while it is still stored."""
    here, remote = deployment.replicas
    request = await here.asked(caller=ALICE, what="a")
    await here.service.approve(ACME, request.id, BOB, grant=GrantScope(uses=9, when="true"))
    assert text_of(await remote.call(caller=ALICE, what="b")) == "b 0 1"
    record = ordered_revocation(subject="bob")
    deployment.learn(record)

    assert failure_kind(await remote.call(caller=ALICE, what="b")) == "approval_pending"
    assert await here.service.granting.all(ACME) == []
    assert await deployment.shut(record) == 1 + 1  # and the approval, whose call was never made
    assert [change.kind for change in deployment.changes].count("grant_revoked") == 1
    assert await deployment.records.for_tenant(ACME).grants.page("", 9) == []


async def test_a_running_call_finishes_after_its_approver_is_revoked(deployment: Revocable) -> None:
    """Its approval is used, so the call is not asked about again."""
    _, remote = deployment.replicas
    deployment.gate = asyncio.Event()
    request, running = await begun_call(deployment, BOB)

    assert await deployment.shut(ordered_revocation(subject="bob")) == 0
    deployment.gate.set()
    assert text_of(await running) == "a 0 1"
    assert await state_of(remote, request) == "used"


async def test_a_stopped_call_makes_no_new_request(deployment: Revocable) -> None:
    """A caller that signs in again and repeats the call learns that part of it may be done."""
    _, remote = deployment.replicas
    deployment.gate = asyncio.Event()
    _, running = await begun_call(deployment, CAROL)
    record = ordered_revocation(subject="alice")
    deployment.learn(record)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert await deployment.shut(record) == 0
    fresh = msgspec.structs.replace(ALICE, issued_at=int(NOW) + 1)
    assert "was stopped while its tool ran" in text_of(await remote.call(caller=fresh, what="a"))
    assert deployment.effects["a"] == 1
    assert failure_kind(await remote.call(caller=fresh, what="a")) == "approval_pending"


@pytest.mark.parametrize("edits", [False, True])
async def test_the_first_of_two_approvals_is_removed_with_its_approver(edits: bool) -> None:
    """The request waits with its original arguments and needs two other approvals."""
    deployment = Revocable(rules=TWO_APPROVALS)
    here, remote = deployment.replicas
    call = asyncio.create_task(here.call(caller=ALICE, what="a", client=WaitingClient()))
    await run_until(has_request(deployment))
    [request] = await here.service.waiting(ACME)
    edited = b'{"what": "theirs"}' if edits else None
    seen = (await here.service.approve(ACME, request.id, BOB, edited=edited)).digest
    deployment.learn(ordered_revocation(subject="bob"))

    if edits:
        with pytest.raises(Undecidable, match="not what you saw"):
            await remote.service.approve(ACME, request.id, CAROL, seen_digest=seen)
    decision = await remote.service.approve(ACME, request.id, CAROL)
    assert (decision.state, decision.approvals_given, decision.edited) == ("waiting", 1, None)
    await here.service.approve(ACME, request.id, DAVE)
    assert text_of(await call) == "a 0 1"
    assert [change.kind for change in deployment.changes].count("void") == 1


async def test_a_rejection_of_a_revoked_approver_stays(deployment: Revocable) -> None:
    """A revoked approver's rejections stay, so that no refused call passes."""
    here, remote = deployment.replicas
    request = await here.asked(caller=ALICE, what="a")
    await here.service.reject(ACME, request.id, BOB, "Never.")

    assert await deployment.shut(ordered_revocation(subject="bob")) == 0
    assert "Never." in text_of(await remote.call(caller=ALICE, what="a"))


async def test_a_revocation_never_names_the_command_line(deployment: Revocable) -> None:
    """Names on a machine are no subjects of an issuer."""
    here, _ = deployment.replicas
    for what, scope in (("a", None), ("b", GrantScope(uses=3))):
        request = await here.asked(caller=ALICE, what=what)
        await here.service.approve(ACME, request.id, Operator("bob"), grant=scope)

    assert await deployment.shut(ordered_revocation(subject="bob")) == 0
    assert text_of(await here.call(caller=ALICE, what="a")) == "a 0 1"


async def test_a_waiting_caller_learns_that_its_request_is_withdrawn(deployment: Revocable) -> None:
    """A waiting call of a revoked caller is answered; the approver does not matter."""
    here, remote = deployment.replicas
    call = asyncio.create_task(here.call(caller=ALICE, what="a", client=WaitingClient()))
    await run_until(has_request(deployment))
    [request] = await remote.service.waiting(ACME)
    # Only the other replica has read it yet.
    revoked = deployment.replica(is_revoked=lambda caller: caller.subject == "alice")
    with pytest.raises(Undecidable, match="was withdrawn"):
        await revoked.service.approve(ACME, request.id, CAROL)

    assert text_of(await call) == WITHDRAWN


async def test_an_outage_delays_but_does_not_stop_withdrawing_approvals(
    deployment: Revocable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of revoked callers are withdrawn once the database is back."""
    here, remote = deployment.replicas
    await here.asked(caller=ALICE, what="a")
    away, pauses = 9, list[float]()
    withdrawing = remote.service.withdraw

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def failing(tenant: str) -> int:
        if len(pauses) < away:
            raise StoreUnavailable("it is out")
        return await withdrawing(tenant)

    monkeypatch.setattr(remote.service, "withdraw", failing)
    record = ordered_revocation(subject="alice", tenant=ACME)
    deployment.learn(record)
    withdrawn_approvals = WithdrawnApprovals(remote.service, pause=pause)
    withdrawn_approvals.begin([record])
    async with asyncio.timeout(10):
        await asyncio.gather(*withdrawn_approvals._tasks)

    assert pauses == [1.0, 5.0, 30.0, *[120.0] * 6]
    assert [request.state for request in await here.service.history(ACME)] == ["withdrawn"]


async def test_a_suspension_by_configuration_is_passed_on_like_one_by_command(
    deployment: Revocable,
) -> None:
    """This holds at a start and at a reload; a tenant that was suspended before is left out."""
    seen_revocations: list[RevocationRecord] = []
    revocations = Revocations(
        deployment.records, on_revoked=seen_revocations.extend, clock=lambda: NOW
    )
    revocations.configure(["acme"])
    assert seen_revocations == []
    await revocations.read_changes()
    assert [(revocation.tenant, revocation.suspends) for revocation in seen_revocations] == [
        ("acme", True)
    ]

    revocations.configure(["acme", "globex"])
    revocations.configure(["globex"])
    await revocations.read_changes()
    assert [revocation.tenant for revocation in seen_revocations] == ["acme", "globex"]
    revocations.configure(["globex", "acme"])
    assert [revocation.tenant for revocation in seen_revocations] == ["acme", "globex", "acme"]
