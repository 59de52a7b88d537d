"""Who may decide, and what a decision may be."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from gatepost.policy.approvals.approval_request import (
    ApprovalRequest,
    Approver,
    GrantScope,
    Operator,
    Undecidable,
)
from gatepost_authz.caller import TenantContext
from tests.support.endpoint import a_caller
from tests.support.runners import (
    ACME,
    BOB,
    CAROL,
    ROBOT,
    ApprovalDeployment,
    ApprovalReplica,
    failure_kind,
    text_of,
)

APPROVER = frozenset({"approver"})
OPERATOR = Operator("root")


def with_role(**changes: Any) -> TenantContext:
    return a_caller(roles=APPROVER, **changes)


REFUSED_APPROVERS: dict[str, tuple[Approver, str]] = {
    "the caller": (with_role(), "your own call"),
    "the caller by another client": (with_role(client_id="other"), "your own call"),
    "the caller with a fresh token": (with_role(token_id="t2", session_id="s2"), "your own call"),
    "somebody without the role": (a_caller(subject="dan"), "it needs the role approver"),
    "an admin who is no approver": (
        a_caller(subject="dan", roles=frozenset({"admin"})),
        "it needs the role approver",
    ),
    "a machine": (with_role(subject="robot", subject_kind="client"), "this is a machine"),
    "an agent that acts for an approver": (
        with_role(subject="dan", actor="agent"),
        "another party acts for this one",
    ),
    "another tenant's approver": (with_role(subject="dan", tenant_id="globex"), "no such request"),
}


@pytest.mark.requirement("A7")
@pytest.mark.parametrize(("approver", "reason"), REFUSED_APPROVERS.values(), ids=REFUSED_APPROVERS)
async def test_an_unfit_approver_can_neither_approve_nor_reject(
    approver: Approver, reason: str
) -> None:
    """The request still waits."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked(what="a")

    with pytest.raises(Undecidable, match=reason):
        await replica.service.approve(ACME, request.id, approver)
    with pytest.raises(Undecidable, match=reason):
        await replica.service.reject(ACME, request.id, approver, "no")

    assert [request.id for request in await replica.service.waiting(ACME)] == [request.id]
    if reason != "no such request":
        objection = replica.service.objection(request, approver)
        assert objection is not None
        assert reason in objection


ACCEPTED_APPROVERS: dict[str, tuple[Approver, list[str]]] = {
    "an approver": (BOB, []),
    "the operator": (OPERATOR, []),
    "the operator, where others are named": (OPERATOR, ["role:boss"]),
    "somebody with the rule's role": (a_caller(subject="d", roles={"boss"}), ["role:boss"]),
    "the person whom a rule names": (
        a_caller(subject="dan"),
        ["role:boss", "subject:https://id.example.com dan"],
    ),
    "the same id at another issuer": (with_role(issuer="https://other.example"), []),
}


@pytest.mark.parametrize(("approver", "by"), ACCEPTED_APPROVERS.values(), ids=ACCEPTED_APPROVERS)
async def test_a_fit_approver_can_approve(approver: Approver, by: list[str]) -> None:
    """An approver has the role, is named by a rule, or is the operator of the server."""
    deployment = ApprovalDeployment(rules=[{"tools": ["act"], "by": by}])
    replica = deployment.replica()
    request = await replica.asked(what="a")

    assert replica.service.objection(request, approver) is None
    approved = await replica.service.approve(ACME, request.id, approver)

    assert approved.state == "approved"
    assert text_of(await replica.call(what="a")) == "a 0 1"


async def test_an_approver_must_satisfy_every_matching_rule() -> None:
    """Two rules name different people: one of each is needed in one person."""
    rules = [{"tools": ["act"], "by": ["role:a"]}, {"tools": ["act"], "by": ["role:b"]}]
    deployment = ApprovalDeployment(rules=rules)
    replica = deployment.replica()
    request = await replica.asked(what="a")

    with pytest.raises(Undecidable, match="the role a and also the role b"):
        await replica.service.approve(ACME, request.id, a_caller(subject="d", roles={"a"}))
    await replica.service.approve(ACME, request.id, a_caller(subject="d", roles={"a", "b"}))


TWO_APPROVALS = {"rules": [{"tools": ["act"], "approvals": 2}]}


@pytest.mark.requirement("A7")
async def test_two_approvals_need_two_different_people() -> None:
    """
    The first approval is stored, a second one of the same person does not count, another's does.
    """
    deployment = ApprovalDeployment(**TWO_APPROVALS)
    replica = deployment.replica()
    request = await replica.asked(what="a")

    first = await replica.service.approve(ACME, request.id, BOB)
    assert (first.state, first.approvals_given, first.needed) == ("waiting", 1, 2)
    with pytest.raises(Undecidable, match="already approved it"):
        await replica.service.approve(ACME, request.id, BOB)
    assert failure_kind(await replica.call(what="a")) == "approval_pending"
    await replica.service.approve(ACME, request.id, CAROL)

    assert text_of(await replica.call(what="a")) == "a 0 1"


async def test_a_second_approver_can_still_reject() -> None:
    """The first approver's approval does not prevent a rejection by the second."""
    deployment = ApprovalDeployment(**TWO_APPROVALS)
    replica = deployment.replica()
    request = await replica.asked(what="a")
    await replica.service.approve(ACME, request.id, BOB)

    await replica.service.reject(ACME, request.id, CAROL, "")

    assert failure_kind(await replica.call(what="a")) == "denied"


async def test_decisions_at_the_command_line_count_as_one_person() -> None:
    """Names on a machine are easily taken."""
    deployment = ApprovalDeployment(**TWO_APPROVALS)
    replica = deployment.replica()
    request = await replica.asked(what="a")
    await replica.service.approve(ACME, request.id, OPERATOR)

    with pytest.raises(Undecidable, match="second person has to sign in"):
        await replica.service.approve(ACME, request.id, Operator("admin"))
    await replica.service.approve(ACME, request.id, BOB)


async def test_one_of_many_concurrent_decisions_counts() -> None:
    """One decision counts at several replicas; the other approvers learn that it is decided."""
    deployment = ApprovalDeployment(require=["act"])
    replicas = [deployment.replica() for _ in range(4)]
    request = await replicas[0].asked(what="a")

    async def decide(at: int) -> bool:
        service = replicas[at % 4].service
        try:
            if at % 2:
                await service.approve(ACME, request.id, BOB)
            else:
                await service.reject(ACME, request.id, CAROL, "")
        except Undecidable:
            return False
        return True

    assert sum(await asyncio.gather(*map(decide, range(12)))) == 1
    decided = await replicas[0].service.get(ACME, request.id)
    assert decided is not None
    assert len(decided.decisions) == 1


@pytest.mark.parametrize("end", ["approve", "reject", "expire", "use", "withdraw"])
async def test_a_decided_or_ended_request_cannot_be_decided(end: str) -> None:
    """A late approval changes nothing."""
    deployment = ApprovalDeployment(require=["act"], timeout_s=60)
    replica = deployment.replica()
    service = replica.service
    request = await replica.asked(what="a")
    if end in {"approve", "use"}:
        await service.approve(ACME, request.id, BOB)
    if end == "use":
        await replica.call(what="a")
    elif end == "reject":
        await service.reject(ACME, request.id, BOB, "")
    elif end == "expire":
        deployment.clock.now += 60
    elif end == "withdraw":
        deployment.revokes = lambda caller: caller.subject == "alice"
        assert await service.withdraw(ACME) == 1

    with pytest.raises(Undecidable):
        await service.approve(ACME, request.id, CAROL)
    with pytest.raises(Undecidable):
        await service.reject(ACME, request.id, CAROL, "")


async def edit(
    replica: ApprovalReplica, request: ApprovalRequest, **arguments: Any
) -> ApprovalRequest:
    return await replica.service.approve(
        ACME, request.id, BOB, edited=json.dumps(arguments).encode()
    )


@pytest.mark.requirement("A7")
async def test_a_call_runs_with_the_arguments_that_an_approver_edited() -> None:
    """The agent gets the edited arguments; the approval stays that of the original call."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked(what="a", amount=5)

    approved = await edit(replica, request, what="a", amount=2)

    assert approved.edited == b'{"what":"a","amount":2}'
    assert approved.decisions[0].edited
    first, note = text_of(await replica.call(what="a", amount=5)).split("\n")
    assert first == "a 2 1"
    assert note == "A person approved this call with other arguments. It was run with: " + (
        '{"what":"a","amount":2}'
    )
    assert failure_kind(await replica.call(what="a", amount=2)) == "approval_pending"


async def test_an_edit_that_changes_nothing_is_no_edit() -> None:
    """The order of members and white space do not matter."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked(what="a", amount=5)

    approved = await edit(replica, request, amount=5, what="a")

    assert approved.edited is None
    assert text_of(await replica.call(what="a", amount=5)) == "a 5 1"


BAD_EDITS = {
    "not JSON": (b"{", "not JSON"),
    "no object": (b"[1]", "not a JSON object"),
    "not what the tool takes": (b'{"amount": "much"}', "does not take these"),
    "an unknown name": (b'{"whom": "a"}', "does not take these"),
}


@pytest.mark.parametrize(("edited", "reason"), BAD_EDITS.values(), ids=BAD_EDITS)
async def test_an_edit_that_cannot_run_is_refused(edited: bytes, reason: str) -> None:
    """The approver who made the edit gets the error at once."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    request = await replica.asked(what="a")

    with pytest.raises(Undecidable, match=reason):
        await replica.service.approve(ACME, request.id, BOB, edited=edited)
    assert len(await replica.service.waiting(ACME)) == 1


async def test_a_second_approver_approves_the_edit_of_the_first() -> None:
    """The digest must be that of the edit, and a second edit is refused."""
    deployment = ApprovalDeployment(**TWO_APPROVALS)
    replica = deployment.replica()
    request = await replica.asked(what="a", amount=5)
    first = await edit(replica, request, what="a", amount=2)
    assert first.digest != request.digest

    with pytest.raises(Undecidable, match="not what you saw"):
        await replica.service.approve(ACME, request.id, CAROL, seen_digest=request.digest)
    with pytest.raises(Undecidable, match="approved the original arguments"):
        await replica.service.approve(ACME, request.id, CAROL, edited=b'{"what": "b"}')
    await replica.service.approve(ACME, request.id, CAROL, seen_digest=first.digest)

    assert text_of(await replica.call(what="a", amount=5)).startswith("a 2 1")


async def test_an_edit_neither_shows_nor_changes_a_secret() -> None:
    """The redacted value stays in its place; text around it is refused."""
    deployment = ApprovalDeployment(require=["whisper"])
    replica = deployment.replica()
    request = await replica.asked("whisper", what="a", password="hunter2hunter2")

    arguments = json.loads(request.arguments)
    assert arguments["password"] == "[REDACTED:PASSWORD]"
    record = await deployment.records.for_tenant(ACME).approvals.get(request.id)
    assert record is not None
    assert b"hunter2" not in msgspec.msgpack.encode(record)

    with pytest.raises(Undecidable, match="Part of password is withheld"):
        await edit(replica, request, what="b", password="x[REDACTED:PASSWORD]")
    approved = await edit(replica, request, **{**arguments, "what": "b"})

    assert b"hunter2" not in (approved.edited or b"")
    outcome = await replica.call("whisper", what="a", password="hunter2hunter2")
    assert deployment.effects["b"] == 1
    assert "hunter2" not in text_of(outcome)


async def test_the_arguments_are_deleted_when_the_request_ends() -> None:
    """After use, rejection, expiry or withdrawal only the shown arguments are left."""
    deployment = ApprovalDeployment(require=["act"], timeout_s=60)
    replica = deployment.replica()
    service = replica.service
    ids = [(await replica.asked(what=what)).id for what in "abcd"]
    await service.approve(ACME, ids[0], BOB)
    await replica.call(what="a")
    await service.reject(ACME, ids[1], BOB, "")
    withdrawn = await replica.asked(what="e", caller=a_caller(subject="fay"))
    deployment.revokes = lambda caller: caller.subject == "fay"
    assert await service.withdraw(ACME) == 1
    ids.append(withdrawn.id)
    deployment.clock.now += 60
    await service.expire_due()

    for request_id in ids:
        record = await deployment.records.for_tenant(ACME).approvals.get(request_id)
        assert record is not None
        assert record.sealed is None
    assert sorted(request.state for request in await service.history(ACME)) == [
        "expired",
        "expired",
        "rejected",
        "used",
        "withdrawn",
    ]


async def test_a_revocation_withdraws_the_approvals_it_names() -> None:
    """This covers waiting requests, approvals and grants."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    service = replica.service
    mine = await replica.asked(what="a")
    await replica.asked(what="b")
    await replica.asked(what="c", caller=a_caller(subject="eve"))
    scope = GrantScope(uses=5)
    await service.approve(ACME, mine.id, BOB, grant=scope)

    deployment.revokes = lambda caller: caller.subject == "alice"
    assert await service.withdraw(ACME) == 3

    assert await service.granting.all(ACME) == []
    [remaining] = await service.waiting(ACME)
    assert remaining.caller.subject == "eve"
    deployment.revokes = lambda caller: False
    assert failure_kind(await replica.call(what="a")) == "approval_pending"


async def test_a_machines_call_is_decided_by_the_approvers_of_a_rule() -> None:
    """The usual role does not allow a decision."""
    deployment = ApprovalDeployment(
        require=["act"], rules=[{"tools": ["act"], "by": ["role:robots"]}]
    )
    replica = deployment.replica()
    request = await replica.asked(caller=ROBOT, what="a")

    with pytest.raises(Undecidable, match="the role robots"):
        await replica.service.approve(ACME, request.id, BOB)
    robot_approver = a_caller(subject="robot", roles=frozenset({"robots"}))
    await replica.service.approve(ACME, request.id, robot_approver)
    assert text_of(await replica.call(caller=ROBOT, what="a")) == "a 0 1"


async def test_the_history_has_pages() -> None:
    """A page begins after the last entry of the page before."""
    deployment = ApprovalDeployment(require=["act"])
    replica = deployment.replica()
    for number in range(5):
        request = await replica.asked(what=f"{number}")
        deployment.clock.now += 1
        await replica.service.reject(ACME, request.id, BOB, "")
    first = await replica.service.history(ACME, max_requests=3)
    rest = await replica.service.history(ACME, before=first[-1], max_requests=3)

    names = [json.loads(request.arguments)["what"] for request in (*first, *rest)]
    assert names == ["4", "3", "2", "1", "0"]


async def test_a_comment_may_have_only_visible_characters() -> None:
    """Tags and marks of direction could hide instructions; a terminal may send other bytes."""
    replica = ApprovalDeployment(require=["act"]).replica()
    request = await replica.asked(what="a")

    with pytest.raises(Undecidable, match="UTF-8"):
        await replica.service.approve(ACME, request.id, BOB, reason="f\udcfcr heute")
    hidden = "Für\u202e heute.\U000e0041\U000e0042\u200b"
    approved = await replica.service.approve(ACME, request.id, BOB, reason=hidden)

    assert approved.decisions[-1].reason == "Für heute."
