"""
The audit store of a SQLite file: batches are appended to a write-ahead log, and merged soon after.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gatepost.storage.audit import ChainKey, Checkpoint, Link, Linker, RecordsByChain, Sign
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit import SqlAuditStore
from gatepost.storage.sql.database import ANSWER_S, Database
from gatepost.storage.sql.sqlite_audit_merger import SqliteMerger
from gatepost.storage.sql.sqlite_audit_wal import WriteAheadLog
from gatepost.storage.sql.sqlite_database import WorkThreads

MERGED_BYTES, MAX_MERGED_BYTES = 1_048_576, 4_194_304
"""The bytes of batches after which they are merged: of few chains, and at most."""
MERGED_BYTES_OF_CHAIN = 4_096
"""
The bytes for each chain before a merge. A chain costs a merge as much as eight records, so there
should be several of each; but more at once takes more memory, and keeps other writers waiting.
"""
MERGED_S = 1.0
"""The longest time that a batch waits to be merged while others follow."""
IDLE_S = 0.2
"""The time without a new batch after which the waiting batches are merged."""
RESTARTED_BYTES = 16_777_216
"""
The bytes of a write-ahead log after which it restarts at its beginning although batches follow, and
the bytes of batches after which the next one waits for a merge.
"""

log = logging.getLogger(__name__)


class SqliteAuditStore(SqlAuditStore):
    """
    The `AuditStore` of a SQLite file: one thread appends to the write-ahead log of this process,
    and one merges.

    Without a linker, batches are written into the tables at once.
    """

    def __init__(self, database: Database, path: str, linker: Linker | None) -> None:
        super().__init__(database)
        self._merger = SqliteMerger(path)
        self._linker = linker
        self._wal = None if linker is None else WriteAheadLog(path, linker)
        self._appending = WorkThreads("audit")
        self._merging = WorkThreads("audit merge", look=self._merge_if_due)
        self._last_look = 0, 0.0
        """The end of the write-ahead log, and when it was first seen there."""
        self._chains: set[ChainKey] = set()
        """The chains of the batches since the last merge."""
        self._merged_bytes = MERGED_BYTES
        """The bytes after which the batches of these chains are merged."""
        self._since: float | None = None
        """The time when a batch was first seen that waits to be merged."""
        self._closed = False

    async def write(self, batch: RecordsByChain, link: Link) -> None:
        """Implement `AuditStore`."""
        if self._linker is None or self._wal is None:
            await self._merge(partial(self._merger.write, batch, link))
            return
        if not any(batch.values()):
            return
        if not self._wal.is_ready:
            await self._merge(partial(self._merger.open_wal, self._wal, self._linker))
        if self.is_failing or self._wal.unmerged >= RESTARTED_BYTES:
            # Batches that cannot be merged must not fill the disk.
            await self.link_pending()
        await self._appending.run(partial(self._append, self._wal, batch), within_s=ANSWER_S)

    async def link_pending(self) -> None:
        """Implement `AuditStore`."""
        if self._linker is not None:
            await self._merge(partial(self._merge_all, self._wal, self._linker))

    async def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Implement `AuditStore`."""
        await self.link_pending()
        checkpoints: dict[str, Checkpoint] = await self._merge(
            partial(self._merger.sign, tenants, sign)
        )
        return checkpoints

    async def aclose(self) -> None:
        """Finish the last batch, merge it, and unlock the write-ahead log."""
        if self._closed:
            return
        self._closed = True
        with suppress(StoreUnavailable):
            await self._merge(self._finish)
        self._appending.close()
        self._merging.close()

    async def _merge(self, work: Callable[[], Any]) -> Any:
        return await self._merging.run(work, within_s=ANSWER_S)

    def _append(self, wal: WriteAheadLog, batch: RecordsByChain) -> None:
        waited = wal.unmerged
        wal.append(batch)
        self._chains.update(batch)
        wanted_bytes = len(self._chains) * MERGED_BYTES_OF_CHAIN
        self._merged_bytes = min(max(wanted_bytes, MERGED_BYTES), MAX_MERGED_BYTES)
        if not waited or waited < self._merged_bytes <= wal.unmerged:
            self._merging.wake()

    def _merge_if_due(self) -> float | None:
        """Merge if it is time; return after how many seconds it may be time again."""
        wal, linker = self._wal, self._linker
        if wal is None or linker is None or not wal.position:
            return None
        now = time.monotonic()
        if wal.position != self._last_look[0]:
            self._last_look = wal.position, now
        is_idle = now >= self._last_look[1] + IDLE_S
        restarts = is_idle or wal.position >= RESTARTED_BYTES
        self._since = now if self._since is None else self._since
        if restarts or wal.unmerged >= self._merged_bytes or now >= self._since + MERGED_S:
            self._chains = set()
            with suppress(StoreUnavailable):
                self._merge_all(wal, linker, restart=restarts)
        if wal.unmerged >= self._merged_bytes and not self.is_failing:
            return 0  # the log has grown meanwhile
        return IDLE_S if wal.position else None

    def _merge_all(
        self, wal: WriteAheadLog | None, linker: Linker, *, restart: bool = False
    ) -> None:
        reason = "an unexpected error"
        try:
            self._merger.merge(wal, linker, restart=restart)
            reason = ""
        except StoreUnavailable as outage:
            reason = str(outage)
            raise
        finally:
            # After any error, the next batch waits for a merge. Otherwise Gatepost would
            # acknowledge batches that are never merged.
            if reason and not self.is_failing:
                log.error("audit_not_merged", extra={"reason": reason})
            self.is_failing = bool(reason)
        self._since = None

    def _finish(self) -> None:
        wal, linker = self._wal, self._linker
        try:
            if wal is not None and linker is not None and wal.is_ready:
                self._merger.merge(wal, linker, restart=True)
        finally:
            if wal is not None:
                wal.close()
            self._merger.close()
