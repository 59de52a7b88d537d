"""A vault and its index, which is updated before each answer."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from gatepost import CallContext, FileHead, Item, ToolFailure, Workspace
from gatepost_packs.text import decoded
from gatepost_packs.vault.index import STABLE_S, BrokenIndex, IndexedFile, TenantIndex
from gatepost_packs.vault.note import read_note
from gatepost_packs.vault.note_names import VAULT_PREFIX, is_note
from gatepost_packs.vault.settings import VaultSettings

T = TypeVar("T")

MAX_FILES = 100_000
"""Maximum number of files and folders of a vault that are listed."""
MAX_NOTE_BYTES = 1_000_000
"""Bytes of one note that are read and searched."""
BATCH_FILES = 256
BATCH_BYTES = 8_000_000
"""Bytes of notes that are in memory at once."""
ATTEMPTS = 3

_locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
"""One update of a tenant's index at a time in this process: two would read every note twice."""


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
                    async with self._lock():
                        self._state = await self._refresh()
                return await self._index(lambda index: index.read(work)), self._state
            except (BrokenIndex, OSError):
                self._state = None
                if attempt == ATTEMPTS - 1:
                    message = (
                        "The vault's index can neither be used nor rebuilt. Tell the operator."
                    )
                    raise ToolFailure("internal", message) from None
        raise AssertionError("the last attempt returns or raises")

    def _lock(self) -> asyncio.Lock:
        key = (id(asyncio.get_running_loop()), self._ctx.caller.tenant_id)
        return _locks.setdefault(key, asyncio.Lock())

    async def _refresh(self) -> IndexState:
        scanned_at = time.time()
        known_files = await self._index(TenantIndex.stamps)
        listing = await self.space.entries(recursive=True, hidden=False, limit=MAX_FILES)
        files = [item for item in listing.items if item.type == "file"]
        changed = await self._index(lambda index: index.changed_items(known_files, files))
        read_count = 0
        for batch in _batches(changed):
            indexed = await self._read(batch, scanned_at)
            if not await self._index(
                partial(TenantIndex.put, known_files=known_files, files=indexed)
            ):
                break
            read_count += len(batch)
            if len(changed) > BATCH_FILES:
                await self._ctx.progress(read_count, len(changed), "Reading the notes")
        return IndexState(len(changed) - read_count, listing.cut)

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
