"""The audit store of a SQLite file: batches are appended to a journal, and merged soon after."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gatepost.storage.audit import Batch, Checkpoint, Link, Linker, Sign
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit import SqlAuditStore
from gatepost.storage.sql.database import ANSWER_S, Database
from gatepost.storage.sql.sqlite_audit_journal import Journal
from gatepost.storage.sql.sqlite_audit_merger import SqliteMerger
from gatepost.storage.sql.work_thread import WorkThread

MERGED_BYTES = 1_048_576
"""Bytes of batches after which they are merged."""
MERGED_S = 1.0
"""How long a batch waits to be merged at most, while others follow."""
IDLE_S = 0.2
"""How long no batch must come until those that wait are merged."""
RESTARTED_BYTES = 8_388_608
"""
Bytes of a journal after which it continues at its beginning although batches follow, and bytes of
batches after which the next one waits for a merge.
"""

log = logging.getLogger("gatepost.audit")


class SqliteAuditStore(SqlAuditStore):
    """
    Implement `AuditStore`: one thread appends to the journal of this process, and one merges.

    Batches are written into the tables at once until a linker is attached.
    """

    def __init__(self, database: Database, path: str) -> None:
        super().__init__(database)
        self._path = path
        self._merger = SqliteMerger(path)
        self._linker: Linker | None = None
        self._journal: Journal | None = None
        self._appending = WorkThread("audit")
        self._merging = WorkThread("audit merge", self._look)
        self._seen = 0, 0.0
        """The end of the journal, and when it was first seen there."""
        self._since: float | None = None
        """When a batch was first seen that waits to be merged."""
        self._closed = False

    def attach(self, linker: Linker) -> None:
        """Implement `AuditStore`."""
        self._linker = linker
        if self._journal is None:
            self._journal = Journal(self._path, linker)

    async def write(self, batch: Batch, link: Link) -> None:
        """Implement `AuditStore`."""
        if self._linker is None or self._journal is None:
            await self._merge(partial(self._merger.write, batch, link))
            return
        if not any(batch.values()):
            return
        if not self._journal.is_ready:
            await self._merge(partial(self._merger.open_journal, self._journal, self._linker))
        if self.is_failing or self._journal.unmerged >= RESTARTED_BYTES:
            # What cannot be merged must not fill the disk.
            await self.settle()
        await self._appending.do(partial(self._append, self._journal, batch), within_s=ANSWER_S)

    async def settle(self) -> None:
        """Implement `AuditStore`."""
        if self._linker is not None:
            await self._merge(partial(self._merge_all, self._journal, self._linker))

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Implement `AuditStore`."""
        await self.settle()
        made: dict[str, Checkpoint] = await self._merge(partial(self._merger.sign, tenants, sign))
        return made

    async def aclose(self) -> None:
        """Finish the last batch, merge it, and unlock the journal."""
        if self._closed:
            return
        self._closed = True
        with suppress(StoreUnavailable):
            await self._merge(self._finish)
        self._appending.close()
        self._merging.close()

    async def _merge(self, work: Callable[[], Any]) -> Any:
        return await self._merging.do(work, within_s=ANSWER_S)

    def _append(self, journal: Journal, batch: Batch) -> None:
        waited = journal.unmerged
        journal.append(batch)
        if not waited or waited < MERGED_BYTES <= journal.unmerged:
            self._merging.wake()

    def _look(self) -> float | None:
        """Merge if it is time; return after how many seconds it may be time again."""
        journal, linker = self._journal, self._linker
        if journal is None or linker is None or not journal.position:
            return None
        now = time.monotonic()
        if journal.position != self._seen[0]:
            self._seen = journal.position, now
        is_idle = now >= self._seen[1] + IDLE_S
        restarts = is_idle or journal.position >= RESTARTED_BYTES
        self._since = now if self._since is None else self._since
        if restarts or journal.unmerged >= MERGED_BYTES or now >= self._since + MERGED_S:
            with suppress(StoreUnavailable):
                self._merge_all(journal, linker, restart=restarts)
        if journal.unmerged >= MERGED_BYTES and not self.is_failing:
            return 0  # it has grown meanwhile
        return IDLE_S if journal.position else None

    def _merge_all(self, journal: Journal | None, linker: Linker, *, restart: bool = False) -> None:
        try:
            self._merger.merge(journal, linker, restart=restart)
        except StoreUnavailable as outage:
            if not self.is_failing:
                log.error("audit_not_merged", extra={"reason": str(outage)})
            self.is_failing = True
            raise
        self.is_failing, self._since = False, None

    def _finish(self) -> None:
        journal, linker = self._journal, self._linker
        try:
            if journal is not None and linker is not None and journal.is_ready:
                self._merger.merge(journal, linker, restart=True)
        finally:
            if journal is not None:
                journal.close()
            self._merger.close()
