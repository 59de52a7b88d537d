"""Calls that come together share an update of the index, which claims no more than it knows."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gatepost.tools.context.client import SilentClient
from gatepost.tools.context.interfaces import Item
from gatepost_packs.vault.catalog import BATCH_FILES
from gatepost_packs.vault.index import (
    UNKNOWN,
    IndexDifference,
    IndexedFile,
    KnownFiles,
    TenantIndex,
)
from gatepost_packs.vault.note import read_note
from gatepost_packs.vault.tools import vault_search
from tests.packs.vault.test_index import OLD_TIME, VaultTools
from tests.packs.vault.test_index import secrets as secrets

pytestmark = pytest.mark.requirement("P5")


class InformedClient(SilentClient):
    """A client that notes the progress it is told."""

    def __init__(self) -> None:
        self.reported: list[float] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.reported.append(progress)


@pytest.fixture
def index(tmp_path: Path) -> TenantIndex:
    """Return an empty index, as each process has one."""
    return TenantIndex(tmp_path, threading.Event(), 10_000_000)


def a_file(path: str, text: str, at: int = 1) -> IndexedFile:
    return IndexedFile(Item(path, "file", 1, 1.0, (1, 1, 1, at)), read_note(path, text))


def known(index: TenantIndex) -> KnownFiles:
    return index.known_files(is_whole=True)


def paths(index: TenantIndex) -> list[str]:
    return sorted(known(index).stamps or ())


def difference(index: TenantIndex, known_files: KnownFiles, *files: IndexedFile) -> IndexDifference:
    found = index.difference(known_files, [file.item for file in files])
    assert found is not None
    return found


async def test_many_searches_at_once_read_each_note_once(secrets: VaultTools) -> None:
    """Searches that start while the index is being made wait for it, and list the files once."""
    for number in range(50):
        secrets.put(f"n{number}.md", f"word{number}")

    results = await asyncio.gather(
        *(vault_search(secrets.ctx, f"word{number}") for number in range(8))
    )

    assert [len(result.hits) for result in results] == [1] * 8
    assert len(secrets.read) == 50
    assert secrets.listings == 1


async def test_a_search_sees_every_change_before_it(secrets: VaultTools) -> None:
    """Those that come during an update share the next one, which begins after them."""
    secrets.put("one.md", "apple")
    assert await secrets.search("apple") == ["one.md"]
    secrets.listing = asyncio.Event()
    secrets.listed.clear()
    first = asyncio.create_task(secrets.search("pear"))
    await asyncio.wait_for(secrets.listed.wait(), 10)
    secrets.put("two.md", "pear")
    others = [asyncio.create_task(secrets.search("pear")) for _ in range(5)]
    await asyncio.sleep(0)
    secrets.listing.set()

    assert await asyncio.gather(*others) == [["two.md"]] * 5
    await first  # its search may run after the update of the others
    assert secrets.listings == 3


async def test_a_search_that_leaves_ends_no_other_one(secrets: VaultTools) -> None:
    """The update goes on for the others; if all leave, the next search begins another one."""
    secrets.put("one.md", "apple")
    secrets.listing = asyncio.Event()
    first, second = (asyncio.create_task(secrets.search("apple")) for _ in range(2))
    await asyncio.wait_for(secrets.listed.wait(), 10)
    first.cancel()
    await asyncio.wait((first,))
    third = asyncio.create_task(secrets.search("apple"))
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.wait((third,))
    fourth = asyncio.create_task(secrets.search("apple"))
    secrets.listing.set()

    assert await second == await fourth == ["one.md"]
    assert first.cancelled()
    assert third.cancelled()


async def test_each_search_is_told_how_far_the_index_is(secrets: VaultTools) -> None:
    """Also those that did not begin the update."""
    for number in range(2 * BATCH_FILES):
        secrets.put(f"n{number}.md", f"word{number}")
    clients = [InformedClient() for _ in range(3)]

    await asyncio.gather(*(vault_search(secrets.ctx_of(client), "word1") for client in clients))

    assert [client.reported for client in clients] == [[BATCH_FILES, 2 * BATCH_FILES]] * 3


async def test_an_index_of_unchanged_files_is_not_read_whole(
    secrets: VaultTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search in a vault of thousands of notes need not compare them with as many rows."""
    read_whole: list[bool] = []
    known_files = TenantIndex.known_files

    def noted(index: TenantIndex, *, is_whole: bool) -> KnownFiles:
        read_whole.append(is_whole)
        return known_files(index, is_whole=is_whole)

    for number in range(20):
        secrets.put(f"n{number}.md", f"word{number}")
    await secrets.search("word1")
    monkeypatch.setattr(TenantIndex, "known_files", noted)

    before = os.stat(secrets.index).st_mtime_ns
    assert await secrets.search("word2") == ["n2.md"]
    assert read_whole == [False]
    assert os.stat(secrets.index).st_mtime_ns == before
    secrets.put("n2.md", "other", at=OLD_TIME + 1)
    assert await secrets.search("word2") == []
    assert read_whole == [False, False, True]


def test_an_older_reading_does_not_replace_a_newer_one_of_another_process(
    index: TenantIndex,
) -> None:
    """This holds for an older list of files and for an older text."""
    old, new, fresh = a_file("a.md", "old"), a_file("a.md", "new", 2), a_file("b.md", "new", 2)
    index.put(known(index), [old], None)
    notes = known(index)
    index.put(known(index), [new, fresh], None)

    assert difference(index, notes, old).changed == []
    assert index.put(notes, [old], None)
    assert difference(index, known(index), new, fresh).changed == []


def test_an_index_is_complete_only_for_the_list_that_it_was_made_from(index: TenantIndex) -> None:
    """A file that goes again leaves the same list as before, but not the same index."""
    one, two = a_file("a.md", "one"), a_file("b.md", "two")
    first = difference(index, known(index), one)
    assert first.changed == [one.item]
    index.put(first.known_files, [one], first.listing)
    assert index.known_files(is_whole=False).listing == first.listing
    assert not difference(index, index.known_files(is_whole=False), one).changed

    second = difference(index, known(index), one, two)
    index.put(second.known_files, [two], second.listing)
    gone = difference(index, index.known_files(is_whole=False), one)

    assert gone.changed == []
    assert paths(index) == ["a.md"]
    assert index.known_files(is_whole=False).listing == first.listing


def test_a_process_does_not_call_an_index_complete_that_another_one_changed(
    index: TenantIndex,
) -> None:
    """
    Both listed `a.md`; the other one has also found `b.md`, which is deleted afterwards.

    If the index counted as complete for the list with `a.md` alone, `b.md` would stay in it.
    """
    one, two = a_file("a.md", "one"), a_file("b.md", "two")
    ours = difference(index, known(index), one)
    theirs = difference(index, known(index), one, two)
    index.put(theirs.known_files, [one, two], theirs.listing)

    after = index.put(ours.known_files, [one], ours.listing)

    assert after is not None
    assert after.changes == UNKNOWN
    assert index.known_files(is_whole=False).listing is None
    assert difference(index, known(index), one).changed == []
    assert paths(index) == ["a.md"]


def test_a_list_is_compared_only_with_what_was_known_before_it(index: TenantIndex) -> None:
    """A file that another process has found since is not deleted."""
    one, two = a_file("a.md", "one"), a_file("b.md", "two")
    before: Any = index.known_files(is_whole=False)
    index.put(known(index), [one, two], None)

    assert index.difference(before, [one.item]) is None
    assert paths(index) == ["a.md", "b.md"]
