"""A vault and its index, which is updated before each answer."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

import msgspec

from gatepost import CallContext, FileHead, Item, ToolFailure, Workspace
from gatepost_packs.text import decoded
from gatepost_packs.vault.index import (
    STABLE_S,
    BrokenIndex,
    IndexDifference,
    IndexedFile,
    TenantIndex,
)
from gatepost_packs.vault.note import read_note
from gatepost_packs.vault.note_names import VAULT_PREFIX, is_note
from gatepost_packs.vault.settings import VaultSettings
from gatepost_packs.vault.shared_update import ProgressReport, SharedUpdates

T = TypeVar("T")

MAX_FILES = 100_000
"""Maximum number of files and folders of a vault that are listed."""
MAX_NOTE_BYTES = 1_000_000
"""Bytes of one note that are read and searched."""
BATCH_FILES = 256
BATCH_BYTES = 8_000_000
"""Bytes of notes that are in memory at once."""
ATTEMPTS = 3


class IndexState(msgspec.Struct, frozen=True):
    """How complete the index is."""

    unindexed: int = 0
    """Files that the index has no room for."""
    cut: bool = False
    """Whether there are more files than are listed."""

    @property
    def remark(self) -> str | None:
        """Return remarks for a model about missing notes."""
        if self.unindexed:
            return (
                f"{self.unindexed} files are neither searched nor listed, because the index is "
                "full. The operator can raise packs.vault.index_bytes."
            )
        if self.cut:
            return f"The vault has more than {MAX_FILES} files; the others are left out."
        return None


_updates: WeakKeyDictionary[Workspace, SharedUpdates[IndexState]] = WeakKeyDictionary()
"""By the workspace of a tenant, of which a server has one object."""


class VaultCatalog:
    """The vault of the calling tenant."""

    def __init__(self, ctx: CallContext) -> None:
        settings = ctx.settings(VaultSettings)
        self._ctx = ctx
        self._max_bytes = settings.index_bytes
        self._state: IndexState | None = None
        self.space: Workspace = ctx.workspace.folder(settings.folder, VAULT_PREFIX)

    async def query(self, work: Callable[[sqlite3.Connection], T]) -> tuple[T, IndexState]:
        """
        Return the result of *work* on the index, in a thread; the index is up to date when it runs.
        """
        for attempt in range(ATTEMPTS):
            try:
                if self._state is None:
                    updates = _updates.setdefault(self._ctx.workspace, SharedUpdates())
                    self._state = await updates.result(self._refresh, self._send_progress)
                return await self._index(lambda index: index.read(work)), self._state
            except (BrokenIndex, OSError):
                self._state = None
                if attempt == ATTEMPTS - 1:
                    message = (
                        "The vault's index can neither be used nor rebuilt. Tell the operator."
                    )
                    raise ToolFailure("internal", message) from None
        raise AssertionError("the last attempt returns or raises")

    async def _send_progress(self, read_count: int, changed_count: int) -> None:
        await self._ctx.progress(read_count, changed_count, "Reading the notes")

    async def _refresh(self, report: ProgressReport) -> IndexState:
        scanned_at = time.time()
        difference, is_cut = await self._difference()
        known_files, changed = difference.known_files, difference.changed
        read_count, is_stable = 0, True
        for batch in _batches(changed):
            indexed = await self._read(batch, scanned_at)
            is_stable = is_stable and all(file.is_stable for file in indexed)
            is_complete = is_stable and read_count + len(batch) == len(changed)
            put = partial(
                TenantIndex.put,
                known_files=known_files,
                files=indexed,
                listing=difference.listing if is_complete else None,
            )
            if (known_files_then := await self._index(put)) is None:
                break
            known_files = known_files_then
            read_count += len(batch)
            if len(changed) > BATCH_FILES:
                report(read_count, len(changed))
        return IndexState(len(changed) - read_count, is_cut)

    async def _difference(self) -> tuple[IndexDifference, bool]:
        """Return the difference between the files and the index, and whether the list is cut."""
        # What the index knows must be older than the list of files: a file that another process has
        # found since must not count as deleted. To read all of it is seldom necessary.
        for is_whole in (False, True):
            known_files = await self._index(partial(TenantIndex.known_files, is_whole=is_whole))
            listing = await self.space.entries(recursive=True, hidden=False, limit=MAX_FILES)
            difference = await self._index(
                partial(TenantIndex.difference, known_files=known_files, items=listing.items)
            )
            if difference is not None:
                return difference, listing.cut
        raise AssertionError("there is a difference to everything that the index knew")

    async def _read(self, batch: Sequence[Item], scanned_at: float) -> list[IndexedFile]:
        notes = [item.path for item in batch if is_note(item.path)]
        heads = await self.space.heads(notes, limit=MAX_NOTE_BYTES)
        heads_by_note = dict(zip(notes, heads, strict=True))

        def parsed(folder: Path, stop: threading.Event) -> list[IndexedFile]:
            return [_indexed_file(item, heads_by_note.get(item.path), scanned_at) for item in batch]

        return await self.space.in_cache(parsed)

    async def _index(self, work: Callable[[TenantIndex], T]) -> T:
        return await self.space.in_cache(
            lambda folder, stop: work(TenantIndex(folder, stop, self._max_bytes))
        )


def text_of(path: str, head: FileHead) -> str:
    """Return a note's text; ToolFailure if it is not a note."""
    return decoded(f"{VAULT_PREFIX}{path}", head)


def _indexed_file(item: Item, head: FileHead | None, scanned_at: float) -> IndexedFile:
    is_stable = item.modified < scanned_at - STABLE_S
    if head is None:
        # Not a note, or not readable now: only its name is known.
        return IndexedFile(item, is_stable=is_stable or not is_note(item.path))
    try:
        return IndexedFile(
            item, read_note(item.path, text_of(item.path, head)), is_stable=is_stable
        )
    except ToolFailure:
        return IndexedFile(item, is_stable=is_stable)


def _batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += min(item.size, MAX_NOTE_BYTES) if is_note(item.path) else 0
        if len(batch) == BATCH_FILES or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
