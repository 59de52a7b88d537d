"""A vault and its index, brought up to date before each answer."""

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

from gatepost.packs.text import decoded
from gatepost.packs.vault.index import SETTLED_S, Broken, Index, Known
from gatepost.packs.vault.names import SHOWN, is_note
from gatepost.packs.vault.note import read_note
from gatepost.packs.vault.settings import VaultSettings
from gatepost.tools.api import CallContext, ToolFailure
from gatepost.tools.surroundings import Head, Item, Workspace

T = TypeVar("T")

MOST_FILES = 100_000
"""Files and folders of a vault that are looked at."""
MOST_NOTE_BYTES = 1_000_000
"""Of one note that are read and searched."""
BATCH_FILES = 256
BATCH_BYTES = 8_000_000
"""What is in memory at once."""
ATTEMPTS = 3

_turns: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
"""One at a time brings a tenant's index up to date in this process: two would read all twice."""


class State(msgspec.Struct, frozen=True):
    """How complete the index is."""

    unindexed: int = 0
    """Files there was no room for."""
    cut: bool = False
    """Whether there are more files than are looked at."""

    @property
    def remark(self) -> str | None:
        """What a model should know of it."""
        if self.unindexed:
            return (
                f"{self.unindexed} files are not among what is searched and listed: the index is "
                "full. The operator can raise packs.vault.index_bytes."
            )
        if self.cut:
            return f"The vault has more than {MOST_FILES} files; the others are not looked at."
        return None


class Catalog:
    """The vault of one call's tenant."""

    def __init__(self, ctx: CallContext) -> None:
        settings = ctx.settings(VaultSettings)
        self._ctx = ctx
        self._most_bytes = settings.index_bytes
        self._state: State | None = None
        self.space: Workspace = ctx.workspace.folder(settings.folder, SHOWN)

    async def ask(self, work: Callable[[sqlite3.Connection], T]) -> tuple[T, State]:
        """What *work* finds in the index, in a thread, which knows the files as the call began."""
        for attempt in range(ATTEMPTS):
            try:
                if self._state is None:
                    async with self._turn():
                        self._state = await self._refresh()
                return await self._index(lambda index: index.read(work)), self._state
            except (Broken, OSError):
                self._state = None
                if attempt == ATTEMPTS - 1:
                    message = "The vault's index cannot be used or made anew. Tell the operator."
                    raise ToolFailure("internal", message) from None
        raise AssertionError("the last attempt returns or raises")

    def _turn(self) -> asyncio.Lock:
        key = (id(asyncio.get_running_loop()), self._ctx.caller.tenant_id)
        return _turns.setdefault(key, asyncio.Lock())

    async def _refresh(self) -> State:
        scanned_at = time.time()
        known = await self._index(Index.known)
        listing = await self.space.entries(recursive=True, hidden=False, limit=MOST_FILES)
        files = [item for item in listing.items if item.type == "file"]
        changed = await self._index(lambda index: index.behind(known, files))
        done = 0
        for batch in _batches(changed):
            found = await self._read(batch, scanned_at)
            if not await self._index(partial(Index.put, known=known, found=found)):
                break
            done += len(batch)
            if len(changed) > BATCH_FILES:
                await self._ctx.progress(done, len(changed), "Reading the notes")
        return State(len(changed) - done, listing.cut)

    async def _read(self, batch: Sequence[Item], scanned_at: float) -> list[Known]:
        notes = [item.path for item in batch if is_note(item.path)]
        heads = await self.space.heads(notes, limit=MOST_NOTE_BYTES)
        found = dict(zip(notes, heads, strict=True))

        def parsed(place: Path, stop: threading.Event) -> list[Known]:
            return [_known(item, found.get(item.path), scanned_at) for item in batch]

        return await self.space.apart(parsed)

    async def _index(self, work: Callable[[Index], T]) -> T:
        return await self.space.apart(
            lambda place, stop: work(Index(place, stop, self._most_bytes))
        )


def text_of(path: str, head: Head) -> str:
    """A note's text; ToolFailure when it is none."""
    return decoded(f"{SHOWN}{path}", head)


def _known(item: Item, head: Head | None, scanned_at: float) -> Known:
    settled = item.modified < scanned_at - SETTLED_S
    if head is None:
        # No note, or one that nobody can read now: its name is all there is to know.
        return Known(item, settled=settled or not is_note(item.path))
    try:
        return Known(item, read_note(item.path, text_of(item.path, head)), settled=settled)
    except ToolFailure:
        return Known(item, settled=settled)


def _batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += min(item.size, MOST_NOTE_BYTES) if is_note(item.path) else 0
        if len(batch) == BATCH_FILES or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
