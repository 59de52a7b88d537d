"""
The connection that audit records are written with to a SQLite file: the driver itself.

Two threads of this process compete for the interpreter's lock. Each call of the driver releases it,
and may wait milliseconds until the event loop releases it in turn. So a batch is one call if
possible.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from gatepost.storage.audit import Batch, ChainHead, ChainKey, Checkpoint, Link, Segment, Sign
from gatepost.storage.audit_segments import end_of
from gatepost.storage.audit_sums import sums_of
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit_heads import TOO_HIGH, is_beyond, stored_checkpoint, stored_head
from gatepost.storage.sql.audit_sums import only_row, rows_of
from gatepost.storage.sql.database import told
from gatepost.storage.sql.sqlite import PRAGMAS, check_file, connect
from gatepost.storage.sql.sqlite_audit_batches import (
    ChainGrowth,
    Execute,
    StoredBatch,
    digest_of,
    encode,
    end_of_batches,
    heads_of,
    merge,
    put,
)
from gatepost.storage.sql.sqlite_audit_statements import (
    CHECK,
    END,
    ENDS,
    KEEP,
    NEWEST,
    RECORD,
    RECORDS,
    SETUP,
    add_batch,
    grow,
)
from gatepost.storage.sql.tables import escaped

MERGED_BYTES = 262_144
"""
Bytes of batches after which they are merged. That takes about two milliseconds, as long as the next
calls run. More at once would be cheaper and delay those calls.
"""
MERGED_S = 1.0
"""How long a batch waits to be merged at most, while others follow."""
FEW_CHAINS = 4
"""
Chains of a batch that is written into the tables at once if no other waits to be merged: that is
cheaper than to write its records twice.
"""
MOST_CHAINS = 512
"""Chains of a batch that one statement compares; it is prepared once for each power of two."""

COPIED_BYTES = 1_048_576
"""Bytes after which the log is copied into the database file when no batch waits."""
COPIED_UNDER_LOAD = 8_388_608
"""
The same between two batches. SQLite itself copies thousands of pages within one commit, which then
takes ten times as long. If it were done more often, more than one batch in a hundred would wait.
"""
CHAIN_BYTES = 16_384
"""About how many bytes of the log the pages of a chain take, beside its records."""


class KnownChain(msgspec.Struct, eq=False):
    """A chain as the connection has left it."""

    head: ChainHead
    columns: tuple[Any, ...]
    """The columns of the head in the database, which the batches that are not merged follow."""


class SqliteWriter:
    """The connection that records are written with; for one thread."""

    def __init__(self, path: str) -> None:
        self._path, self._file = path, os.stat(path)
        self._connection: sqlite3.Connection | None = None
        self._chains: dict[ChainKey, KnownChain] = {}
        self._grown: dict[ChainKey, KnownChain] = {}
        """Those with records in batches that are not merged."""
        self._batches: dict[bytes, StoredBatch] = {}
        """Batches that are not merged, by their digests."""
        self._ends: dict[int, tuple[Any, ...]] = {}
        """The end of each writer's batches, as the columns `MOVED`."""
        self.unmerged = 0
        """Bytes of batches that are not merged."""
        self._since = 0.0
        """When the first of them was written."""
        self.uncopied = 0
        """About how many bytes may be in the log only."""

    def write(self, batch: Batch, link: Link) -> None:
        """Add a batch, as `AuditStore.write` does."""
        if not any(batch.values()):
            return
        with self._answering():
            connection = self._checked()
            if not self._write_at_once(connection, batch, link):
                self._write_in_turn(connection, batch, link)

    def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Add checkpoints, as `AuditStore.sign` does."""
        made: dict[str, tuple[Checkpoint, ChainHead]] = {}
        with self._answering():
            connection = self._checked()
            with connection:  # commits, or rolls back
                self._begin(connection)
                for tenant in tenants:
                    name = escaped(tenant)
                    found = connection.execute(ENDS, (name,)).fetchall()
                    heads = [stored_head((tenant, *one[1:])) for one in found]
                    row = connection.execute(NEWEST, (name,)).fetchone()
                    newest = None if row is None else stored_checkpoint(row[1:])
                    if heads and (signed := sign(heads, newest)) is not None:
                        made[tenant] = signed
                        connection.execute(CHECK, (name, *astuple(signed[0])))
                        connection.execute(KEEP, (name, *astuple(signed[1])[1:]))
            self._merged()
        self.uncopied += sum(len(one.statement) + len(one.signature) for one, _ in made.values())
        return {tenant: checkpoint for tenant, (checkpoint, _) in made.items()}

    def tidy(self, *, idle: bool = False) -> None:
        """
        Merge the batches and copy the log if it is time; call this after a batch is written.

        *idle* says that none has come for a while. What fails is done later.
        """
        old = self.unmerged and time.monotonic() >= self._since + MERGED_S
        if idle or old or self.unmerged >= MERGED_BYTES:
            with contextlib.suppress(StoreUnavailable):
                self._merge()
        if self.uncopied >= (COPIED_BYTES if idle else COPIED_UNDER_LOAD):
            self.copy_log()

    def _merge(self) -> None:
        with self._answering():
            connection = self._checked()
            # The batches are durable, so their transaction need not wait for the disk: if it is
            # lost with the power, they are still there. The log is copied only once it is durable.
            connection.execute("PRAGMA synchronous = NORMAL")
            try:
                with connection:
                    self._begin(connection)
            finally:
                # Whatever failed: the next batch is acknowledged once the disk has it.
                connection.execute(f"PRAGMA synchronous = {PRAGMAS['synchronous']}")
            self._merged()

    def copy_log(self) -> None:
        """
        Copy the log into the database file; call this after a batch is acknowledged.

        What a reader holds back is left for the next time, or for a commit.
        """
        self.uncopied = 0
        if self._connection is None:
            return
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            self.close()

    def finish(self) -> None:
        """Merge the batches, and close the connection."""
        if self.unmerged:
            self.tidy(idle=True)
        self.close()

    def close(self) -> None:
        """Close the connection; another write opens one."""
        self._chains, self._grown, self._batches, self._ends = {}, {}, {}, {}
        self.unmerged = 0
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _checked(self) -> sqlite3.Connection:
        """Return the connection to the file, which must still be there."""
        check_file(self._path, self._file)
        return self._connection or self._connect()

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Raise StoreUnavailable for an error of the database, and close the connection."""
        try:
            yield
        except sqlite3.Error as error:
            self.close()
            raise StoreUnavailable(told(error)) from None
        except StoreUnavailable:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = self._connection = connect(self._path)
        for statement in SETUP:
            connection.execute(statement)
        return connection

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction, and merge all batches in it."""
        connection.execute("BEGIN IMMEDIATE")
        self._ends |= merge(_executing(connection), self._batches)

    def _merged(self) -> None:
        """Note that the heads in the database are those behind all batches."""
        for (_, writer), known in self._grown.items():
            known.columns = (known.columns[0], writer, *columns_of(known.head))
        self.uncopied += CHAIN_BYTES * len(self._grown)
        self._grown, self._batches, self.unmerged = {}, {}, 0

    def _write_at_once(self, connection: sqlite3.Connection, batch: Batch, link: Link) -> bool:
        """
        Write after the heads that this connection knows, in one statement.

        Return False if they have changed: another process may have added records or merged batches,
        or a person may have changed the database.
        """
        writer = next(iter(batch))[1]
        if writer not in self._ends or len(batch) > MOST_CHAINS:
            return False
        moved: list[tuple[KnownChain, ChainHead]] = []
        growths: list[ChainGrowth] = []
        values: list[object] = []
        for chain, drafts in batch.items():
            known = self._chains.get(chain)
            if known is None or chain[1] != writer or not drafts:
                return False
            before = known.head
            segments, head = link(chain, before, drafts)
            columns = known.columns
            moved.append((known, head))
            growths.append(ChainGrowth(columns[0], before.hash, columns_of(head), segments))
            values += columns
        try:
            if self.unmerged or not self._write_few(connection, moved, growths):
                self._write_row(connection, writer, growths, values)
                self._grown.update(zip(batch, (known for known, _ in moved), strict=True))
        except sqlite3.IntegrityError:
            return False
        for known, head in moved:
            known.head = head
        return True

    def _write_few(
        self,
        connection: sqlite3.Connection,
        moved: Sequence[tuple[KnownChain, ChainHead]],
        growths: Sequence[ChainGrowth],
    ) -> bool:
        """Write into the tables, and return True, if the chains have a few usual segments."""
        if len(growths) > FEW_CHAINS:
            return False
        values: list[object] = []
        size = 0
        for (known, _), growth in zip(moved, growths, strict=True):
            (segment, *more), columns = growth.segments, known.columns
            if more or (summed := only_row(segment)) is None:
                return False
            size += len(segment.records)
            values += (columns[0], *astuple(segment), *growth.after, *columns[2:], *summed)
        connection.execute(grow(len(growths)), values)
        self.uncopied += size + CHAIN_BYTES * len(growths)
        for (known, _), growth in zip(moved, growths, strict=True):
            known.columns = (*known.columns[:2], *growth.after)
        return True

    def _write_row(
        self,
        connection: sqlite3.Connection,
        writer: int,
        growths: list[ChainGrowth],
        known: Sequence[object],
    ) -> None:
        """Write a batch as one row; *known* has the columns of the heads of its chains."""
        last, previous, *rest = self._ends[writer]
        batch = StoredBatch(writer, last + 1, growths)
        row = encode(batch)
        digest = digest_of(previous, row)
        size = 1 << (len(growths) - 1).bit_length()
        added = [*known, *list(known[-len(END) :]) * (size - len(growths))]
        connection.execute(add_batch(size), [*added, writer, last + 1, previous, digest, row])
        self._batches[digest] = batch
        self._ends[writer] = (last + 1, digest, *rest)
        if not self.unmerged:
            self._since = time.monotonic()
        self.unmerged += len(row)
        self.uncopied += 3 * len(row)  # as a row, overwritten, and in segments

    def _shown(
        self, connection: sqlite3.Connection, chain: ChainKey, head: ChainHead | None
    ) -> ChainHead | None:
        """Return the end of a chain that records are added after, as `audit_heads.shown` does."""
        which = (escaped(chain[0]), chain[1])
        newest = connection.execute(RECORDS, (*which, TOO_HIGH)).fetchone()
        if newest is None or not is_beyond(newest, head):
            return head
        found = connection.execute(RECORD, (*which, newest[1])).fetchone()
        return end_of(chain, head, Segment(*found[1:]))

    def _write_in_turn(self, connection: sqlite3.Connection, batch: Batch, link: Link) -> None:
        """Write after the heads in the database."""
        chains: dict[ChainKey, KnownChain] = {}
        segments: list[tuple[str, Segment]] = []
        sums: list[tuple[Any, ...]] = []
        with connection:  # commits, or rolls back
            self._begin(connection)
            execute = _executing(connection)
            names = {chain: escaped(chain[0]) for chain in batch}
            writers = {writer for _, writer in batch}
            found = heads_of(execute, [(names[chain], chain[1]) for chain in batch])
            for chain, drafts in batch.items():
                key = names[chain], chain[1]
                row = found.get(key)
                before = None if row is None else stored_head((chain[0], *row[1:]))
                made, head = link(chain, self._shown(connection, chain, before), drafts)
                segments += [(key[0], one) for one in made]
                sums += rows_of(*key, sums_of(made))
                chains[chain] = KnownChain(head, (*key, *columns_of(head)))
            put(execute, segments, [one.columns for one in chains.values()], sums)
            ends = {writer: end_of_batches(execute, writer) for writer in writers}
        self._merged()
        self._ends |= ends
        self._chains |= chains
        self.uncopied += sum(CHAIN_BYTES + len(one.records) for _, one in segments)


def columns_of(head: ChainHead) -> tuple[int, bytes, int, str]:
    """Return what the database stores of a head, without its chain."""
    return head.number, head.hash, head.pruned, head.proof


def _executing(connection: sqlite3.Connection) -> Execute:
    return lambda statement, values: connection.execute(statement, values).fetchall()
