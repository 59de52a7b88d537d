"""What happens while nothing can be put on record, and what is on record afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest

from gatepost import background
from gatepost.audit import batches as batches_module
from gatepost.audit import writer as writer_module
from gatepost.audit.batches import Listener
from gatepost.audit.events import RECORDED_PER_KIND
from gatepost.audit.record import search
from gatepost.audit.writer import AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import (
    AuditQuery,
    AuditStore,
    ChainHead,
    Checkpoint,
    Link,
    RecordsByChain,
    Sign,
    TenantAuditLog,
)
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.registry import Registry, Unknown
from gatepost.tools.calls.runner import Runner
from gatepost.tools.calls.stage import Recorder
from gatepost.tools.offers.offer import Call, CallContext, Failure, Outcome
from gatepost.workspace import TenantWorkspace
from tests.audit.conftest import pack, person

SOON_S = 10


def call_context(call: Call) -> CallContext:
    workspace = cast("TenantWorkspace", None)
    return CallContext(caller=call.caller, request_id=call.request_id, workspace=workspace)


class FailingStore:
    """An audit store whose database can be away, or lose its acknowledgement."""

    def __init__(self, store: AuditStore) -> None:
        self._store = store
        self.away = False
        self.silent = False
        self.breaks = False
        self.gate: asyncio.Event | None = None
        self.waits = False
        """Whether an attempt waits at the gate."""

    is_failing = False

    def tenant_log(self, tenant: str) -> TenantAuditLog:
        return self._store.tenant_log(tenant)

    async def link_pending(self) -> None:
        await self._store.link_pending()

    async def write(self, batch: RecordsByChain, link: Link) -> None:
        if self.gate is not None:
            self.waits = True
            await self.gate.wait()
        if self.away:
            raise StoreUnavailable("away")
        if self.breaks:
            self.breaks = False
            raise RuntimeError("an unexpected error")
        await self._store.write(batch, link)
        if self.silent:
            self.silent = False
            raise StoreUnavailable("lost")

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        return await self._store.sign(tenants, sign)

    async def heads(
        self, after: str, limit: int, *, unsigned: str | None = None
    ) -> dict[str, list[ChainHead]]:
        return await self._store.heads(after, limit, unsigned=unsigned)

    async def tenants(self) -> list[str]:
        return await self._store.tenants()


class AuditedRunner:
    """A runner whose calls are recorded in a database that may be away."""

    def __init__(self, listener: Listener | None = None, **settings: Any) -> None:
        self.records = MemoryRecords()
        self.store = FailingStore(self.records.open_audit(None))
        self.records.open_audit = lambda _: self.store  # type: ignore[assignment,method-assign,return-value]  # it stands in
        chosen = AuditSettings(batch_ms=0, **settings)
        self.writer = AuditWriter(
            self.records, KeyRing.ephemeral(), Redaction(), chosen, listener=listener
        )
        recorder: Recorder = self.writer
        self.runner = Runner(
            Registry([*pack.tools.values()]), context_for=call_context, recorder=recorder
        )

    async def call(self, text: str = "x", tool: str = "write") -> Outcome:
        arguments = b'{"text":"%b"}' % text.encode() if tool == "write" else b"{}"
        call = Call(caller=person("alice"), name=tool, arguments=arguments, request_id=text)
        return await asyncio.wait_for(self.runner.run(call), SOON_S)

    async def recorded_kinds(self) -> list[tuple[str, str]]:
        """Return kind and request of all records, the oldest first."""
        records = await search(self.store, "acme", AuditQuery(limit=100))
        return [(record.kind, record.request_id) for record in reversed(records)]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SOON_S):
            while not condition():
                await asyncio.to_thread(int)


@pytest.fixture(autouse=True)
def immediate_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the writer try again without a pause."""
    monkeypatch.setattr(writer_module, "RETRY_S", 0)


@pytest.fixture
async def audited() -> AsyncIterator[AuditedRunner]:
    runner = AuditedRunner()
    yield runner
    await runner.writer.aclose()


@pytest.mark.requirement("AU8")
async def test_an_event_during_an_outage_is_written_after_the_delayed_batch(
    audited: AuditedRunner,
) -> None:
    """The event waits for its own batch."""
    audited.store.away = True
    await audited.call("first")
    audited.store.gate = asyncio.Event()
    await audited.until(lambda: audited.store.waits)
    noting = asyncio.create_task(audited.writer.events.note("acme", "tenant", outcome="x"))
    await asyncio.sleep(0)
    audited.store.away = False
    audited.store.gate.set()
    await asyncio.wait_for(noting, SOON_S)

    assert [kind for kind, _ in await audited.recorded_kinds()] == ["call", "tenant"]


@pytest.mark.requirement("AU8")
async def test_a_caller_learns_that_a_call_ran_without_a_record(audited: AuditedRunner) -> None:
    """The error is not an outage, which clients would retry; the record is written later."""
    audited.store.away = True
    outcome = await audited.call("first")
    with pytest.raises(StoreUnavailable):
        await audited.call("second")
    audited.store.away = False
    await audited.until(lambda: not audited.writer.refusing)
    fine = await audited.call("third")

    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.retry_after) == ("internal", None)
    assert "carried out" in outcome.failure.message
    assert fine.failure is None
    assert await audited.recorded_kinds() == [("call", "first"), ("call", "third")]


@pytest.mark.requirement("AU8")
async def test_with_go_on_calls_are_served_during_an_outage_and_recorded_later() -> None:
    """No call waits for a database that is unavailable, and no record is lost."""
    audited = AuditedRunner(on_failure="go_on")
    audited.store.away = True
    failures = [(await audited.call(name)).failure for name in ("a", "b", "c")]
    before = await audited.recorded_kinds()
    audited.store.away = False
    await audited.until(lambda: audited.writer.written >= 3)
    await audited.writer.aclose()

    assert failures == [None, None, None]
    assert before == []
    assert sorted(await audited.recorded_kinds()) == [("call", "a"), ("call", "b"), ("call", "c")]


@pytest.mark.requirement("AU8")
async def test_a_gap_record_counts_the_records_lost_in_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer keeps a bounded number of records during an outage."""
    monkeypatch.setattr(batches_module, "MAX_WAITING", 2)
    audited = AuditedRunner(on_failure="go_on")
    audited.store.away = True
    for name in "abcd":
        await audited.call(name)
    await audited.until(lambda: len(audited.writer) == 1)  # behind the one that is being written
    audited.store.away = False
    await audited.until(lambda: audited.writer.written >= 3)
    await audited.writer.aclose()
    records = await search(audited.store, "acme", AuditQuery(limit=100))
    lost = sum(int(record.details["records"]) for record in records if record.kind == "gap")

    assert lost + sum(record.kind == "call" for record in records) == 4
    assert lost > 0


async def test_a_commit_whose_reply_was_lost_is_not_repeated(audited: AuditedRunner) -> None:
    """There is one record, and the call succeeds."""
    audited.store.silent = True
    outcome = await audited.call("once")
    await audited.call("twice")

    assert outcome.failure is None
    assert await audited.recorded_kinds() == [("call", "once"), ("call", "twice")]


async def test_a_batch_is_retried_after_an_unexpected_error(
    audited: AuditedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry needs no call, and the next call is served."""
    monkeypatch.setattr(background, "PAUSE_S", 0.01)
    audited.store.breaks = True
    outcome = await audited.call("first")
    await audited.until(lambda: audited.writer.written)
    fine = await audited.call("second")

    assert outcome.failure is not None
    assert "carried out" in outcome.failure.message
    assert fine.failure is None
    assert await audited.recorded_kinds() == [("call", "first"), ("call", "second")]


async def test_a_stop_does_not_wait_for_a_batch_that_fails_unexpectedly(
    audited: AuditedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No writer goes on after the stop, not even for a record that is added during it."""

    async def write(batch: RecordsByChain, link: Link) -> None:
        raise RuntimeError("an unexpected error")

    monkeypatch.setattr(background, "PAUSE_S", 0.01)
    monkeypatch.setattr(writer_module, "CLOSING_S", 10 * SOON_S)
    monkeypatch.setattr(audited.store, "write", write)
    await audited.call("first")
    tasks_before = asyncio.all_tasks()
    closing = asyncio.create_task(audited.writer.aclose())
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(audited.writer.events.note("acme", "tenant", outcome="x"), SOON_S)
    await asyncio.wait_for(closing, SOON_S)
    await audited.until(lambda: not asyncio.all_tasks() - tasks_before)

    assert len(audited.writer) == 1


async def test_a_listener_that_raises_does_not_make_the_writer_refuse_calls() -> None:
    """The record is already written when the listener raises."""
    written, errors = list[object](), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def listener(tenant: str, rows: object) -> None:
        written.append(rows)
        if len(written) == 1:
            raise RuntimeError("an unexpected error")

    audited = AuditedRunner(listener)
    outcome = await audited.call("first")
    await audited.until(lambda: not audited.writer.refusing)
    fine = await audited.call("second")
    await audited.writer.aclose()

    assert (outcome.failure, fine.failure, len(written)) == (None, None, 2)
    assert [str(error) for error in errors] == ["an unexpected error"]
    assert await audited.recorded_kinds() == [("call", "first"), ("call", "second")]


@pytest.mark.requirement("AU3")
async def test_no_answer_is_sent_before_its_record_is_written(audited: AuditedRunner) -> None:
    """This also holds for refusals; simultaneous calls share a batch."""
    audited.store.gate = asyncio.Event()
    calls = [asyncio.ensure_future(audited.call(name)) for name in ("a", "b", "c")]
    calls.append(asyncio.ensure_future(audited.call("d", tool="nothing")))
    for _ in range(50):
        await asyncio.sleep(0)
    waiting = [call.done() for call in calls]
    audited.store.gate.set()
    ended = await asyncio.gather(*calls, return_exceptions=True)

    assert waiting == [False] * 4
    assert [isinstance(outcome, Outcome) for outcome in ended] == [True, True, True, False]
    assert len(await audited.recorded_kinds()) == 4


@pytest.mark.requirement("AU3")
async def test_a_cancelled_call_is_recorded_and_delays_no_other_caller(
    audited: AuditedRunner,
) -> None:
    """The caller disconnects while the tool runs, or while the record is written."""
    audited.store.gate = asyncio.Event()
    leaving = asyncio.ensure_future(audited.call("a", tool="linger"))
    waiting = asyncio.ensure_future(audited.call("b"))
    staying = asyncio.ensure_future(audited.call("c"))
    for _ in range(20):
        await asyncio.sleep(0)
    leaving.cancel()
    waiting.cancel()
    audited.store.gate.set()
    outcome = await staying
    await asyncio.wait([leaving, waiting], timeout=SOON_S)
    await audited.writer.aclose()
    records = await search(audited.store, "acme", AuditQuery(limit=100))

    assert outcome.failure is None
    assert {(record.request_id, record.outcome) for record in records} == {
        ("a", "cancelled"),
        ("b", "success"),
        ("c", "success"),
    }


async def test_a_flood_of_refusals_makes_few_records(audited: AuditedRunner) -> None:
    """The records tell the number of refusals and do not fill the disk."""

    async def limited(call: Call, offer: Any, arguments: Any, proceed: Any) -> Outcome:
        return Outcome(failure=Failure("rate_limit", "Too many.", retry_after=1))

    audited.runner = Runner(
        Registry([*pack.tools.values()]),
        context_for=call_context,
        recorder=audited.writer,
        stages=[limited],
    )
    caller = person("alice")
    calls = [
        Call(caller=caller, name="write", arguments=b'{"text":"x"}', request_id=str(at))
        for at in range(30)
    ]
    await asyncio.gather(*(audited.runner.run(call) for call in calls))
    await audited.writer.aclose()
    records = await search(audited.store, "acme", AuditQuery(limit=100))

    assert [(record.kind, record.outcome) for record in records] == [
        ("refusal", "rate_limit")
    ] * len(records)
    assert sum(record.times for record in records) == 30
    assert len(records) == RECORDED_PER_KIND + 1


@pytest.mark.parametrize(("calls", "record_count"), [("all", 3), ("changes", 2)])
async def test_successful_read_only_calls_are_not_recorded_with_calls_changes(
    calls: Any, record_count: int
) -> None:
    """A refused call is recorded with both settings."""
    audited = AuditedRunner(calls=calls)
    for tool in ("look", "write"):
        await audited.call("x", tool=tool)
    with pytest.raises(Unknown):
        await audited.call("x", tool="nothing")
    await audited.writer.aclose()

    assert len(await audited.recorded_kinds()) == record_count
