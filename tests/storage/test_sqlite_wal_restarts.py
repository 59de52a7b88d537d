"""What fails when a write-ahead log begins anew loses no record silently."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from gatepost.storage.sql import sqlite_audit_connection as connection_module
from gatepost.storage.sql import sqlite_audit_writer as module
from tests.storage.test_sqlite_power_loss import DiskOrder
from tests.storage.test_sqlite_wal import (
    LONG_WAIT_S,
    numbers,
    path,
    process,
    write,
)
from tests.support.measuring import eventually
from tests.support.stores import failing_commits

__all__ = ["path"]  # a fixture


@pytest.mark.requirement("AU3")
async def test_a_restart_that_failed_loses_no_later_record(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row says the beginning of the file, where the next batch must be found after a kill."""

    failures = []

    def fail(name: str) -> None:
        failures.append(name)
        raise OSError(errno.EMFILE, "Too many open files")

    records = await process(path)
    await write(records, acme=1)
    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "synchronise_log", fail)
        patch.setattr(module, "IDLE_S", 0.01)
        await write(records, acme=1)
        await records.store.link_pending()
        await asyncio.to_thread(eventually, lambda: failures, within=LONG_WAIT_S)
    await write(records, acme=1)
    vars(records.store)["_wal"].close()  # as when the process is killed
    other = await process(path)
    kept = await numbers(other), await numbers(other, "-")
    await other.aclose()

    assert kept == ([1, 2, 3], [])


@pytest.mark.requirement("AU3")
async def test_tables_are_durable_before_a_log_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged frames are cut off then; a merge whose commit seemed to fail may be in no file."""
    records = await process(path)
    await write(records, acme=3)
    await records.store.link_pending()
    with monkeypatch.context() as patch:
        patch.setattr(connection_module, "executing", failing_commits(is_late=True))
        vars(records.store)["_merger"].close()  # the next connection executes so
        patch.setattr(module, "IDLE_S", 0.01)
        await write(records, acme=1)
        await asyncio.to_thread(eventually, lambda: records.store.is_failing, within=LONG_WAIT_S)
    order = DiskOrder(path, monkeypatch)
    cut, truncate = order.steps, os.ftruncate

    def ftruncate(handle: int, size: int) -> None:
        cut.append("frames are cut off")
        truncate(handle, size)

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    await write(records, acme=1)
    await records.aclose()

    assert "tables are durable" in cut[: cut.index("frames are cut off")]
