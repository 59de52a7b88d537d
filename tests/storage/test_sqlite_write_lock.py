"""Writers of a SQLite file queue for its lock file; readers and dead writers delay no other."""

import asyncio
import fcntl
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from gatepost.storage.errors import StoreRefused, StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.sql.records import SqlRecords, opened
from gatepost.storage.sql.sqlite_audit_connection import SqliteAuditConnection
from gatepost.storage.sql.tables import ENTRIES
from tests.conftest import task
from tests.support.processes import Process, python_environment

LOCK_PROGRAM = """
import asyncio, sys
from gatepost.storage.sql.records import opened

def hold(connection):
    connection.exec_driver_sql("DELETE FROM tasks")
    print("writing", flush=True)
    sys.stdin.read()

async def main():
    await (await opened(sys.argv[1])).database.transaction(hold, within_s=60)

asyncio.run(main())
"""


class LockHolder:
    """Another writer, which has the lock from its beginning until `release`."""

    def __init__(self, database: Path) -> None:
        self._handle = os.open(f"{database}-lock", os.O_RDWR)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def release(self) -> None:
        """Let the next one write."""
        os.close(self._handle)


def is_free(database: Path) -> bool:
    handle = os.open(f"{database}-lock", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


@pytest.fixture
async def records(file: Path) -> AsyncIterator[SqlRecords]:
    records = await opened(f"sqlite:///{file}")
    yield records
    await records.aclose()


async def test_a_change_waits_for_the_previous_writer(records: SqlRecords, file: Path) -> None:
    """Readers do not wait."""
    holder = LockHolder(file)
    writing = asyncio.create_task(records.for_tenant("acme").tasks.create(task()))
    assert await records.for_tenant("acme").tasks.count(b"nobody") == 0
    assert not writing.done()

    holder.release()
    await asyncio.wait_for(writing, 10)
    assert is_free(file)


async def test_audit_records_wait_for_the_previous_writer(records: SqlRecords, file: Path) -> None:
    """Their thread waits, as that of the changes does."""
    holder, done = LockHolder(file), threading.Event()

    def write() -> None:
        with SqliteAuditConnection(str(file)).transaction():
            done.set()

    writing = asyncio.create_task(asyncio.to_thread(write))
    assert await records.for_tenant("acme").tasks.count(b"nobody") == 0
    assert not done.is_set()

    holder.release()
    await asyncio.wait_for(writing, 10)
    assert done.is_set()
    assert is_free(file)


async def commit(records: SqlRecords, _: Path) -> None:
    await records.for_tenant("acme").tasks.create(task())


async def violate_key(records: SqlRecords, _: Path) -> None:
    def violate(connection: Connection) -> None:
        row = {"tenant": "acme", "subject": "notes", "key": "a", "revision": 1, "updated_at": 0.0}
        connection.execute(ENTRIES.insert(), [row, row])

    with pytest.raises(IntegrityError):
        await records.database.transaction(violate)


async def end_with(statement: str, records: SqlRecords) -> None:
    def end(connection: Connection) -> None:
        connection.exec_driver_sql(statement)

    with pytest.raises(StoreUnavailable):
        await records.database.transaction(end)


async def roll_back(records: SqlRecords, _: Path) -> None:
    await end_with("ROLLBACK", records)


async def lose_savepoint(records: SqlRecords, _: Path) -> None:
    await end_with("RELEASE change", records)


async def fail_commit(records: SqlRecords, _: Path) -> None:
    def violate(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = 1")
        connection.exec_driver_sql("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("CREATE TABLE children (id INTEGER REFERENCES parents)")
        connection.exec_driver_sql("INSERT INTO children VALUES (1)")

    with pytest.raises(StoreUnavailable):
        await records.database.transaction(violate)


async def begin_twice(_: SqlRecords, file: Path) -> None:
    with (
        pytest.raises(StoreUnavailable),
        SqliteAuditConnection(str(file)).transaction() as execute,
    ):
        execute("BEGIN IMMEDIATE", ())


Writes = Callable[[SqlRecords, Path], Awaitable[None]]


@pytest.mark.parametrize(
    "write",
    [commit, violate_key, roll_back, lose_savepoint, fail_commit, begin_twice],
)
async def test_the_next_writer_continues_after_any_end_of_a_writer(
    write: Writes, records: SqlRecords, file: Path
) -> None:
    """The writer commits, is undone, or cannot begin, be undone or commit."""
    await write(records, file)
    assert is_free(file)
    assert await records.for_tenant("acme").entries("notes").put("a", b"", now=0.0)
    assert is_free(file)


async def test_no_writer_writes_within_the_transaction_of_another(
    records: SqlRecords, file: Path
) -> None:
    """The lock is held from the beginning on, and between statements."""

    def write(connection: Connection) -> list[bool]:
        found = [is_free(file)]
        connection.exec_driver_sql("DELETE FROM tasks")
        return [*found, is_free(file)]

    assert await records.database.transaction(write) == [False, False]
    with SqliteAuditConnection(str(file)).transaction() as execute:
        execute("DELETE FROM tasks", ())
        assert not is_free(file)
    assert is_free(file)


async def test_a_killed_writer_releases_the_lock(records: SqlRecords, file: Path) -> None:
    """SQLite undoes its transaction, and no other writer waits for it."""
    await records.for_tenant("acme").tasks.create(task())
    command = [sys.executable, "-c", LOCK_PROGRAM, f"sqlite:///{file}"]
    writer = Process(command, env=python_environment(None), cwd=file.parent)
    try:
        await asyncio.to_thread(writer.wait_for, "writing")
        assert not is_free(file)
        writer.process.send_signal(signal.SIGKILL)
        writer.process.wait(10)
    finally:
        writer.kill()

    assert await records.for_tenant("acme").tasks.get(task().id) == task()
    assert await records.for_tenant("acme").entries("notes").put("a", b"", now=0.0)


async def test_a_lost_lock_file_stops_no_writer(records: SqlRecords, file: Path) -> None:
    """SQLite's own lock is enough, and a new lock file is made if that is possible."""
    lock = file.with_name("records.db-lock")
    lock.unlink()
    lock.mkdir()
    await records.for_tenant("acme").tasks.create(task())
    lock.rmdir()
    assert await records.for_tenant("acme").entries("notes").put("a", b"", now=0.0)

    assert is_free(file)
    assert await records.for_tenant("acme").tasks.get(task().id) == task()


async def test_a_lock_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    """The start names the file."""
    (tmp_path / "records.db-lock").mkdir()

    with pytest.raises(StoreRefused, match=r"records\.db-lock cannot be opened: Is a directory"):
        await opened(f"sqlite:///{tmp_path}/records.db")


async def test_a_file_system_without_such_locks_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own lock is enough; only waiting takes longer."""

    def unknown(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unknown)
    records: Records = await opened(f"sqlite:///{tmp_path}/records.db")
    await records.for_tenant("acme").tasks.create(task())
    assert await records.for_tenant("acme").tasks.get(task().id) is not None
    await records.aclose()
