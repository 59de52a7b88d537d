"""A background task goes on after an unexpected error."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from gatepost import background
from gatepost.audit import retention
from gatepost.audit.writer import AuditWriter
from gatepost.config.audit import AuditSettings
from gatepost.dashboard.live import LiveInbox
from gatepost.runtime import metrics_sampler, recent_callers, stores
from gatepost.runtime.recent_callers import RecentCallers
from gatepost.secrets.keyring import KeyRing
from gatepost.storage import change_poller
from gatepost.storage.change_poller import ChangePoller
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.storage.valkey.channels import Channels
from gatepost.telemetry.metrics import Meter
from gatepost.tools.calls.redaction import Redaction
from tests.support.endpoint import EndpointClient, a_caller
from tests.support.measuring import capture_logs
from tests.support.runners import ACME, ApprovalDeployment

WITHIN_S = 30.0
Setting = Callable[["OneTimeFault", pytest.MonkeyPatch], AbstractAsyncContextManager[object]]


class OneTimeFault:
    """Fails once with an unexpected error, then runs."""

    def __init__(self) -> None:
        self.times = 0
        self.again = asyncio.Event()

    async def __call__(self, *arguments: Any, **rest: Any) -> Any:
        self.times += 1
        if self.times == 1:
            raise LookupError("secret-4711")
        self.again.set()
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def short_restart_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause before a restart, so that no test waits for it."""
    monkeypatch.setattr(background, "PAUSE_S", 0.01)


async def test_an_error_at_the_end_of_a_background_task_is_logged_without_its_text() -> None:
    """asyncio would log the traceback with the text."""

    async def fail_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("secret-4711")

    with capture_logs() as logs:
        task = asyncio.create_task(background.always("sums", fail_at_the_end))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()

    assert [(line["event"], line["error"]) for line in logs] == [
        ("background_task_ended", "LookupError")
    ]


async def test_an_error_of_a_background_task_is_logged_and_the_task_restarts() -> None:
    """The log has the error's type and place, and not its text."""
    fault = OneTimeFault()
    with capture_logs() as logs:
        task = asyncio.create_task(background.always("sums", fault))
        async with asyncio.timeout(WITHIN_S):
            await fault.again.wait()
        task.cancel()
        await asyncio.wait([task])

    [line] = logs
    assert (line["event"], line["background_task"], line["error"]) == (
        "background_task_ended",
        "sums",
        "LookupError",
    )
    assert line["where"].startswith(f"{__name__}.__call__:")
    assert "4711" not in str(line)
    assert task.cancelled()


async def test_a_task_set_waits_for_all_tasks_even_if_some_fail() -> None:
    """Each error is logged with its type and place, and not its text."""
    tasks, ended = background.TaskSet(), []

    async def fail() -> None:
        raise LookupError("secret-4711")

    async def last() -> None:
        await asyncio.sleep(0.01)
        ended.append(len(tasks))

    with capture_logs() as logs:
        for work in (fail, last, fail):
            tasks.start(work())
        await tasks.wait()
        await tasks.wait()

    assert ended == [1]
    assert [(line["event"], line["error"]) for line in logs] == [
        ("background_task_failed", "LookupError")
    ] * 2
    assert logs[0]["where"].startswith(f"{__name__}.fail:")
    assert "4711" not in str(logs)


async def test_a_cancelled_background_task_cleans_up_before_its_canceller_continues() -> None:
    """The task that cancelled it waits for its `finally` block."""
    begun, done = asyncio.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            done.append("tidied")

    task = asyncio.create_task(background.always("sums", work))
    async with asyncio.timeout(WITHIN_S):
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])

    assert done == ["tidied"]


async def return_at_once() -> None:
    """Return at once, although background work must not end."""


async def raise_cancelled() -> None:
    """Fail as if another task had cancelled the work."""
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("work", "how"), [(return_at_once, "none"), (raise_cancelled, "cancelled")]
)
async def test_background_work_that_returns_is_restarted(work: Any, how: str) -> None:
    """Otherwise the operator would not notice that the work has stopped."""
    times = 0
    again = asyncio.Event()

    async def counted() -> None:
        nonlocal times
        times += 1
        if times > 1:
            again.set()
        await work()

    with capture_logs() as logs:
        task = asyncio.create_task(background.always("sums", counted))
        async with asyncio.timeout(WITHIN_S):
            await again.wait()
        task.cancel()
        await asyncio.wait([task])

    assert {event["error"] for event in logs} == {how}


@asynccontextmanager
async def sweeps(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    records = MemoryRecords()
    patch.setattr(records, "sweep", fault)
    async with stores.sweeping(records, every_s=0.01):
        yield


@asynccontextmanager
async def expires(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    service = ApprovalDeployment().replica().service
    patch.setattr(service, "expire_due", fault)
    async with service.expiring(every_s=0.01):
        yield


@asynccontextmanager
async def notes(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    patch.setattr(recent_callers, "WRITE_S", 0.01)
    patch.setattr(recent_callers, "CLOSING_S", 0.01)
    noting = RecentCallers(
        MemoryRecords(), is_refused=lambda caller: False, is_out=lambda caller: False
    )
    patch.setattr(noting, "_put", fault)
    async with noting.writing():
        noting.note(a_caller())
        yield


@asynccontextmanager
async def signs(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    patch.setattr(retention, "CHECK_S", 0.01)
    patch.setattr(retention, "PRUNE_S", 0.0)
    records, ring = MemoryRecords(), KeyRing.ephemeral()
    retention_task = retention.Retention(
        records, ring, AuditWriter(records, ring, Redaction(), AuditSettings())
    )
    patch.setattr(retention_task, "prune", fault)
    async with retention_task.running():
        yield


@asynccontextmanager
async def records_calls(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    writer = AuditWriter(MemoryRecords(), KeyRing.ephemeral(), Redaction(), AuditSettings())
    patch.setattr(writer, "_write_batch", fault)
    patch.setattr("gatepost.audit.writer.CLOSING_S", 0.0)
    with pytest.raises(StoreUnavailable):  # the error fails the commit that this waits for
        await writer.events.note("acme", "tenant", outcome="suspended")
    yield
    await writer.aclose()


@asynccontextmanager
async def polls(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    patch.setattr(change_poller, "POLL_S", 0.01)
    records = MemoryRecords()
    async with ChangePoller(records, MemorySharedStore()).polling({}):
        patch.setattr(records, "changes", lambda subjects: fault())
        yield


@asynccontextmanager
async def reads_again(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    patch.setattr(change_poller, "POLL_S", 0.01)
    poller = ChangePoller(MemoryRecords(), MemorySharedStore())
    async with poller.polling({}), poller.following("secrets", lambda counter: fault()):
        yield


@asynccontextmanager
async def hears(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    shared_store = MemorySharedStore()
    patch.setattr(type(shared_store.for_tenant("")), "follow", lambda *arguments: fault())
    async with ChangePoller(MemoryRecords(), shared_store).polling({}):
        yield


@asynccontextmanager
async def samples_metrics(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async with metrics_sampler.sampling_metrics(
        metrics_sampler.MetricsSampler(Meter.unshared(), samples=[fault])
    ):
        yield


@asynccontextmanager
async def takes_up(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    task_runner = EndpointClient().task_runner
    patch.setattr(task_runner, "sweep", fault)
    task_runner.start()
    yield
    await task_runner.aclose()


@asynccontextmanager
async def shows(fault: OneTimeFault, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    service = ApprovalDeployment().replica().service
    patch.setattr(service, "waiting", fault)
    page = LiveInbox(service, MemorySharedStore()).watch(ACME)
    looking = asyncio.create_task(anext(page))  # type: ignore[arg-type]
    yield
    looking.cancel()
    await asyncio.wait([looking])


BACKGROUND_TASKS: dict[str, Setting] = {
    "sweep": sweeps,
    "expiry": expires,
    "callers": notes,
    "audit": signs,
    "audit_writer": records_calls,
    "changes": polls,
    "change_notifications": hears,
    "secrets": reads_again,
    "metrics": samples_metrics,
    "tasks": takes_up,
    "live": shows,
}


@pytest.mark.parametrize(("name", "setting"), BACKGROUND_TASKS.items(), ids=BACKGROUND_TASKS)
async def test_every_background_task_continues_after_an_error(
    name: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error in a background task's work is logged once, and the task goes on."""
    fault = OneTimeFault()
    with capture_logs() as logs:
        async with setting(fault, monkeypatch), asyncio.timeout(WITHIN_S):
            await fault.again.wait()

    failures = [
        (event["background_task"], event["error"])
        for event in logs
        if event["event"] == "background_task_ended"
    ]
    assert failures == [(name, "LookupError")]


async def test_the_shared_store_is_read_again() -> None:
    """The first subscriber starts the one reader, and no later subscriber starts another."""
    fault = OneTimeFault()

    def connection() -> Any:
        fault.times += 1
        if fault.times > 1:
            fault.again.set()
        raise LookupError("secret-4711")

    channels = Channels(connection)
    following = asyncio.create_task(channels.follow(b"c", lambda message: None))
    with capture_logs() as logs:
        async with asyncio.timeout(WITHIN_S):
            await fault.again.wait()
        following.cancel()
        await asyncio.wait([following])
        await channels.aclose()

    assert {(event["background_task"], event["error"]) for event in logs} == {
        ("shared_store", "LookupError")
    }
