"""Decisions about scripts, on every backend, apply to exactly that content."""

import asyncio

import msgspec
import pytest

from gatepost.policy.approvals.approval_request import ERASED, DisplayedParty
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import (
    APPROVED_PREFIX,
    MAX_REJECTED,
    REJECTED_PREFIX,
    SUBJECT,
    WAITING_PREFIX,
    ScriptApprovals,
)
from gatepost.storage.records import Records
from tests.support.endpoint import a_caller
from tests.support.measuring import ManualClock

pytestmark = pytest.mark.requirement("P11")

ADA = DisplayedParty(subject="ada-1", issuer="https://id.example.com", name="Ada L.")
ROOT = DisplayedParty(subject="root", kind="operator")
STANDS_S = 1_000.0
WAGES_SCRIPT = Script("wages", b"1", "workspace")
FIRST_SCRIPT, OTHER_SCRIPT = (
    Script("report", text.encode(), "workspace") for text in ("x = 1\n", "x = 2\n")
)


class ScriptReplicas:
    """One tenant's scripts, as two replicas see them; time is moved by hand."""

    def __init__(
        self, records: Records, tenant: str = "acme", clock: ManualClock | None = None
    ) -> None:
        self.clock = clock or ManualClock()
        self.entries = records.for_tenant(tenant).entries(SUBJECT)
        self.here, self.there = (ScriptApprovals(self.entries, clock=self.clock) for _ in range(2))

    async def submit(self, *scripts: Script, by: str = "alice") -> list[str]:
        """Submit at one replica; return the contents that wait then at the other."""
        caller = a_caller(subject=by, issuer=ADA.issuer)
        await self.here.request(scripts, caller=caller, max_waiting=9)
        return [script.content for script in await self.there.waiting()]

    async def reject(self, script: Script, by: DisplayedParty = ADA, reason: str = "No.") -> bool:
        """Reject the waiting script."""
        [review] = [
            waiting for waiting in await self.here.waiting() if waiting.digest == script.digest
        ]
        until = self.clock() + STANDS_S
        return await self.here.reject(review, by=by, reason=reason, until=until)


async def test_a_rejected_script_does_not_wait_again(records: Records) -> None:
    """This holds at any replica, which also shows who rejected it, why, and the content."""
    replicas = ScriptReplicas(records)
    await replicas.submit(FIRST_SCRIPT)

    assert await replicas.reject(FIRST_SCRIPT, reason="Not tested.")
    assert await replicas.submit(FIRST_SCRIPT, by="bob") == []
    rejection = await replicas.there.rejection(FIRST_SCRIPT)
    assert rejection is not None
    assert (rejection.by, rejection.reason, rejection.review.content) == (
        ADA,
        "Not tested.",
        "x = 1\n",
    )
    assert await replicas.there.rejected() == [rejection]


async def test_a_rejection_applies_to_one_content_name_and_tenant(records: Records) -> None:
    """Changed content, another name or another tenant still waits for approval."""
    replicas, elsewhere = ScriptReplicas(records), ScriptReplicas(records, "globex")
    await replicas.submit(FIRST_SCRIPT)
    await replicas.reject(FIRST_SCRIPT)
    renamed = Script("summary", FIRST_SCRIPT.content, "workspace")

    assert await replicas.submit(FIRST_SCRIPT, OTHER_SCRIPT) == ["x = 2\n"]
    assert sorted(await replicas.submit(renamed)) == ["x = 1\n", "x = 2\n"]
    assert await elsewhere.submit(FIRST_SCRIPT) == ["x = 1\n"]
    assert await elsewhere.there.rejected() == []


async def test_rejections_of_different_contents_are_kept_side_by_side(records: Records) -> None:
    """An agent that alternates between two contents causes no second request for either."""
    replicas = ScriptReplicas(records)
    for script in (FIRST_SCRIPT, OTHER_SCRIPT):
        await replicas.submit(script)
        await replicas.reject(script)

    assert await replicas.submit(FIRST_SCRIPT) == await replicas.submit(OTHER_SCRIPT) == []


async def test_an_approval_ends_a_rejection(records: Records) -> None:
    """The script runs, and a later change of it does not count as rejected."""
    replicas = ScriptReplicas(records)
    await replicas.submit(FIRST_SCRIPT)
    await replicas.reject(FIRST_SCRIPT)
    await replicas.there.approve(FIRST_SCRIPT, by=ADA)

    assert await replicas.here.is_approved(FIRST_SCRIPT)
    assert await replicas.here.rejection(FIRST_SCRIPT) is None
    await replicas.here.approve(OTHER_SCRIPT, by=ADA)
    assert await replicas.submit(FIRST_SCRIPT) == ["x = 1\n"]


async def test_a_rejection_expires(records: Records) -> None:
    """Then the content may wait again, and the name of the approver is gone."""
    replicas = ScriptReplicas(records)
    await replicas.submit(FIRST_SCRIPT)
    await replicas.reject(FIRST_SCRIPT)
    replicas.clock.now += STANDS_S

    assert await replicas.there.rejection(FIRST_SCRIPT) is None
    assert await replicas.submit(FIRST_SCRIPT) == ["x = 1\n"]
    assert await replicas.there.remove_expired() == 1
    assert [key.key for key in await replicas.entries.all()] == [
        WAITING_PREFIX + FIRST_SCRIPT.digest
    ]
    assert await replicas.reject(FIRST_SCRIPT, ROOT)
    assert [script.by for script in await replicas.there.rejected()] == [ROOT]


async def test_the_number_of_rejections_is_bounded(records: Records) -> None:
    """The oldest are dropped, so that an agent cannot fill the store."""
    replicas = ScriptReplicas(records)
    scripts = [Script("report", b"%d" % number, "code") for number in range(MAX_REJECTED + 2)]
    for script in scripts:
        replicas.clock.now += 1
        await replicas.submit(script)
        assert await replicas.reject(script)
    digests = [script.review.digest for script in await replicas.there.rejected()]

    assert digests == [script.digest for script in reversed(scripts[2:])]


async def test_one_of_two_concurrent_rejections_counts(records: Records) -> None:
    """The second approver gets an error, and the first reason stays."""
    replicas = ScriptReplicas(records)
    await replicas.submit(FIRST_SCRIPT)
    [review] = await replicas.here.waiting()
    rejecting = [
        replica.reject(review, by=by, reason=by.subject, until=replicas.clock() + STANDS_S)
        for replica, by in ((replicas.here, ADA), (replicas.there, ROOT))
    ]
    done = await asyncio.gather(*rejecting)

    assert sorted(done) == [False, True]
    [rejected] = await replicas.here.rejected()
    assert rejected.reason == (ADA if done[0] else ROOT).subject
    assert await replicas.submit(FIRST_SCRIPT) == []


async def test_an_approval_wins_over_a_later_rejection(records: Records) -> None:
    """An approver who rejects it at that moment gets an error, and it is not listed as rejected."""
    replicas = ScriptReplicas(records)
    await replicas.submit(FIRST_SCRIPT)
    [review] = await replicas.here.waiting()
    await replicas.there.approve(FIRST_SCRIPT, by=ROOT)

    until = replicas.clock() + STANDS_S
    assert not await replicas.here.reject(review, by=ADA, reason="", until=until)
    assert await replicas.here.rejected() == []
    assert await replicas.here.is_approved(FIRST_SCRIPT)


async def test_a_concurrent_call_does_not_make_a_rejected_script_wait_again(
    records: Records,
) -> None:
    """The call had not seen the rejection when it stored its request."""
    replicas = ScriptReplicas(records)
    await replicas.submit(FIRST_SCRIPT)
    [waits] = await replicas.entries.all()
    await replicas.reject(FIRST_SCRIPT)
    await replicas.entries.put(waits.key, waits.value, now=replicas.clock(), revision=0)

    assert await replicas.there.waiting() == []


async def test_an_erased_person_is_removed_from_their_rejections(records: Records) -> None:
    """The script stays rejected without name and reason; scripts they submitted are removed."""
    replicas = ScriptReplicas(records)
    await replicas.submit(FIRST_SCRIPT)
    await replicas.reject(FIRST_SCRIPT)
    await replicas.submit(OTHER_SCRIPT, by="ada-1")
    third = Script("third", b"3", "code")
    await replicas.submit(third, by="ada-1")
    await replicas.reject(third, ROOT, "Secret of root.")

    assert await replicas.here.erase("https://other.example.com", ADA.subject) == 0
    assert await replicas.here.erase(ADA.issuer, ADA.subject) == 3
    assert await replicas.there.waiting() == []
    named_rejections = {script.review.name: script for script in await replicas.there.rejected()}
    assert (named_rejections["report"].by.display_name, named_rejections["report"].reason) == (
        "an administrator",
        "",
    )
    assert (named_rejections["third"].by, named_rejections["third"].review.caller) == (ROOT, ERASED)
    assert b"Ada" not in b"".join(entry.value for entry in await replicas.entries.all())
    assert b"ada-1" not in b"".join(entry.value for entry in await replicas.entries.all())
    assert {entry.key.partition(":")[0] + ":" for entry in await replicas.entries.all()} == {
        REJECTED_PREFIX
    }


async def test_an_erased_person_is_removed_from_their_approvals(records: Records) -> None:
    """The script stays approved; approvals of others keep their names."""
    replicas = ScriptReplicas(records)
    namesake = msgspec.structs.replace(ADA, issuer="https://other.example.com")
    for script, by in (
        (FIRST_SCRIPT, ADA),
        (Script("s", b"1", "code"), namesake),
        (WAGES_SCRIPT, ROOT),
    ):
        await replicas.here.approve(script, by=by)
    approved = await replicas.there.all_approved()
    assert [script.approver for script in approved] == [ADA, namesake, ROOT]

    assert await replicas.here.erase(ADA.issuer, ADA.subject) == 1
    approved = await replicas.here.all_approved()
    names = {script.name: script.approver and script.approver.display_name for script in approved}
    assert names == {"report": "an administrator", "s": "Ada L.", "wages": "root"}
    assert await replicas.here.is_approved(FIRST_SCRIPT)
    [remaining] = [
        entry.value
        for entry in await replicas.entries.all()
        if entry.key == APPROVED_PREFIX + "report"
    ]
    assert b"Ada" not in remaining
    assert b"ada-1" not in remaining
    assert b"id.example.com" not in remaining
    assert await replicas.here.erase(ADA.issuer, ADA.subject) == 0
