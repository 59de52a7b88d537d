"""Messages in the outbox are tried, delayed, taken over and given up, by any replica."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Unpack

import pytest

from gatepost import ToolFailure, background
from gatepost.policy.approvals.outbox_sender import AT_ONCE, LEASE_S, OutboxSender
from gatepost.policy.approvals.webhook import Webhook
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.outbox import OutboxMessage
from gatepost.storage.records import Records
from gatepost.tools.context.interfaces import OutboundReply, Sending
from tests.conftest import outbox_message
from tests.policy.approvals.test_webhook import PAGE, UNAVAILABLE_FAILURE, URL, change
from tests.support.endpoint import a_caller
from tests.support.measuring import ManualClock, capture_logs
from tests.support.runners import ACME, BOB, ApprovalDeployment, run_until

WITHIN_S = 30.0
ADMIN = a_caller(subject="ada", roles=frozenset({"admin"}))
SCRIPT = Script("report", b"x = 1\n", "workspace")


class OutboxReceiver:
    """Answers as it is told, in the end with 204; does so only while its gate is open."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = [*answers]
        self.ids: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.most = self._now = 0

    async def send(self, method: str, url: str, **options: Unpack[Sending]) -> OutboundReply:
        self.ids.append(options["headers"]["webhook-id"])
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await self.gate.wait()
        finally:
            self._now -= 1
        answer = self.answers.pop(0) if self.answers else 204
        if isinstance(answer, Exception):
            raise answer
        return OutboundReply(answer, {}, b"", False, url)

    async def hears(self) -> bool:
        """Tell whether any message has arrived."""
        return bool(self.ids)

    async def addresses(self, scheme: str, host: str, port: int) -> Sequence[str]:
        raise NotImplementedError


class OutboxSenders:
    """Replicas that share records, a receiver and a clock that is moved by hand."""

    def __init__(self, records: Records, *answers: int | ToolFailure) -> None:
        self.records, self.receiver = records, OutboxReceiver(*answers)
        self.clock = ManualClock()
        self.clock.now = 1_001.0

    def delivered_events(self) -> list[str]:
        """Return the event of each message that the receiver took, in order."""
        return [id_.split("_")[3] for id_ in self.receiver.ids]

    def replica(self, **settings: Any) -> OutboxSender:
        webhook = Webhook(lambda: self.receiver, clock=self.clock)
        webhook.apply(URL, bytes(32), PAGE)
        return OutboxSender(self.records, webhook, clock=self.clock, **settings)

    async def left(self) -> int:
        return (await self.records.tenant_data.count(ACME)).get("outbox_messages", 0)


async def send_due_messages(replica: OutboxSender) -> None:
    """Send every message that is due, and store the outcome of each."""
    await replica.send_due()
    await replica.finish(WITHIN_S)


DELIVERIES: dict[str, tuple[list[int | ToolFailure], list[float], str | None]] = {
    "taken at once": ([204], [0], None),
    "taken later": ([500, UNAVAILABLE_FAILURE, 301, 200], [0, 1, 6, 31], None),
    "never taken": ([500] * 9, [0, 1, 6, 31, 156], "500"),
    "gone for good": ([410, 200], [0], "410"),
}


@pytest.mark.parametrize(("answers", "times", "reason"), DELIVERIES.values(), ids=DELIVERIES)
async def test_a_message_is_retried_at_fixed_times(
    records: Records, answers: list[int | ToolFailure], times: list[float], reason: str | None
) -> None:
    """The times do not depend on the replica, and a restart does not change them."""
    outbox = OutboxSenders(records, *answers)
    await records.of(ACME).outbox.add(outbox_message())
    tried: list[float] = []
    with capture_logs() as logs:
        for second in range(200):
            outbox.clock.now = 1_001.0 + second
            before = len(outbox.receiver.ids)
            await send_due_messages(outbox.replica())
            tried += [float(second)] * (len(outbox.receiver.ids) - before)

    assert tried == times
    assert {*outbox.receiver.ids} == {"msg_a1_requested"}
    assert await outbox.left() == 0
    given_up = [event["reason"] for event in logs if event["event"] == "webhook_given_up"]
    assert given_up == ([] if reason is None else [reason])


async def test_another_process_sends_a_message_after_the_lease(records: Records) -> None:
    """The receiver recognizes a repeated message by its id."""
    outbox = OutboxSenders(records)
    await records.of(ACME).outbox.add(outbox_message())
    outbox.receiver.gate.clear()
    first, second = outbox.replica(finish_s=0.0), outbox.replica()
    async with first.running():
        await run_until(outbox.receiver.hears)
    outbox.receiver.gate.set()

    outbox.clock.now += LEASE_S - 0.1
    await send_due_messages(second)
    assert outbox.receiver.ids == ["msg_a1_requested"]
    outbox.clock.now += 0.1
    await send_due_messages(second)

    assert outbox.receiver.ids == ["msg_a1_requested"] * 2
    assert await outbox.left() == 0


async def test_a_message_that_crashes_every_sender_is_given_up() -> None:
    """An attempt counts when it begins, so a message that ends the process is given up."""
    outbox = OutboxSenders(MemoryRecords())
    await outbox.records.of(ACME).outbox.add(outbox_message())
    for number in range(5):
        at = outbox.clock.now
        [(_, taken)] = await outbox.records.lease_messages(at, at + LEASE_S, "gone", 1)
        assert taken.attempts == number + 1
        outbox.clock.now += LEASE_S

    with capture_logs() as logs:
        await send_due_messages(outbox.replica())

    assert outbox.receiver.ids == []
    assert await outbox.left() == 0
    assert [log["event"] for log in logs] == ["webhook_given_up"]


async def test_replicas_share_the_work(records: Records) -> None:
    """All replicas look at once, and each message is sent once; each takes a few at a time."""
    outbox = OutboxSenders(records)
    ids = [f"m{number:02}" for number in range(50)]
    for id_ in ids:
        await records.of(ACME).outbox.add(outbox_message(id=id_, ordering_key=id_))
    replicas = [outbox.replica(), outbox.replica()]
    async with asyncio.timeout(60):
        while await outbox.left():
            await asyncio.gather(*map(send_due_messages, replicas))

    assert Counter(outbox.receiver.ids) == dict.fromkeys(ids, 1)
    assert outbox.receiver.most <= AT_ONCE * len(replicas)


async def test_a_decision_is_sent_after_its_request(records: Records) -> None:
    """This holds if the request is retried; messages about others do not wait."""
    outbox = OutboxSenders(records, 500)
    replica = outbox.replica()
    messages = records.of(ACME).outbox
    await messages.add(outbox_message(id="asked"))
    await send_due_messages(replica)
    await messages.add(outbox_message(id="decided", sequence=1))
    await messages.add(outbox_message(id="other", ordering_key="a2"))
    await send_due_messages(replica)
    assert outbox.receiver.ids == ["asked", "other"]

    outbox.clock.now += 1.0
    await send_due_messages(replica)
    await send_due_messages(replica)

    assert outbox.receiver.ids == ["asked", "other", "asked", "decided"]


async def test_each_change_is_stored_with_its_webhook_message(records: Records) -> None:
    """Requests, decisions and expiries have one, if a webhook is configured."""
    deployment = ApprovalDeployment(records=records, require=["act"])
    silent = deployment.replica()
    await silent.asked(what="nobody is told")
    outbox = OutboxSenders(records)
    webhook = Webhook(lambda: outbox.receiver, clock=deployment.clock)
    deployment.message_of = webhook.message
    replica = deployment.replica()
    assert await outbox.left() == 0

    webhook.apply(URL, bytes(32), PAGE)
    no, yes, late = [(await replica.asked(what=what)).id for what in ("no", "yes", "late")]
    await replica.service.reject(ACME, no, BOB, "")
    await replica.service.approve(ACME, yes, BOB)
    deployment.clock.now += 301
    await replica.service.expire_due()
    outbox.clock.now = deployment.clock.now
    sender = outbox.replica()
    async with asyncio.timeout(60):
        while await outbox.left():
            await send_due_messages(sender)

    ids = [id_.removeprefix("msg_") for id_ in outbox.receiver.ids]
    for request, steps in (
        (no, ["requested", "rejected"]),
        (yes, ["requested", "approved", "expired"]),
        (late, ["requested", "expired"]),
    ):
        mine = [id_ for id_ in ids if id_.startswith(request)]
        assert mine == [f"{request}_{step}" for step in steps]


async def test_a_decision_about_a_script_is_sent() -> None:
    """The message is stored before the approver gets the answer."""
    deployment = ApprovalDeployment()
    outbox = OutboxSenders(deployment.records)
    sender = outbox.replica()
    replica = deployment.replica(sender)
    approvals = ScriptApprovals(
        deployment.records.of(ACME).entries(SUBJECT), clock=deployment.clock
    )
    await approvals.request([SCRIPT], caller=a_caller(subject="alice"), max_waiting=9)
    [waits] = await replica.service.waiting(ACME)

    await replica.service.approve(ACME, waits.id, ADMIN)

    assert await outbox.left() == 1
    await send_due_messages(sender)
    [message_id] = outbox.receiver.ids
    assert message_id.startswith(f"msg_{waits.id.replace(':', '_')}_approved")


async def test_decisions_about_a_script_are_sent_in_order(records: Records) -> None:
    """They come at one moment, and the last one comes from another replica."""
    deployment = ApprovalDeployment(records=records)
    outbox = OutboxSenders(records, 500)
    outbox.clock = deployment.clock
    senders = [outbox.replica() for _ in "12"]
    replicas = [deployment.replica(sender) for sender in senders]
    services = [replica.service for replica in replicas]
    approvals = ScriptApprovals(records.of(ACME).entries(SUBJECT), clock=deployment.clock)

    async def submitted() -> str:
        await approvals.request([SCRIPT], caller=a_caller(subject="alice"), max_waiting=9)
        [waits] = await services[0].waiting(ACME)
        return waits.id

    await services[0].reject(ACME, await submitted(), ADMIN, "")
    await send_due_messages(senders[0])
    await services[0].approve(ACME, f"script:{SCRIPT.digest}", ADMIN)
    await replicas[0].scripts.revoke(ACME, SCRIPT.name, ADMIN)
    await submitted()
    deployment.revokes = lambda caller: caller.subject == "alice"
    assert await services[0].withdraw(ACME) == 1
    deployment.revokes = lambda caller: False
    await send_due_messages(senders[1])
    assert outbox.delivered_events() == ["rejected"]  # those after it wait for it

    deployment.clock.now += 1.0
    await services[1].approve(ACME, await submitted(), ADMIN)
    async with asyncio.timeout(60):
        while await outbox.left():
            await asyncio.gather(*map(send_due_messages, senders))

    assert outbox.delivered_events() == [
        "rejected",
        "rejected",
        "approved",
        "revoked",
        "withdrawn",
        "approved",
    ]


class InterruptibleRecords(MemoryRecords):
    """Records that do not answer while `cut` is set."""

    cut = True
    asked = 0
    error: Exception = StoreUnavailable("the cable is cut")

    async def lease_messages(
        self, now: float, until: float, holder: str, most: int
    ) -> list[tuple[str, OutboxMessage]]:
        self.asked += 1
        if self.cut:
            raise self.error
        return await super().lease_messages(now, until, holder, most)


async def outage_result(
    cut: InterruptibleRecords, *, times: int
) -> tuple[Sequence[Any], list[str]]:
    """Return what is logged while more than *times* polls fail, and what is sent afterwards."""
    outbox = OutboxSenders(cut)
    await cut.of(ACME).outbox.add(outbox_message())

    async def tried() -> bool:
        return cut.asked > times

    async def sent() -> bool:
        return not await outbox.left()

    with capture_logs() as logs:
        async with outbox.replica().running():
            await run_until(tried)
            cut.cut = False
            await run_until(sent)
    return logs, outbox.receiver.ids


async def test_an_outage_is_logged_once_and_the_message_is_sent_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log says once that the database does not answer; later the delayed message is sent."""
    monkeypatch.setattr("gatepost.policy.approvals.outbox_sender.POLL_S", 0.01)
    logs, ids = await outage_result(InterruptibleRecords(), times=3)

    assert [log["event"] for log in logs] == ["webhook_held_up"]
    assert ids == ["msg_a1_requested"]


async def test_polling_continues_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error of a poll is logged by its type only, as its text may hold a secret."""
    monkeypatch.setattr(background, "PAUSE_S", 0.01)
    cut = InterruptibleRecords()
    cut.error = RuntimeError("secret-4711")
    logs, _ = await outage_result(cut, times=1)

    assert {(event["event"], event["background_task"], event["error"]) for event in logs} == {
        ("background_task_ended", "webhook", "RuntimeError")
    }
    assert "4711" not in str(logs)


async def test_a_message_that_cannot_be_sent_is_logged_and_given_up() -> None:
    """An unexpected error while sending delays no other message, and the retries end."""
    outbox = OutboxSenders(MemoryRecords())
    outbox.receiver.answers = [RuntimeError("secret-4711")] * 5
    await outbox.records.of(ACME).outbox.add(outbox_message())
    replica = outbox.replica()
    with capture_logs() as logs:
        for _ in range(6):
            await send_due_messages(replica)
            outbox.clock.now += LEASE_S

    events = [log["event"] for log in logs]
    assert events == ["webhook_not_tried"] * 5 + ["webhook_given_up"]
    assert {event["error"] for event in logs[:5]} == {"RuntimeError"}
    assert "4711" not in str(logs)
    assert await outbox.left() == 0


async def test_a_change_does_not_wait_for_the_receiver() -> None:
    """A receiver that hangs holds up neither who makes a change nor the end of the process."""
    outbox = OutboxSenders(MemoryRecords())
    outbox.receiver.gate.clear()
    replica = outbox.replica(finish_s=0.01)
    async with asyncio.timeout(10), replica.running():
        await outbox.records.of(ACME).outbox.add(outbox_message())
        await replica(change("requested"))
        await run_until(outbox.receiver.hears)

    assert await outbox.left() == 1


async def test_the_oldest_unsent_messages_beyond_the_limit_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receiver that is away for long must not fill the database; a line says which."""
    monkeypatch.setattr("gatepost.policy.approvals.outbox_sender.MAX_UNSENT", 3)
    outbox = OutboxSenders(MemoryRecords())
    replica = outbox.replica()
    for number in range(5):
        message = outbox_message(
            id=f"m{number}", ordering_key=f"a{number}", created_at=float(number)
        )
        await outbox.records.of(ACME).outbox.add(message)
        await replica(change("requested"))

    with capture_logs() as logs:
        await send_due_messages(replica)

    assert sorted(outbox.receiver.ids) == ["m2", "m3", "m4"]
    assert sorted(event["webhook_id"] for event in logs) == ["m0", "m1"]
    assert replica.counts == {"taken": 3, "given_up": 0, "dropped": 2}
    assert {event["event"] for event in logs} == {"webhook_dropped"}
