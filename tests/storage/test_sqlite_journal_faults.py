"""What fails between a journal of a SQLite file and its tables loses no record."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql import sqlite_audit_merger as merger_module
from gatepost.storage.sql.sqlite_audit_statements import Execute, executing
from tests.storage.test_sqlite_journals import numbers, process, write


@pytest.mark.parametrize("is_late", [False, True], ids=["undone", "done"])
async def test_a_first_commit_that_failed_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """A journal without a row would be one of another database for the next process."""
    records = await process(tmp_path / "records.db")
    with monkeypatch.context() as patch:
        patch.setattr(merger_module, "executing", failing_commits(is_late=is_late))
        with pytest.raises(StoreUnavailable, match="OperationalError"):
            await write(records, acme=1)
    await write(records, acme=2)
    vars(records.audit)["_journal"].close()  # as when the process is killed
    other = await process(tmp_path / "records.db")
    found, told = await numbers(other), await numbers(other, "-")
    await other.aclose()

    assert (found, told) == ([1, 2], [])


def failing_commits(*, is_late: bool = False) -> Callable[[sqlite3.Connection], Execute]:
    """What executes statements, and says that a commit has failed, before or after it."""

    def of(connection: sqlite3.Connection) -> Execute:
        execute = executing(connection)

        def fail(statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            if statement == "COMMIT":
                if is_late:
                    execute(statement, values)
                raise sqlite3.OperationalError("database or disk is full")
            return execute(statement, values)

        return fail

    return of
