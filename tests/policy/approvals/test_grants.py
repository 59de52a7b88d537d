"""Calls that are approved before they are made."""

import asyncio
from typing import Any

import msgspec
import pytest

from gatepost.policy.approvals.approval_request import (
    ApprovalGrant,
    GrantScope,
    Operator,
    Undecidable,
)
from gatepost.policy.approvals.grants import PAGE
from gatepost.policy.approvals.notifications import ApprovalChange
from gatepost.policy.revocation.watch import RevocationSnapshot
from gatepost.policy.revocation.withdrawn_approvals import withdraw
from gatepost.storage.approvals import GrantQuota
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.revocations import RevocationRecord
from tests.support.endpoint import a_caller
from tests.support.runners import (
    ACME,
    ALICE,
    BOB,
    ApprovalDeployment,
    ApprovalReplica,
    failure_kind,
    text_of,
)

DAY = 86_400.0


async def granted(replica: ApprovalReplica, call: dict[str, Any], **scope: Any) -> None:
    """Request that call and approve it with a grant."""
    request = await replica.asked(**call)
    await replica.service.approve(ACME, request.id, BOB, grant=GrantScope(**scope))


@pytest.mark.requirement("A7")
async def test_a_grant_lets_the_given_number_of_calls_pass() -> None:
    """The approved call does not count; after the last one a new request is made."""
    deployment = ApprovalDeployment(require=["act"])
    replica, other = deployment.replica(), deployment.replica()
    await granted(replica, {"what": "a"}, uses=2)

    passed = [text_of(await other.call(what="a")) for _ in range(2)]
    assert passed == ["a 0 1", "a 0 2"]
    assert text_of(await replica.call(what="a")) == "a 0 3"  # by the approval itself
    assert failure_kind(await replica.call(what="a")) == "approval_pending"


async def test_concurrent_calls_use_no_more_than_the_grant() -> None:
    """No more calls pass at several replicas than the grant allows."""
    deployment = ApprovalDeployment(require=["act"])
    replicas = [deployment.replica() for _ in range(3)]
    await granted(replicas[0], {"what": "b"}, uses=4, when="arguments.what == 'a'")

    outcomes = await asyncio.gather(*(replicas[at % 3].call(what="a") for at in range(12)))

    assert [failure_kind(outcome) for outcome in outcomes].count("") == 4
    assert deployment.effects["a"] == 4


async def test_grants_are_listed_page_by_page() -> None:
    """A tenant with very many grants does not delay the others with its page."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    await granted(replica, {"what": "a"}, uses=9)
    grants = deployment.records.for_tenant(ACME).grants
    [record] = await grants.page("", PAGE)
    for number in range(PAGE):
        more_grant = msgspec.structs.replace(record, id=f"{number:03}")
        assert await grants.add(more_grant, GrantQuota(2 * PAGE, 2 * PAGE)) is None

    first, later = await replica.service.granting.valid_page(ACME)
    rest, end = await replica.service.granting.valid_page(ACME, later)

    assert (len(first), len(rest), end) == (PAGE, 1, None)
    assert [await replica.service.granting.valid_page("globex")] == [([], None)]


async def test_a_grant_ends_at_its_expiry() -> None:
    """A grant ends to the second; without an end it lasts a day."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    now = deployment.clock.now
    await granted(replica, {"what": "a"}, until=now + 100)
    deployment.clock.now += 1
    await granted(replica, {"what": "b"}, uses=99)
    [first, other] = await replica.service.granting.all(ACME)
    assert (first.until, other.until) == (now + 100, now + 1 + DAY)

    deployment.clock.now += 98
    assert failure_kind(await replica.call(what="a")) == ""
    deployment.clock.now += 1
    assert failure_kind(await replica.call(what="a")) == ""  # the approval itself, until it expires
    deployment.clock.now += 300
    assert failure_kind(await replica.call(what="a")) == "approval_pending"


COVERED_CALLS = {
    "the same arguments": ({}, {"what": "a", "amount": 5}, True),
    "other arguments": ({}, {"what": "a", "amount": 6}, False),
    "a condition that holds": ({"when": "arguments.amount < 10"}, {"amount": 9}, True),
    "a condition that does not": ({"when": "arguments.amount < 10"}, {"amount": 10}, False),
    "a condition without a value": ({"when": "arguments.amount < 10"}, {"what": "x"}, False),
    "a condition that is no yes or no": ({"when": "arguments.amount"}, {"amount": 1}, False),
    "another tool": ({"when": "true"}, {"tool": "put", "amount": 1}, False),
    "another caller": ({"when": "true"}, {"caller": a_caller(subject="eve")}, False),
    "another client": ({"when": "true"}, {"caller": a_caller(client_id="other")}, False),
    "another issuer's": ({"when": "true"}, {"caller": a_caller(issuer="https://o")}, False),
}


@pytest.mark.parametrize(("scope", "call", "passes"), COVERED_CALLS.values(), ids=COVERED_CALLS)
async def test_a_grant_covers_only_its_caller_client_tool_and_arguments(
    scope: dict[str, Any], call: dict[str, Any], passes: bool
) -> None:
    """The arguments may be given by a pattern."""
    deployment = ApprovalDeployment(require=["*"])
    replica = deployment.replica()
    await granted(replica, {"what": "a", "amount": 5}, uses=1, **scope)

    outcome = await replica.call(**call)

    assert failure_kind(outcome) == ("" if passes else "approval_pending")


async def test_a_grant_of_an_older_policy_does_not_count() -> None:
    """A stricter policy ends the grants of the one before it."""
    deployment = ApprovalDeployment(require=["act"])
    await granted(deployment.replica(), {"what": "a"}, uses=9)
    stricter = {"require": ["act"], "rules": [{"tools": ["act"], "approvals": 2}]}
    after = ApprovalDeployment(records=deployment.records, **stricter)

    assert failure_kind(await after.replica().call(what="a")) == "approval_pending"


async def test_a_revoked_grant_covers_no_call() -> None:
    """A revoked grant covers no further call at any replica."""
    deployment = ApprovalDeployment(require=["act"])
    replica, other = deployment.replica(), deployment.replica()
    await granted(replica, {"what": "b"}, uses=9, when="true")
    assert failure_kind(await other.call(what="a")) == ""
    [grant] = await other.service.granting.all(ACME)
    assert (grant.left, grant.caller.subject, grant.by.subject) == (8, "alice", "bob")

    with pytest.raises(Undecidable):
        await replica.service.revoke_grant(ACME, grant.id, a_caller(tenant_id="globex"))
    with pytest.raises(Undecidable, match="Only its giver"):
        await replica.service.revoke_grant(ACME, grant.id, ALICE)
    assert await replica.service.revoke_grant(ACME, grant.id, a_caller(subject="bob"))
    assert not await replica.service.revoke_grant(ACME, grant.id, Operator("root"))

    assert failure_kind(await other.call(what="a")) == "approval_pending"
    assert [
        change.kind for change in deployment.changes if isinstance(change.changed, ApprovalGrant)
    ] == [
        "granted",
        "grant_used",
        "grant_revoked",
    ]


REFUSED_GRANTS = {
    "no end": ({}, "Say until when"),
    "a past end": ({"until": 1.0}, "within 30 days"),
    "an end too far away": ({"until": 4e9}, "within 30 days"),
    "no calls": ({"uses": 0}, "1 to"),
    "no condition": ({"uses": 1, "when": "arguments."}, "condition cannot be used"),
}


@pytest.mark.parametrize(("scope", "expected_error"), REFUSED_GRANTS.values(), ids=REFUSED_GRANTS)
async def test_an_invalid_grant_is_refused(scope: dict[str, Any], expected_error: str) -> None:
    """The request is not approved, either."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()

    with pytest.raises(Undecidable, match=expected_error):
        await granted(replica, {"what": "a"}, **scope)
    assert len(await replica.service.waiting(ACME)) == 1
    assert await replica.service.granting.all(ACME) == []


FULL_QUOTAS = {
    "caller": ({"max_grants_per_caller_and_tool": 1}, r"caller already has 1 .*Revoke one"),
    "tenant": ({"max_grants_per_tenant": 1}, r"tenant already has 1 .*Revoke one"),
}


@pytest.mark.parametrize(("settings", "expected_error"), FULL_QUOTAS.values(), ids=FULL_QUOTAS)
async def test_a_grant_beyond_the_quota_is_refused(
    settings: dict[str, int], expected_error: str
) -> None:
    """The request still waits, and can be approved alone, or with a grant once another ended."""
    deployment = ApprovalDeployment(require=["act", "put"], **settings)
    replica, other = deployment.replica(), deployment.replica()
    await granted(replica, {"what": "a"}, uses=9)
    [first] = await other.service.granting.all(ACME)

    with pytest.raises(Undecidable, match=expected_error):
        await granted(other, {"what": "b"}, uses=9)
    [waiting] = await other.service.waiting(ACME)
    await other.service.approve(ACME, waiting.id, BOB)
    if "max_grants_per_tenant" not in settings:
        await granted(other, {"tool": "put", "what": "a"}, uses=9)
        await granted(other, {"caller": a_caller(subject="eve"), "what": "a"}, uses=9)
    assert await replica.service.revoke_grant(ACME, first.id, BOB)
    await granted(other, {"what": "c"}, uses=9)


async def test_grants_that_are_given_at_once_do_not_exceed_the_quota() -> None:
    """An approver whose grant comes too late reads that the call alone was approved."""
    deployment = ApprovalDeployment(require=["act"], max_grants_per_caller_and_tool=2)
    recorded: list[ApprovalChange] = []

    async def audit(change: ApprovalChange) -> None:
        recorded.append(change)

    replicas = [deployment.replica(audit=audit) for _ in range(6)]
    requests = [await replica.asked(what=f"{at}") for at, replica in enumerate(replicas)]

    given = await asyncio.gather(
        *(
            replica.service.approve(ACME, request.id, BOB, grant=GrantScope(uses=9))
            for replica, request in zip(replicas, requests, strict=True)
        ),
        return_exceptions=True,
    )

    grants = await replicas[0].service.granting.all(ACME)
    assert len(grants) == 2
    ids = {
        kind: {change.changed.id for change in recorded if change.kind == kind}
        for kind in ("granted", "void")
    }
    assert ids["granted"] - ids["void"] == {grant.id for grant in grants}
    late = [str(error) for error in given if isinstance(error, Undecidable)]
    assert len(late) == 4
    assert all("caller already has 2" in error for error in late)
    approved = 6 - len(await replicas[0].service.waiting(ACME))
    assert sum("The call is approved, without a grant" in error for error in late) == approved - 2


@pytest.mark.requirement("A7")
async def test_a_grant_that_cannot_be_recorded_is_not_given() -> None:
    """Not even between the two steps, if the process is killed there; the call is approved."""
    deployment = ApprovalDeployment(require=["act"])
    grants_while_recording: list[list[ApprovalGrant]] = []

    async def audit(change: ApprovalChange) -> None:
        if change.kind == "granted":
            grants_while_recording.append(await replica.service.granting.all(ACME))
            raise StoreUnavailable("the disk is full")

    replica = deployment.replica(audit=audit)
    with pytest.raises(StoreUnavailable):
        await granted(replica, {"what": "a"}, uses=9)

    assert grants_while_recording == [[]]
    assert await replica.service.granting.all(ACME) == []
    assert text_of(await replica.call(what="a")) == "a 0 1"
    assert failure_kind(await replica.call(what="a")) == "approval_pending"


async def test_a_call_that_needs_two_approvals_cannot_be_granted() -> None:
    """An edited call cannot be granted, either: the edit is for one call."""
    deployment = ApprovalDeployment(rules=[{"tools": ["act"], "approvals": 2}], require=["put"])
    replica = deployment.replica()
    with pytest.raises(Undecidable, match="Two people"):
        await granted(replica, {"what": "a"}, uses=1)
    request = await replica.asked("put", what="a")
    with pytest.raises(Undecidable, match="Edited"):
        await replica.service.approve(
            ACME, request.id, BOB, edited=b'{"what":"b"}', grant=GrantScope(uses=1)
        )


async def test_a_grant_does_not_outlive_a_revocation() -> None:
    """A caller that is revoked cannot call with a grant, either."""
    out: set[str] = set()
    deployment = ApprovalDeployment(require=["act"], revokes=lambda caller: caller.subject in out)
    replica = deployment.replica()
    await granted(replica, {"what": "b"}, uses=9, when="true")
    out.add(ALICE.subject)

    assert failure_kind(await replica.call(what="a")) == "denied"


async def test_a_revocation_keeps_later_requests_and_grants() -> None:
    """A starting server may read a revocation whose caller has signed in again since."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    await granted(replica, {"what": "a"}, uses=9)
    await replica.asked(what="old")
    deployment.clock.now += 20
    cut = RevocationRecord(
        id="1",
        tenant=ACME,
        subject="alice",
        before=deployment.clock.now,
        created_at=0.0,
        created_by="root",
    )
    deployment.clock.now += 100
    new = await replica.asked(what="new")
    await granted(replica, {"what": "b"}, uses=9)

    deployment.revokes = lambda caller: RevocationSnapshot([cut]).revokes(
        caller, deployment.clock.now
    )
    assert await withdraw(replica.service, [cut]) == 3
    assert [request.id for request in await replica.service.waiting(ACME)] == [new.id]
    [grant] = await replica.service.granting.all(ACME)
    assert b'"b"' in grant.arguments
