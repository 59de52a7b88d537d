"""Tasks, on every backend."""

import asyncio

import msgspec
import pytest

from gatepost.storage.records import Records
from gatepost.storage.sql.records import BATCH
from gatepost.storage.tasks import TaskRecord
from tests.conftest import HOUR, task
from tests.support.measuring import each

FULL_TASK = task(
    status="input_required",
    status_message="half way \N{SNOWMAN}",
    requests=b"\x00\xff",
    answers=b"",
    result=b"{}",
    error=b"\x00",
    cancelled=True,
    runner="pod-1",
    expires_at=1e10 + 1 / 3,
)


@pytest.mark.parametrize("record", [task(), FULL_TASK], ids=["sparse", "full"])
async def test_a_task_is_read_as_it_was_written(records: Records, record: TaskRecord) -> None:
    """This includes bytes, fractions of seconds, None and empty values."""
    tasks = records.for_tenant("acme").tasks
    await tasks.create(record)

    assert await tasks.get(record.id) == record
    assert await tasks.get("another") is None


@each("strange", ["", "a\x00b", "\\0", "\\\x00\\\\", "\ud800", "\\ud800", "ü"])
async def test_any_task_id_can_be_read(records: Records, strange: str) -> None:
    """A caller may send any id; one that no database could hold is unknown and not an outage."""
    tasks = records.for_tenant("acme").tasks

    assert await tasks.get(strange) is None

    await tasks.create(task(id=strange))
    some_task = await tasks.get(strange)
    assert some_task is not None
    assert some_task.id == strange


async def test_a_change_of_a_task_needs_the_current_revision(records: Records) -> None:
    """The second of two concurrent changes has to read again."""
    tasks = records.for_tenant("acme").tasks
    await tasks.create(task())
    read = await tasks.get("t1")
    assert read is not None

    assert await tasks.replace(msgspec.structs.replace(read, status="completed", result=b"1"))
    assert not await tasks.replace(msgspec.structs.replace(read, status="failed", error=b"2"))

    stored = await tasks.get("t1")
    assert stored == msgspec.structs.replace(
        read, status="completed", result=b"1", revision=read.revision + 1
    )


async def test_a_missing_task_cannot_be_replaced(records: Records) -> None:
    """A task that was swept away does not come back by a late answer."""
    tasks = records.for_tenant("acme").tasks

    assert not await tasks.replace(task())
    assert await tasks.get("t1") is None


async def test_one_of_many_concurrent_changes_of_a_task_is_stored(records: Records) -> None:
    """The caller that gets True knows that its change was stored."""
    tasks = records.for_tenant("acme").tasks
    await tasks.create(task())
    changes = [task(status_message=str(number)) for number in range(20)]

    won = await asyncio.gather(*(tasks.replace(change) for change in changes))

    stored = await tasks.get("t1")
    assert stored is not None
    assert [change.status_message for change, mine in zip(changes, won, strict=True) if mine] == [
        stored.status_message
    ]


async def test_only_open_tasks_of_the_owner_count(records: Records) -> None:
    """An ended task does not count."""
    tasks = records.for_tenant("acme").tasks
    for number, status in enumerate(
        ["working", "input_required", "completed", "failed", "cancelled"]
    ):
        await tasks.create(task(id=f"t{number}", status=status))
    await tasks.create(task(id="other", owner=b"bob"))

    assert await tasks.count(b"alice") == 2
    assert await tasks.count(b"bob") == 1
    assert await tasks.count(b"nobody") == 0


async def test_tasks_without_a_runner_are_found_across_tenants(records: Records) -> None:
    """The lease is over and the task has not ended, so another process must take it over."""
    for tenant, record in {
        "acme": task(leased_until=100.0),
        "globex": task(id="t2", leased_until=99.0, status="input_required"),
        "ended": task(leased_until=1.0, status="completed"),
        "held": task(leased_until=100.5),
    }.items():
        await records.for_tenant(tenant).tasks.create(record)

    assert sorted(await records.abandoned_tasks(100.1, 10)) == [("acme", "t1"), ("globex", "t2")]
    assert len(await records.abandoned_tasks(100.1, 1)) == 1


async def test_a_sweep_removes_only_expired_tasks(records: Records) -> None:
    """An expired task can be read until the sweep; the reader checks its time."""
    tasks = records.for_tenant("acme").tasks
    await tasks.create(task(expires_at=100.0))
    await tasks.create(task(id="t2", expires_at=100.5))
    assert await tasks.get("t1") is not None

    assert await records.sweep(100.0) == 1

    assert await tasks.get("t1") is None
    assert await tasks.get("t2") is not None


async def test_a_sweep_removes_any_number_of_expired_tasks(records: Records) -> None:
    """More than one batch of it goes in one sweep."""
    tasks = records.for_tenant("acme").tasks
    for number in range(BATCH + 1):
        await tasks.create(task(id=str(number), expires_at=10.0))

    assert await records.sweep(10.0 + HOUR) == BATCH + 1
    assert await records.sweep(10.0 + HOUR) == 0
