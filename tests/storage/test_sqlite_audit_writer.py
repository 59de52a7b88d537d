"""The writer of a SQLite file: one statement a batch, never behind an end that it does not know."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.storage.audit import Batch
from gatepost.storage.audit_segments import MOST_BYTES
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql import sqlite_audit_connection
from gatepost.storage.sql import sqlite_audit_writer as module
from gatepost.storage.sql.records import SqlRecords, opened
from gatepost.storage.sql.sqlite_audit_writer import COPIED_UNDER_LOAD, MOST_CHAINS, SqliteWriter
from tests.storage.test_audit import draft, link, sign

LONG = 20.0


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqlRecords]:
    """A database whose tenants `acme` and `globex` have a record each."""
    records = await opened(f"sqlite:///{tmp_path}/records.db")
    await write(records, {("acme", 1): [draft()], ("globex", 1): [draft()]})
    yield records
    await records.aclose()


async def write(records: SqlRecords, batch: Batch) -> None:
    await records.audit.write(batch, link)


async def numbers(records: SqlRecords, tenant: str = "acme") -> list[int]:
    return [row.number for row in await records.of(tenant).trail.chain(1).rows(0, 1000)]


def test_a_batch_is_one_statement(tmp_path: Path) -> None:
    """However many records and tenants: at each the interpreter's lock may be gone for long."""
    path = f"{tmp_path}/records.db"
    asyncio.run(made(path))
    writer, told = SqliteWriter(path), list[str]()
    names = [f"t{number:02}" for number in range(48)]
    batch = {("acme", 1): [draft()] * 25, ("globex", 1): [draft()] * 3}
    batch |= {(name, 1): [draft()] for name in names}
    writer.write(batch, link)
    connection = writer._connection
    assert connection is not None
    connection.set_trace_callback(told.append)
    writer.write(batch, link)
    writer.close()

    assert len({*told}) == 1  # told again at each step of its trigger
    assert asyncio.run(heads(path)) == {"acme": 50, "globex": 6} | dict.fromkeys(names, 2)


def test_a_batch_of_few_tenants_is_written_once(tmp_path: Path) -> None:
    """In one statement as well; behind a larger one it waits to be merged with it."""
    path = f"{tmp_path}/records.db"
    asyncio.run(made(path))
    writer, told = SqliteWriter(path), list[str]()
    few = {(name, 1): [draft()] for name in ("acme", "globex")}
    many = few | {(f"t{number}", 1): [draft()] for number in range(9)}
    writer.write(many, link)
    connection = writer._connection
    assert connection is not None
    connection.set_trace_callback(told.append)
    writer.write(few, link)
    connection.set_trace_callback(None)
    left = [writer.unmerged]
    for batch in (many, few):
        writer.write(batch, link)
        left.append(writer.unmerged)
    writer.finish()

    assert len({*told}) == 1
    assert left[0] == 0 < left[1] < left[2]
    assert asyncio.run(heads(path))["acme"] == 4


def test_two_processes_of_a_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each has chains of its own, so neither has to read or merge what the other wrote."""
    path = f"{tmp_path}/records.db"
    asyncio.run(made(path))
    writers, told = {number: SqliteWriter(path) for number in (1, 2)}, list[str]()
    names = [f"t{number}" for number in range(9)]

    def each() -> None:
        for number, writer in writers.items():
            writer.write({(name, number): [draft()] for name in names}, link)

    each()
    for writer in writers.values():
        assert writer._connection is not None
        writer._connection.set_trace_callback(told.append)
    for _ in range(3):
        each()
    steps, unmerged = {*told}, [writer.unmerged > 0 for writer in writers.values()]
    for writer in writers.values():
        writer.finish()

    assert not {one for one in steps if not one.startswith(("INSERT INTO audit_batches", "-- "))}
    assert unmerged == [True, True]
    assert asyncio.run(heads(path)) == dict.fromkeys(names, 4)


def test_every_batch_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge does not, and a merge that fails leaves that as it was."""
    path = f"{tmp_path}/records.db"
    asyncio.run(made(path))
    writer = SqliteWriter(path)
    many = {(f"t{number}", 1): [draft()] for number in range(9)}

    def synchronous() -> int:
        assert writer._connection is not None
        return int(writer._connection.execute("PRAGMA synchronous").fetchone()[0])

    for _ in range(2):
        writer.write(many, link)
    before = synchronous()
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_audit_connection, "merge", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.tidy(idle=True)
    failed = synchronous()
    writer.tidy(idle=True)
    merged, left = synchronous(), writer.unmerged
    writer.finish()

    assert (before, failed, merged, left) == (2, 2, 2, 0)


async def heads(path: str) -> dict[str, int]:
    """The number of each tenant's last record."""
    records = await opened(f"sqlite:///{path}")
    heads = await records.audit.heads("", 99)
    found = {tenant: ends[-1].number for tenant, ends in heads.items()}
    await records.aclose()
    return found


async def made(path: str) -> None:
    """The tables."""
    await (await opened(f"sqlite:///{path}")).aclose()


async def test_the_log_beside_the_file_stays_small(file: SqlRecords, tmp_path: Path) -> None:
    """However much is recorded: what is in it is put in its places between two batches."""
    long = draft(reason="x" * (MOST_BYTES // 2))
    for _ in range(80):
        await write(file, {("acme", 1): [long] * 2})
    log = (tmp_path / "records.db-wal").stat().st_size

    assert (tmp_path / "records.db").stat().st_size > 60 * MOST_BYTES
    assert log < 2 * COPIED_UNDER_LOAD


async def test_what_a_reader_holds_back_is_settled_later(file: SqlRecords, tmp_path: Path) -> None:
    """Nobody waits for it, and nothing is lost."""
    reader = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM audit_segments").fetchone()
    long = draft(reason="x" * (MOST_BYTES // 2))
    for _ in range(12):
        await write(file, {("acme", 1): [long] * 2})
    reader.execute("ROLLBACK")
    reader.close()
    await write(file, {("acme", 1): [long] * 10})

    assert await numbers(file) == [*range(1, 36)]


@pytest.mark.parametrize("times", [1, 2])
async def test_more_than_one_statement_takes_is_written_together(
    file: SqlRecords, times: int
) -> None:
    """Many tenants, and many bytes of one of them, the first time and after that."""
    names = [f"t{number}" for number in range(2 * MOST_CHAINS)]
    long = draft(reason="x" * (MOST_BYTES // 3))
    for _ in range(times):
        await write(file, {(name, 1): [draft()] for name in names} | {("acme", 1): [long] * 10})

    assert await numbers(file) == [*range(1, 10 * times + 2)]
    assert [await numbers(file, name) for name in names] == [[*range(1, times + 1)]] * len(names)
    assert all(
        len(one.records) < 2 * MOST_BYTES
        for one in await file.of("acme").trail.chain(1).segments(0, 99)
    )


async def test_what_another_process_wrote_is_gone_behind(file: SqlRecords, tmp_path: Path) -> None:
    """No tenant's part of a batch is written twice, or behind an end that is none any more."""
    other = await opened(f"sqlite:///{tmp_path}/records.db")
    await write(other, {("globex", 1): [draft()]})
    await write(file, {("acme", 1): [draft()], ("globex", 1): [draft()]})
    await other.aclose()

    assert (await numbers(file), await numbers(file, "globex")) == ([1, 2], [1, 2, 3])


async def test_a_checkpoint_stays_known(file: SqlRecords) -> None:
    """It has a head of its own, which the next batch does not touch."""
    await file.of("acme").trail.check(sign)
    await write(file, {("acme", 1): [draft()]})
    signed, end = await file.of("acme").trail.heads()

    assert (end.number, signed.number, signed.hash) == (2, 1, b"seal")


@pytest.mark.parametrize("tenants", [0, 9], ids=["few", "many"])
@pytest.mark.parametrize("change", ["number = 2", "hash = x'00'", "pruned = 1", "proof = 'x'"])
async def test_a_head_that_somebody_changed_is_shown_to_the_linker(
    file: SqlRecords, tmp_path: Path, change: str, tenants: int
) -> None:
    """Who is the one to find out; what the writer remembers must not cover it up."""
    batch: Batch = {(f"t{number}", 1): [draft()] for number in range(tenants)}
    await write(file, batch)
    batch = {**batch, ("acme", 1): [draft()]}
    intruder = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    intruder.execute(f"UPDATE audit_heads SET {change} WHERE tenant = 'acme'")  # noqa: S608  # ours
    there = intruder.execute("SELECT * FROM audit_heads WHERE tenant = 'acme'").fetchone()
    intruder.close()
    shown = []

    def stop(*told: object) -> None:
        if told[0] == ("acme", 1):
            shown.append(told[1])
        if len(shown) == 2:
            raise LookupError

    def looking(*told: object) -> object:
        stop(*told)
        return link(*told)  # type: ignore[arg-type]  # what it was called with

    with pytest.raises(LookupError):
        await file.audit.write(batch, looking)  # type: ignore[arg-type]  # the same
    found = shown[1]

    assert tuple(getattr(found, name) for name in found.__struct_fields__) == there  # type: ignore[attr-defined]  # a head


async def test_a_file_that_is_gone_keeps_no_record(file: SqlRecords, tmp_path: Path) -> None:
    """SQLite would acknowledge on in the removed file; when it is back, so is the record."""
    path, aside = tmp_path / "records.db", tmp_path / "aside.db"
    path.rename(aside)
    with pytest.raises(StoreUnavailable, match="gone or another"):
        await write(file, {("acme", 1): [draft()]})
    aside.rename(path)
    await write(file, {("acme", 1): [draft()]})

    assert await numbers(file) == [1, 2]


async def test_a_writer_that_hangs_is_an_outage(
    file: SqlRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told in time; what it has begun ends by itself, and what comes then is behind it."""
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    go = threading.Event()

    def slow(*told: Any) -> Any:
        go.wait(LONG)
        return link(*told)

    with pytest.raises(StoreUnavailable, match="in time"):
        await file.audit.write({("acme", 1): [draft(7)]}, slow)
    async with asyncio.timeout(LONG):
        await file.audit.aclose()
    go.set()
    monkeypatch.setattr(module, "ANSWER_S", LONG)
    with pytest.raises(StoreUnavailable, match="closed"):
        await write(file, {("acme", 1): [draft()]})


async def test_who_stops_waiting_leaves_the_batch_to_be_written(file: SqlRecords) -> None:
    """Cancelled while the thread is at it; whoever is next hears of their own batch."""
    began, go = threading.Event(), threading.Event()

    def slow(*told: Any) -> Any:
        began.set()
        go.wait(LONG)
        return link(*told)

    writing = asyncio.ensure_future(file.audit.write({("acme", 1): [draft(7)]}, slow))
    await asyncio.to_thread(began.wait, LONG)
    writing.cancel()
    go.set()
    await write(file, {("acme", 1): [draft(8)]})

    assert writing.cancelled()
    assert [row.at for row in await file.of("acme").trail.chain(1).rows(1, 9)] == [7, 8]


def test_a_loop_that_ends_meanwhile_hears_nothing(tmp_path: Path) -> None:
    """The thread goes on with whoever is next."""
    began, go = threading.Event(), threading.Event()

    def slow(*told: Any) -> Any:
        began.set()
        go.wait(LONG)
        return link(*told)

    async def leave() -> SqlRecords:
        records = await opened(f"sqlite:///{tmp_path}/records.db")
        writing = asyncio.ensure_future(records.audit.write({("acme", 1): [draft()]}, slow))
        await asyncio.to_thread(began.wait, LONG)
        writing.cancel()
        return records

    async def arrive(records: SqlRecords) -> list[int]:
        await write(records, {("acme", 1): [draft()]})
        found = await numbers(records)
        await records.aclose()
        return found

    records = asyncio.run(leave())
    go.set()

    assert asyncio.run(arrive(records)) == [1, 2]
