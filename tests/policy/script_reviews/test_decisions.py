"""Scripts that wait for an administrator among the calls, and what becomes of the rejected."""

import asyncio

import msgspec
import pytest

from gatepost.policy.approvals.approval_request import DisplayedParty, Operator, Undecidable
from gatepost.policy.approvals.notifications import TOPIC, ApprovalChange, ApprovalListener
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.storage.errors import StoreUnavailable
from tests.support.endpoint import a_caller
from tests.support.runners import ACME, BOB, WITHIN_S, ApprovalDeployment, run_until

ADMIN = a_caller(subject="ada", roles=frozenset({"admin"}))
ROOT = DisplayedParty(subject="root", kind="operator")
OLD_SCRIPT, NEW_SCRIPT = (
    Script("report", text.encode(), "workspace") for text in ("x = 1\n", "x = 2\n")
)


async def submit_script(
    deployment: ApprovalDeployment, script: Script = NEW_SCRIPT, *, by: str = "alice"
) -> ScriptApprovals:
    """Submit *script* as the user *by*; return the script approvals of the tenant."""
    entries = deployment.records.for_tenant(ACME).entries(SUBJECT)
    approvals = ScriptApprovals(entries, clock=deployment.clock)
    await approvals.request([script], caller=a_caller(subject=by), max_waiting=9)
    return approvals


@pytest.mark.requirement("P11")
async def test_a_script_waits_among_the_calls_and_runs_once_approved() -> None:
    """The request has its content, the approved content, and the caller."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    call = await replica.asked(what="a")
    deployment.clock.now += 1
    approvals = await submit_script(deployment, OLD_SCRIPT)
    await approvals.approve(OLD_SCRIPT, by=ROOT)
    await approvals.request([NEW_SCRIPT], caller=a_caller(subject="alice"), max_waiting=9)

    first, script = await replica.service.waiting(ACME)
    assert first.id == call.id
    assert (script.kind, script.tool, script.caller.subject) == ("script", "report.star", "alice")
    assert (script.content, script.approved_content) == ("x = 2\n", "x = 1\n")
    assert await replica.service.get(ACME, script.id) == script

    decided = await replica.service.approve(ACME, script.id, ADMIN, seen_digest=script.digest)

    assert decided.state == "approved"
    assert await approvals.is_approved(NEW_SCRIPT)
    assert not await approvals.is_approved(OLD_SCRIPT)
    assert [request.id for request in await replica.service.waiting(ACME)] == [call.id]
    assert deployment.changes[-1].kind == "approved"


@pytest.mark.requirement("P11")
async def test_an_unfit_approver_cannot_decide_about_a_script() -> None:
    """Such are the submitter, an approver who is no admin, another tenant's admin, a machine."""
    deployment = ApprovalDeployment()
    replica = deployment.replica()
    approvals = await submit_script(deployment)
    [script] = await replica.service.waiting(ACME)
    admin = {"roles": frozenset({"admin"})}
    others = {
        "You submitted": a_caller(**admin),
        "the role admin": BOB,
        "no such request": a_caller(subject="ada", tenant_id="globex", **admin),
        "a machine": a_caller(subject="ada", subject_kind="client", **admin),
    }

    for why, who in others.items():
        with pytest.raises(Undecidable, match=why):
            await replica.service.approve(ACME, script.id, who)
        with pytest.raises(Undecidable, match=why):
            await replica.service.reject(ACME, script.id, who, "")
    assert not await approvals.is_approved(NEW_SCRIPT)
    assert len(await replica.service.waiting(ACME)) == 1


async def test_only_the_script_that_was_seen_is_approved() -> None:
    """A newer one of the same name is another request, and the one seen is gone."""
    deployment = ApprovalDeployment()
    replica = deployment.replica()
    approvals = await submit_script(deployment, OLD_SCRIPT)
    [seen] = await replica.service.waiting(ACME)
    await approvals.request([NEW_SCRIPT], caller=a_caller(subject="alice"), max_waiting=9)

    with pytest.raises(Undecidable, match="Review the requests that wait now"):
        await replica.service.approve(ACME, seen.id, ADMIN)
    assert not await approvals.is_approved(OLD_SCRIPT)
    assert await replica.service.get(ACME, seen.id) is None


async def test_a_rejected_script_no_longer_waits() -> None:
    """The approved one stays approved."""
    deployment = ApprovalDeployment()
    replica = deployment.replica()
    approvals = await submit_script(deployment, OLD_SCRIPT)
    await approvals.approve(OLD_SCRIPT, by=ROOT)
    await approvals.request([NEW_SCRIPT], caller=a_caller(subject="alice"), max_waiting=9)
    [script] = await replica.service.waiting(ACME)

    rejected = await replica.service.reject(ACME, script.id, Operator("root"), "Not tested.")

    assert (rejected.state, rejected.decisions[0].reason) == ("rejected", "Not tested.")
    await approvals.request([NEW_SCRIPT], caller=a_caller(subject="bob"), max_waiting=9)
    assert await replica.service.waiting(ACME) == []
    assert await replica.service.get(ACME, script.id) == rejected
    assert await approvals.is_approved(OLD_SCRIPT)


@pytest.mark.requirement("P11")
async def test_a_rejected_script_is_in_the_history_among_the_calls() -> None:
    """The history is ordered by decision time, in pages, and only of this tenant."""
    deployment = ApprovalDeployment(require=["act"])
    service = deployment.replica().service
    ids = []
    for number in range(3):
        deployment.clock.now += 1
        call = await deployment.replica().asked(what=f"{number}")
        await service.reject(ACME, call.id, BOB, "")
        deployment.clock.now += 1
        await submit_script(deployment, Script(f"report-{number}", b"1", "workspace"))
        [script] = await service.waiting(ACME)
        await service.reject(ACME, script.id, ADMIN, f"reason {number}")
        ids += [call.id, script.id]

    pages, before = [], None
    while page := await deployment.replica().service.history(ACME, before=before, max_requests=1):
        [before] = page
        pages += page
    assert [request.id for request in pages] == ids[::-1]
    assert pages == await service.history(ACME)
    assert (pages[0].decisions[0].by.subject, pages[0].decisions[0].reason) == ("ada", "reason 2")
    assert await service.history("globex") == []


@pytest.mark.requirement("P11")
async def test_a_rejected_script_can_be_approved_after_all() -> None:
    """
    The admin who rejected it may approve the text that they saw; a caller who could not approve it
    at first still cannot.
    """
    deployment = ApprovalDeployment()
    service = deployment.replica().service
    approvals = await submit_script(deployment)
    [script] = await service.waiting(ACME)
    rejected = await service.reject(ACME, script.id, ADMIN, "Not tested.")

    with pytest.raises(Undecidable, match="was rejected already"):
        await service.reject(ACME, script.id, Operator("root"), "")
    alice = a_caller(roles=frozenset({"admin"}))
    for who, why in ((BOB, "the role admin"), (alice, "You submitted")):
        assert why in str(service.objection(rejected, who))
        with pytest.raises(Undecidable, match=why):
            await service.approve(ACME, script.id, who)
    with pytest.raises(Undecidable, match="Review the requests that wait now"):
        await service.approve(ACME, script.id, ADMIN, seen_digest="something else")
    assert service.objection(rejected, ADMIN) is None
    approved = await service.approve(ACME, script.id, ADMIN, seen_digest=rejected.digest)

    assert [decision.verdict for decision in approved.decisions] == ["rejected", "approved"]
    assert await approvals.is_approved(NEW_SCRIPT)
    assert await service.history(ACME) == []
    assert [change.kind for change in deployment.changes] == ["rejected", "approved"]


@pytest.mark.requirement("P11")
async def test_a_rejection_is_kept_as_long_as_any_decision() -> None:
    """After `approvals.keep_s` it is deleted, even if no caller reads it."""
    deployment = ApprovalDeployment(keep_s=60)
    replica = deployment.replica()
    service = replica.service
    approvals = await submit_script(deployment)
    [script] = await service.waiting(ACME)
    await service.reject(ACME, script.id, ADMIN, "")
    deployment.clock.now += 60
    entries = deployment.records.for_tenant(ACME).entries(SUBJECT)

    assert await approvals.rejected() == []
    assert await service.get(ACME, script.id) is None
    tidied, tidy = asyncio.Event(), replica.scripts.remove_expired

    async def tidying() -> int:
        gone = await tidy()
        tidied.set()
        return gone

    replica.scripts.remove_expired = tidying  # type: ignore[method-assign]
    assert len(await entries.all()) == 1
    async with asyncio.timeout(WITHIN_S), service.expiring(every_s=0.001):
        await tidied.wait()
    assert await entries.all() == []


@pytest.mark.requirement("P11", "CO4")
async def test_the_approver_who_rejected_a_script_can_be_erased() -> None:
    """The person's name and reason are erased, and the script stays rejected."""
    deployment = ApprovalDeployment()
    service = deployment.replica().service
    approvals = await submit_script(deployment)
    [script] = await service.waiting(ACME)
    await service.reject(ACME, script.id, ADMIN, "Ada says no.")

    assert await approvals.erase(ADMIN.issuer, ADMIN.subject) == 1

    [remaining] = await service.history(ACME)
    assert (remaining.decisions[0].by.display_name, remaining.decisions[0].reason) == (
        "an administrator",
        "",
    )
    assert service.objection(remaining, Operator("root")) is None


@pytest.mark.requirement("P11", "CO4")
async def test_an_erased_person_cannot_approve_their_own_rejected_script() -> None:
    """The person could sign in again as an admin, so only an operator may approve the script."""
    deployment = ApprovalDeployment()
    service = deployment.replica().service
    approvals = await submit_script(deployment)
    alice = a_caller(subject="alice", roles=frozenset({"admin"}))
    [script] = await service.waiting(ACME)
    await service.reject(ACME, script.id, ADMIN, "Not tested.")

    assert await approvals.erase(alice.issuer, alice.subject) == 1

    [remaining] = await service.history(ACME)
    for who in (alice, ADMIN):
        assert "was erased" in str(service.objection(remaining, who))
        with pytest.raises(Undecidable, match="was erased"):
            await service.approve(ACME, script.id, who)
    assert not await approvals.is_approved(NEW_SCRIPT)
    await service.approve(ACME, script.id, Operator("root"))
    assert await approvals.is_approved(NEW_SCRIPT)


@pytest.mark.requirement("P11", "CO4")
async def test_the_approver_of_a_script_can_be_erased() -> None:
    """The approver's name and id are erased, and the script still runs."""
    deployment = ApprovalDeployment()
    service = deployment.replica().service
    approvals = await submit_script(deployment)
    [script] = await service.waiting(ACME)
    ada = msgspec.structs.replace(ADMIN, claims={"name": "Ada L."})
    await service.approve(ACME, script.id, ada)
    assert [
        approval.approver and approval.approver.name for approval in await approvals.all_approved()
    ] == ["Ada L."]

    assert await approvals.erase(ADMIN.issuer, ADMIN.subject) == 1

    [entry] = await deployment.records.for_tenant(ACME).entries(SUBJECT).all()
    assert b"Ada" not in entry.value
    assert b"ada" not in entry.value
    assert await approvals.is_approved(NEW_SCRIPT)


@pytest.mark.parametrize("waits", [True, False], ids=["one that waits", "a file"])
async def test_the_operator_may_allow_any_script(waits: bool) -> None:
    """
    The operator may allow a script before its first call; each decision and its end is recorded
    and published to the replicas.
    """
    deployment = ApprovalDeployment()
    replica = deployment.replica()
    service = replica.service
    approvals = ScriptApprovals(
        deployment.records.for_tenant(ACME).entries(SUBJECT), clock=deployment.clock
    )
    if waits:
        await submit_script(deployment)
    woken: list[bytes] = []

    async def are_woken() -> bool:
        return len(woken) == 2

    subscription = await deployment.shared_store.for_tenant(ACME).follow(TOPIC, woken.append)
    await replica.scripts.allow(ACME, NEW_SCRIPT, Operator("root"))
    is_held = await approvals.is_approved(NEW_SCRIPT)
    was = await replica.scripts.revoke(ACME, NEW_SCRIPT.name, Operator("root"))
    await run_until(are_woken)
    subscription.end()

    assert (is_held, was, await approvals.is_approved(NEW_SCRIPT)) == (True, "approved", False)
    assert [
        (change.kind, getattr(change.changed, "state", None)) for change in deployment.changes
    ] == [
        ("approved", "approved"),
        ("revoked", "withdrawn"),
    ]
    assert woken == [f"script:{NEW_SCRIPT.digest}".encode()] * 2
    assert await service.waiting(ACME) == []
    assert await replica.scripts.revoke(ACME, NEW_SCRIPT.name, Operator("root")) is None
    assert len(deployment.changes) == 2


async def test_an_unreadable_script_is_not_allowed() -> None:
    """The refused command leaves no audit record, either."""
    deployment = ApprovalDeployment()
    replica = deployment.replica()

    with pytest.raises(Undecidable, match="no UTF-8 text"):
        await replica.scripts.allow(ACME, Script("binary", b"\xff", "workspace"), Operator("root"))
    assert deployment.changes == []


@pytest.mark.requirement("P11")
@pytest.mark.parametrize("verdict", ["approved", "rejected"])
async def test_a_decision_about_a_script_is_recorded_before_it_counts(verdict: str) -> None:
    """The record is written first, and corrected where another decision came first."""
    deployment = ApprovalDeployment()
    other_service = deployment.replica().service
    approvals = await submit_script(deployment)
    [script] = await other_service.waiting(ACME)
    own_request: list[str] = []

    async def fails(change: ApprovalChange) -> None:
        raise StoreUnavailable("the record is away")

    async def faster(change: ApprovalChange) -> None:
        if not own_request:
            await other_service.reject(ACME, script.id, ADMIN, "")
        own_request.append(change.kind)

    async def decide(audit: ApprovalListener) -> None:
        service = deployment.replica(audit=audit).service
        if verdict == "approved":
            await service.approve(ACME, script.id, ADMIN)
        else:
            await service.reject(ACME, script.id, ADMIN, "")

    with pytest.raises(StoreUnavailable):
        await decide(fails)
    assert [request.id for request in await other_service.waiting(ACME)] == [script.id]

    if verdict == "rejected":
        with pytest.raises(Undecidable, match="Review the requests that wait now"):
            await decide(faster)
        assert own_request == ["rejected", "void"]
    else:
        await decide(faster)
        assert own_request == ["approved"]
        assert await approvals.is_approved(NEW_SCRIPT)
