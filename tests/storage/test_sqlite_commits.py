"""Changes to a SQLite file that come together share a commit, and fail or succeed on their own."""

import asyncio
import resource
import signal
import struct
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql import database, sqlite_database
from gatepost.storage.sql.records import SqlRecords, opened
from gatepost.storage.sql.sqlite_database import MAX_CHANGES
from gatepost.storage.sql.tables import ENTRIES
from tests.conftest import idempotency_record, task
from tests.storage.test_sqlite_write_lock import LockHolder
from tests.support.processes import Process, python_environment

CALLERS = 50
SOON_S = 10.0
HOLDER = idempotency_record().holder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


@pytest.fixture
async def records(file: Path) -> AsyncIterator[SqlRecords]:
    records = await opened(f"sqlite:///{file}")
    yield records
    await records.aclose()


async def waiting(*changes: Any) -> list[asyncio.Task[Any]]:
    """Begin changes, which wait for the lock that another writer has."""
    tasks = [asyncio.ensure_future(change) for change in changes]
    finished, _ = await asyncio.wait(tasks, timeout=0.05)
    assert not finished
    return tasks


def commit_count(file: Path) -> int:
    """Return how many transactions stand in SQLite's write-ahead log."""
    log = Path(f"{file}-wal").read_bytes()
    (page_size,) = struct.unpack_from(">I", log, 8)
    salts, count = log[16:24], 0
    for offset in range(32, len(log), 24 + page_size):
        # The last frame of a transaction has the size of the database.
        if log[offset + 8 : offset + 16] == salts and any(log[offset + 4 : offset + 8]):
            count += 1
    return count


async def test_changes_that_come_together_share_a_commit(records: SqlRecords, file: Path) -> None:
    """A commit synchronises the file, which takes longer than a hundred changes."""
    idempotency = records.for_tenant("acme").idempotency
    assert await idempotency.begin(idempotency_record(), now=0.0) is None
    before, holder = commit_count(file), LockHolder(file)
    keys = [b"%d" % number for number in range(CALLERS)]
    begun = [idempotency.begin(idempotency_record(key=key), now=0.0) for key in keys]
    changes = await waiting(*begun)
    holder.release()

    assert await asyncio.gather(*changes) == [None] * CALLERS
    assert commit_count(file) - before == 1
    assert await asyncio.gather(*map(idempotency.get, keys)) == [
        idempotency_record(key=key) for key in keys
    ]


async def test_a_commit_has_a_limited_number_of_changes(records: SqlRecords, file: Path) -> None:
    """The first callers get their answers before the last."""
    idempotency = records.for_tenant("acme").idempotency
    before, holder = commit_count(file), LockHolder(file)
    changes = await waiting(
        *(
            idempotency.begin(idempotency_record(key=b"%d" % number), now=0.0)
            for number in range(MAX_CHANGES + 1)
        )
    )
    holder.release()
    await asyncio.gather(*changes)

    assert commit_count(file) - before == 2


async def test_a_change_sees_those_that_came_before_it(records: SqlRecords, file: Path) -> None:
    """Of several callers with the same key, one begins, and the record of it is the others'."""
    idempotency = records.for_tenant("acme").idempotency
    holder = LockHolder(file)
    changes = await waiting(
        *(
            idempotency.begin(idempotency_record(holder=f"{number}"), now=0.0)
            for number in range(CALLERS)
        )
    )
    holder.release()
    first = idempotency_record(holder="0")

    assert await asyncio.gather(*changes) == [None, *[first] * (CALLERS - 1)]


async def test_a_change_that_fails_is_undone_alone(records: SqlRecords, file: Path) -> None:
    """A statement that violates a key, or a function with several statements, fails for itself."""
    tenant, entries = records.for_tenant("acme"), records.for_tenant("acme").entries("notes")

    def violate(connection: Connection) -> None:
        row = {"tenant": "acme", "subject": "notes", "key": "undone", "value": b"", "revision": 1}
        for _ in range(2):
            connection.execute(ENTRIES.insert(), {**row, "updated_at": 0.0})

    def refuse(connection: Connection) -> None:
        connection.execute(ENTRIES.delete())
        raise LookupError("refused")

    holder = LockHolder(file)
    changes = await waiting(
        tenant.tasks.create(task()),
        tenant.tasks.create(task()),
        entries.put("first", b"1", now=0.0),
        records.database.transaction(violate),
        records.database.transaction(refuse),
        entries.put("last", b"2", now=0.0),
    )
    holder.release()
    answers = await asyncio.gather(*changes, return_exceptions=True)

    assert [*map(type, answers)] == [
        type(None), IntegrityError, bool, IntegrityError, LookupError, bool
    ]  # fmt: skip
    assert await tenant.tasks.get(task().id) == task()
    assert [entry.key for entry in await entries.all()] == ["first", "last"]


async def test_no_change_is_acknowledged_that_a_full_disk_undid(
    records: SqlRecords, file: Path
) -> None:
    """The changes of a transaction that fails are all refused."""
    idempotency = records.for_tenant("acme").idempotency
    assert await idempotency.begin(idempotency_record(key=b"long"), now=0.0) is None
    holder = LockHolder(file)
    changes = await waiting(
        idempotency.begin(idempotency_record(key=b"before"), now=0.0),
        idempotency.finish(b"long", HOLDER, b"x" * 4_000_000, 9e9),
        idempotency.begin(idempotency_record(key=b"after"), now=0.0),
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        holder.release()
        answers = await asyncio.gather(*changes, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)

    stored = [await idempotency.get(key) for key in (b"before", b"long", b"after")]
    assert isinstance(answers[1], StoreUnavailable)
    assert stored[1] == idempotency_record(key=b"long")
    assert [answer is None for answer in answers[::2]] == [
        found is not None for found in stored[::2]
    ]
    assert await idempotency.finish(b"long", HOLDER, b"x", 9e9)


@pytest.mark.parametrize("end", ["ROLLBACK", "RELEASE change"], ids=["undone", "not undone"])
async def test_a_failed_transaction_fails_all_its_changes(
    records: SqlRecords, file: Path, end: str
) -> None:
    """
    SQLite undoes everything after some errors, or cannot undo one change. Then the file is as
    before, and later changes succeed.
    """
    idempotency = records.for_tenant("acme").idempotency

    def fail(connection: Connection) -> None:
        row = {"tenant": "acme", "subject": "notes", "key": "half", "value": b"", "revision": 1}
        connection.execute(ENTRIES.insert(), {**row, "updated_at": 0.0})
        connection.exec_driver_sql(end)
        raise LookupError("half done")

    holder = LockHolder(file)
    changes = await waiting(
        idempotency.begin(idempotency_record(key=b"1"), now=0.0),
        records.database.transaction(fail),
        idempotency.begin(idempotency_record(key=b"2"), now=0.0),
    )
    holder.release()
    answers = await asyncio.gather(*changes, return_exceptions=True)
    assert [*map(type, answers[:2])] == [StoreUnavailable] * 2
    assert "half done" not in str(answers[0])
    assert await idempotency.get(b"1") is None
    assert await records.for_tenant("acme").entries("notes").all() == []
    assert await idempotency.begin(idempotency_record(key=b"1"), now=0.0) is None


async def test_a_change_is_made_although_its_caller_has_left(
    records: SqlRecords, file: Path
) -> None:
    """It is not stopped in the middle, and a close waits for it."""
    holder = LockHolder(file)
    (change,) = await waiting(records.for_tenant("acme").tasks.create(task()))
    change.cancel()
    closing = asyncio.create_task(records.aclose())
    await asyncio.wait([closing], timeout=0.05)
    assert not closing.done()
    holder.release()
    await closing

    reopened = await opened(f"sqlite:///{file}")
    assert await reopened.for_tenant("acme").tasks.get(task().id) == task()
    await reopened.aclose()


async def test_no_change_is_acknowledged_after_the_file_was_removed(
    records: SqlRecords, file: Path
) -> None:
    """Neither is one that joins a transaction that began before."""
    begun, go_on = threading.Event(), threading.Event()

    def slow_change(_: Connection) -> None:
        begun.set()
        go_on.wait(SOON_S)

    idempotency = records.for_tenant("acme").idempotency
    slow = asyncio.create_task(records.database.transaction(slow_change))
    await asyncio.to_thread(begun.wait, SOON_S)
    await asyncio.to_thread(file.unlink)
    later = await waiting(idempotency.begin(idempotency_record(), now=0.0))
    go_on.set()

    for change in (slow, *later):
        with pytest.raises(StoreUnavailable, match="gone"):
            await change


async def test_a_change_whose_caller_left_is_not_made_late(
    records: SqlRecords, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a disk hangs, such changes would fill the memory."""
    monkeypatch.setattr(database, "ANSWER_S", 0.2)
    idempotency = records.for_tenant("acme").idempotency
    holder = LockHolder(file)
    left, waited = await waiting(
        idempotency.begin(idempotency_record(key=b"left"), now=0.0),
        idempotency.begin(idempotency_record(key=b"waited"), now=0.0),
    )
    left.cancel()
    with pytest.raises(StoreUnavailable, match="in time"):
        await waited
    holder.release()

    assert await idempotency.begin(idempotency_record(key=b"later"), now=0.0) is None
    assert await idempotency.get(b"left") is None
    assert await idempotency.get(b"waited") is None


async def test_short_changes_do_not_wait_for_the_end_of_a_queue(
    records: SqlRecords, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction takes up no more changes when it has lasted for a while."""
    monkeypatch.setattr(sqlite_database, "GROUP_S", 0.0)
    idempotency = records.for_tenant("acme").idempotency
    before, holder = commit_count(file), LockHolder(file)
    changes = await waiting(
        *(idempotency.begin(idempotency_record(key=b"%d" % at), now=0.0) for at in range(3))
    )
    holder.release()
    await asyncio.gather(*changes)

    assert commit_count(file) - before == 3


async def test_each_caller_of_a_locked_file_gets_an_answer_in_time(
    records: SqlRecords, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that waited too long is left, because its caller was told that it failed."""
    idempotency = records.for_tenant("acme").idempotency
    holder = LockHolder(file)
    monkeypatch.setattr(database, "ANSWER_S", 0.1)
    async with asyncio.timeout(5):
        answers = await asyncio.gather(
            *(
                idempotency.begin(idempotency_record(key=b"%d" % number), now=0.0)
                for number in range(CALLERS)
            ),
            return_exceptions=True,
        )
    monkeypatch.setattr(database, "ANSWER_S", 20.0)
    holder.release()

    assert [str(answer) for answer in answers] == [database.TIMED_OUT] * CALLERS
    assert await idempotency.begin(idempotency_record(key=b"later"), now=0.0) is None
    assert await idempotency.get(b"%d" % (CALLERS - 1)) is None


KEYS_PROGRAM = """
import asyncio, os, sys
from itertools import count
from gatepost.storage.sql.records import opened
from tests.conftest import idempotency_record

async def main():
    records = await opened(sys.argv[1])
    store, numbers = records.for_tenant("acme").idempotency, count()
    async def call():
        for number in numbers:
            record = idempotency_record(key=b"%d-%d" % (os.getpid(), number))
            assert await store.begin(record, now=0.0) is None
            os.write(1, b"begun %b\\n" % record.key)
            assert await store.finish(record.key, record.holder, b"outcome", 9e9)
            os.write(1, b"finished %b\\n" % record.key)
    await asyncio.gather(*(call() for _ in range(32)))

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [1, 200])
async def test_acknowledged_keys_survive_the_kill_of_two_writers(file: Path, number: int) -> None:
    """Two processes with 32 callers each share the file, and both are killed while they write."""
    url = f"sqlite:///{file}"
    await (await opened(url)).aclose()
    command = [sys.executable, "-c", KEYS_PROGRAM, url]
    writers = [Process(command, env=python_environment()) for _ in range(2)]
    try:
        for writer in writers:
            await asyncio.to_thread(writer.wait_for, rf"finished \d+-{number}$")
        for writer in writers:
            writer.process.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.process.wait(10)
    finally:
        for writer in writers:
            writer.kill()

    records = await opened(url)
    store = records.for_tenant("acme").idempotency
    for line in "\n".join(writer.stdout for writer in writers).splitlines():
        state, key = line.split()
        record = await store.get(key.encode())
        assert record is not None
        assert record.outcome == b"outcome" or state == "begun"
    await records.aclose()
