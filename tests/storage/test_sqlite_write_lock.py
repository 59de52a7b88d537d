"""Writers of a SQLite file queue for its lock file; readers and dead writers delay no other."""

import asyncio
import fcntl
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gatepost.storage.errors import StoreRefused
from gatepost.storage.records import Records
from gatepost.storage.sql import sqlite
from gatepost.storage.sql.records import opened
from tests.conftest import task
from tests.support.processes import Process, python_environment

LOCK_PROGRAM = """
import sqlite3, sys
from gatepost.storage.sql.sqlite import connect

connect(sys.argv[1]).execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.read()
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
    path = tmp_path / "records.db"
    path.touch(mode=0o600)
    with sqlite.connect(str(path)) as connection:
        connection.execute("CREATE TABLE notes (text UNIQUE)")
    connection.close()
    return path


@pytest.fixture
def connection(file: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite.connect(str(file))
    yield connection
    connection.close()


async def test_every_write_waits_for_the_previous_writer(tmp_path: Path) -> None:
    """Writes through the pool of connections wait as well; readers do not."""
    database = tmp_path / "records.db"
    records = await opened(f"sqlite:///{database}")
    holder = LockHolder(database)
    writing = asyncio.create_task(records.for_tenant("acme").tasks.create(task()))
    assert await records.for_tenant("acme").tasks.count(b"nobody") == 0
    assert not writing.done()

    holder.release()
    await asyncio.wait_for(writing, 10)
    assert is_free(database)
    await records.aclose()


def test_a_writer_waits_in_its_own_thread(file: Path, connection: sqlite3.Connection) -> None:
    """The thread waits until the previous writer has finished."""
    holder, done = LockHolder(file), threading.Event()

    def write() -> None:
        with sqlite.connect(str(file)) as another:
            another.execute("INSERT INTO notes VALUES ('a')")
        another.close()
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert connection.execute("SELECT count(*) FROM notes").fetchone() == (0,)
    assert not done.is_set()

    holder.release()
    assert done.wait(10)
    thread.join()


def commit(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO notes VALUES ('a')")
    connection.execute("COMMIT")


def in_a_block(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO notes VALUES (?)", [("a",), ("b",)])


def roll_back(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.rollback()


def autocommit(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO notes VALUES ('a')")


def violate_key(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO notes VALUES ('a')")
    with pytest.raises(sqlite3.IntegrityError):
        in_a_block(connection)


def close_in_transaction(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.close()


@pytest.mark.parametrize(
    "write", [commit, in_a_block, roll_back, autocommit, violate_key, close_in_transaction]
)
def test_the_next_writer_continues_after_any_end_of_a_writer(
    write: Callable[[sqlite3.Connection], None], file: Path, connection: sqlite3.Connection
) -> None:
    """The writer commits, rolls back, fails or closes its connection."""
    write(connection)
    assert is_free(file)


def test_no_writer_writes_within_the_transaction_of_another(
    file: Path, connection: sqlite3.Connection
) -> None:
    """The lock is held from BEGIN on and between statements."""
    connection.execute("BEGIN IMMEDIATE")
    assert not is_free(file)
    connection.execute("INSERT INTO notes VALUES ('a')")
    assert not is_free(file)


def test_a_closed_connection_does_not_lock_another_file(file: Path) -> None:
    """The number of its file may be that of another one by then."""
    connection = sqlite.connect(str(file))
    connection.close()
    others = [os.open(f"{file}-lock", os.O_RDWR) for _ in range(8)]
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("INSERT INTO notes VALUES ('a')")

    assert is_free(file)
    for other in others:
        os.close(other)


def test_a_killed_writer_releases_the_lock(file: Path, connection: sqlite3.Connection) -> None:
    """SQLite undoes its transaction, and no other writer waits for it."""
    command = [sys.executable, "-c", LOCK_PROGRAM, str(file)]
    writer = Process(command, env=python_environment(None), cwd=file.parent)
    try:
        writer.wait_for("writing")
        assert not is_free(file)
        writer.process.send_signal(signal.SIGKILL)
        writer.process.wait(10)
    finally:
        writer.kill()

    autocommit(connection)
    assert connection.execute("SELECT text FROM notes").fetchall() == [("a",)]


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
