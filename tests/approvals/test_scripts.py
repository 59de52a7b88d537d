"""Scripts that wait for an administrator, in the inbox of the calls."""

import pytest

from gatepost.approvals.request import Operator, Undecidable
from gatepost.packs.scripts.approvals import SUBJECT, Approvals
from gatepost.packs.scripts.script import Script
from tests.approvals.bureau import ACME, BOB, Bureau
from tests.support.mcp import a_caller

ADMIN = a_caller(subject="ada", roles=frozenset({"admin"}))
OLD, NEW = (Script("report", text.encode(), "workspace") for text in ("x = 1\n", "x = 2\n"))


async def submitted(bureau: Bureau, script: Script = NEW, *, by: str = "alice") -> Approvals:
    """The scripts of the tenant, one of which somebody wanted to run."""
    entries = bureau.records.of(ACME).entries(SUBJECT)
    approvals = Approvals(entries, clock=bureau.clock)
    await approvals.submit([script], by=by, most=9)
    return approvals


@pytest.mark.requirement("P11")
async def test_a_script_waits_among_the_calls_and_runs_once_approved() -> None:
    """With its whole content, the approved one beside it, and whose call wanted it."""
    bureau = Bureau(require=["act"])
    replica = bureau.replica()
    call = await replica.asked(what="a")
    bureau.clock.now += 1
    approvals = await submitted(bureau, OLD)
    await approvals.approve(OLD, by="root")
    await approvals.submit([NEW], by="alice", most=9)

    first, script = await replica.desk.waiting(ACME)
    assert first.id == call.id
    assert (script.kind, script.tool, script.caller.subject) == ("script", "report.star", "alice")
    assert (script.content, script.approved_content) == ("x = 2\n", "x = 1\n")
    assert await replica.desk.get(ACME, script.id) == script

    decided = await replica.desk.approve(ACME, script.id, ADMIN, seen=script.digest)

    assert decided.state == "approved"
    assert await approvals.holds(NEW)
    assert not await approvals.holds(OLD)
    assert [one.id for one in await replica.desk.waiting(ACME)] == [call.id]
    assert bureau.told[-1].what == "approved"


@pytest.mark.requirement("P11")
async def test_who_may_not_decide_about_a_script() -> None:
    """Whoever wanted it, an approver who is no admin, another tenant's admin, a machine."""
    bureau = Bureau()
    replica = bureau.replica()
    approvals = await submitted(bureau)
    [script] = await replica.desk.waiting(ACME)
    admin = {"roles": frozenset({"admin"})}
    others = {
        "You submitted": a_caller(**admin),
        "the role admin": BOB,
        "no such request": a_caller(subject="ada", tenant_id="globex", **admin),
        "a machine": a_caller(subject="ada", subject_kind="client", **admin),
    }

    for why, who in others.items():
        with pytest.raises(Undecidable, match=why):
            await replica.desk.approve(ACME, script.id, who)
        with pytest.raises(Undecidable, match=why):
            await replica.desk.reject(ACME, script.id, who, "")
    assert not await approvals.holds(NEW)
    assert len(await replica.desk.waiting(ACME)) == 1


async def test_only_the_script_that_was_seen_is_approved() -> None:
    """A newer one of the same name is another request, and the one seen is gone."""
    bureau = Bureau()
    replica = bureau.replica()
    approvals = await submitted(bureau, OLD)
    [seen] = await replica.desk.waiting(ACME)
    await approvals.submit([NEW], by="alice", most=9)

    with pytest.raises(Undecidable, match="look at what waits now"):
        await replica.desk.approve(ACME, seen.id, ADMIN)
    assert not await approvals.holds(OLD)
    assert await replica.desk.get(ACME, seen.id) is None


async def test_a_rejected_script_waits_no_more() -> None:
    """The approved one stays approved."""
    bureau = Bureau()
    replica = bureau.replica()
    approvals = await submitted(bureau, OLD)
    await approvals.approve(OLD, by="root")
    await approvals.submit([NEW], by="alice", most=9)
    [script] = await replica.desk.waiting(ACME)

    rejected = await replica.desk.reject(ACME, script.id, Operator("root"), "Not tested.")

    assert (rejected.state, rejected.decisions[0].reason) == ("rejected", "Not tested.")
    assert await replica.desk.waiting(ACME) == []
    assert await approvals.holds(OLD)
