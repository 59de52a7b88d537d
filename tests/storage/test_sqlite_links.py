"""A SQLite file that has two names: it is one database for all processes, whichever they use."""

import os
import stat
from pathlib import Path

import pytest

from gatepost.storage.errors import StoreRefused
from tests.storage.test_sqlite_wal import FileProcess, numbers, path, process, wal, write

__all__ = ["path"]  # a fixture

pytestmark = pytest.mark.requirement("AU3")


@pytest.fixture
def link(path: Path) -> Path:
    """Return a link to the database in another folder."""
    (path.parent / "links").mkdir()
    link = path.parent / "links" / "named.db"
    link.symlink_to(path)
    return link


def beside(link: Path, number: int = 1) -> Path:
    """Return where earlier versions kept a write-ahead log."""
    return link.with_name(f"{link.name}-audit-{number}")


def kill(records: FileProcess) -> None:
    """Leave what a killed process leaves."""
    vars(records.store)["_wal"].close()


async def test_processes_with_different_paths_merge_each_others_batches(
    path: Path, link: Path
) -> None:
    """All of their write-ahead logs are beside the file."""
    file, other = await process(path), await process(link)
    await write(file, acme=1)
    await write(other, acme=1)
    merged_numbers = await numbers(file), await numbers(other)
    for records in (file, other):
        await records.aclose()

    assert merged_numbers == ([1, 2], [1, 2])
    assert [*link.parent.iterdir()] == [link]


async def test_files_behind_a_link_are_closed_to_others(path: Path, link: Path) -> None:
    """SQLite keeps its files there, and existing ones keep their permissions."""
    await (await process(path)).aclose()
    companion = path.with_name(f"{path.name}-wal")
    companion.touch(0o644)
    records = await process(link)
    mode = stat.S_IMODE(companion.stat().st_mode)
    await records.aclose()

    assert mode == 0o600


@pytest.mark.parametrize("target", ["missing", "empty"])
async def test_a_log_that_an_earlier_version_left_beside_the_link_is_merged(
    path: Path, link: Path, target: str
) -> None:
    """An upgrade after a kill loses no record."""
    killed = await process(path)
    await write(killed, acme=2)
    kill(killed)
    wal(path).rename(beside(link))
    if target == "empty":
        wal(path).write_bytes(bytes(9_000))
    beside(link, 2).write_bytes(bytes(9_000))  # one of a process that was stopped
    records = await process(link)
    merged_numbers = await numbers(records), await numbers(records, "-")
    await records.aclose()

    assert merged_numbers == ([1, 2], [])


@pytest.mark.parametrize("obstacle", ["running", "another"])
async def test_a_log_beside_the_link_that_cannot_be_moved_is_named(
    path: Path, link: Path, obstacle: str
) -> None:
    """Its records would be missing, so the server does not start."""
    killed = await process(path)
    await write(killed, acme=1)
    if obstacle == "another":
        beside(link).write_bytes(wal(path).read_bytes())
        kill(killed)
    else:
        os.rename(wal(path), beside(link))

    with pytest.raises(StoreRefused, match=r"named\.db-audit-1 is beside a link and must be moved"):
        await process(link)
    await killed.records.database.aclose()
