"""Closing the connections of a database is bounded and never blocks the end of the loop."""

import asyncio
import contextlib
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql import database, postgresql, sqlite_database
from gatepost.storage.sql.postgresql import PostgresDatabase
from gatepost.storage.sql.records import migrate, opened
from tests.conftest import idempotency_record
from tests.support.measuring import eventually
from tests.support.stores import Postgres

LONG_WAIT_S = 20.0


class HeldStatement:
    """A statement that ends when it is told to; SQLite's thread is in it all the while."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self, connection: Connection) -> Any:
        raw: Any = connection.connection.dbapi_connection
        raw.create_function("hold", 0, self._hold)
        return connection.exec_driver_sql("SELECT hold()").scalar()

    def _hold(self) -> int:
        self.began.set()
        self.go.wait(LONG_WAIT_S)
        return 1


def database_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "database" in thread.name}


def loop_closes(work: Any) -> bool:
    """Return whether a loop that runs *work* closes; its thread may be left behind."""
    thread = threading.Thread(target=lambda: asyncio.run(work), daemon=True)
    thread.start()
    thread.join(LONG_WAIT_S)
    return not thread.is_alive()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_event_loop_ends_although_its_statements_were_cancelled(
    tmp_path: Path, times: int
) -> None:
    """
    Callers may be cancelled any number of times while a thread is in SQLite. A close that waited
    for a thread without end would hang the process.
    """
    hold = HeldStatement()

    async def interrupted() -> None:
        records = await opened(f"sqlite:///{tmp_path}/records.db")
        looking = asyncio.create_task(records.database.run_sync(hold))
        await asyncio.to_thread(hold.began.wait, LONG_WAIT_S)
        for _ in range(times):
            looking.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, hold.go.set)
        await records.aclose()

    assert loop_closes(interrupted())


async def test_a_late_sqlite_statement_leaves_the_connection_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller gets an error in time, and the connection serves the next statement."""
    records, hold = await opened(f"sqlite:///{tmp_path}/records.db"), HeldStatement()
    monkeypatch.setattr(database, "ANSWER_S", 0.1)

    with pytest.raises(StoreUnavailable, match="in time"):
        await records.database.run_sync(hold)
    hold.go.set()
    monkeypatch.setattr(database, "ANSWER_S", LONG_WAIT_S)
    assert await records.for_tenant("acme").idempotency.begin(idempotency_record(), now=0.0) is None
    assert await asyncio.gather(*(records.ping() for _ in range(20))) == [None] * 20
    await records.aclose()


async def test_a_sqlite_statement_that_takes_long_delays_no_other(tmp_path: Path) -> None:
    """Others read and write meanwhile, and the threads end with the database."""
    before = database_threads()
    records, hold = await opened(f"sqlite:///{tmp_path}/records.db"), HeldStatement()
    looking = asyncio.create_task(records.database.run_sync(hold))
    await asyncio.to_thread(hold.began.wait, LONG_WAIT_S)
    await records.ping()
    assert await records.for_tenant("acme").idempotency.begin(idempotency_record(), now=0.0) is None
    assert not looking.done()

    hold.go.set()
    assert await looking == 1
    await records.aclose()
    eventually(lambda: database_threads() <= before, within=LONG_WAIT_S)


async def test_a_close_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close is logged and given up, because the process has to end."""
    records, hold = await opened(f"sqlite:///{tmp_path}/records.db"), HeldStatement()
    monkeypatch.setattr(database, "ANSWER_S", 0.1)
    monkeypatch.setattr(sqlite_database, "OVER_S", 0.1)
    with pytest.raises(StoreUnavailable):
        await records.database.run_sync(hold)

    async with asyncio.timeout(LONG_WAIT_S):
        await records.aclose()
    assert not hold.go.is_set()
    hold.go.set()
    monkeypatch.setattr(sqlite_database, "OVER_S", LONG_WAIT_S)
    await records.aclose()


async def test_a_close_does_not_wait_for_a_server_that_hangs(
    own_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of pooled connections does not matter."""
    with own_postgres.database() as url:
        await migrate(url)
        records = await opened(url)
        await asyncio.gather(*(records.ping() for _ in range(30)))
        monkeypatch.setattr(database, "ANSWER_S", 0.1)
        monkeypatch.setattr(postgresql, "CLOSE_S", 0.5)
        own_postgres.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(LONG_WAIT_S):
                with pytest.raises(StoreUnavailable):
                    await records.ping()
                await records.aclose()
        finally:
            own_postgres.signal(signal.SIGCONT)

    assert isinstance(records.database, PostgresDatabase)
    assert records.database.engine.pool.checkedin() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("turns", range(6))
async def test_a_statement_that_comes_while_sqlite_closes_keeps_no_connection(
    tmp_path: Path, turns: int
) -> None:
    """The last connection that is closed removes the log beside the file."""
    records = await opened(f"sqlite:///{tmp_path}/records.db")
    await asyncio.gather(*(records.ping() for _ in range(sqlite_database.READERS)))

    closing = asyncio.create_task(records.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    with contextlib.suppress(StoreUnavailable):
        await records.ping()
    await closing

    assert not (tmp_path / "records.db-wal").exists()
