"""The connection that audit records are written with to a SQLite file: all but the usual write."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from gatepost.storage.audit import Batch, ChainHead, ChainKey, Checkpoint, Link, Segment, Sign
from gatepost.storage.audit_segments import end_of
from gatepost.storage.audit_sums import sums_of
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit_heads import TOO_HIGH, is_beyond, stored_checkpoint, stored_head
from gatepost.storage.sql.audit_sums import rows_of
from gatepost.storage.sql.database import told
from gatepost.storage.sql.sqlite import PRAGMAS, check_file, connect
from gatepost.storage.sql.sqlite_audit_batches import (
    Execute,
    StoredBatch,
    end_of_batches,
    heads_of,
    merge,
    put,
)
from gatepost.storage.sql.sqlite_audit_statements import (
    CHECK,
    ENDS,
    KEEP,
    NEWEST,
    RECORD,
    RECORDS,
    SETUP,
)
from gatepost.storage.sql.tables import escaped

CHAIN_BYTES = 16_384
"""About how many bytes of the log the pages of a chain take, beside its records."""


class KnownChain(msgspec.Struct, eq=False):
    """A chain as the connection has left it."""

    head: ChainHead
    columns: tuple[Any, ...]
    """The columns of the head in the database, which the batches that are not merged follow."""


class SqliteAuditConnection:
    """The connection, and what it knows of chains and batches; for one thread."""

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
            with contextlib.suppress(StoreUnavailable):
                self._merge()
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
        except (sqlite3.Error, StoreUnavailable) as error:
            raise self._failed(error) from None

    def _failed(self, error: sqlite3.Error | StoreUnavailable) -> StoreUnavailable:
        """Close the connection after an error, and return what is to be raised."""
        self.close()
        return error if isinstance(error, StoreUnavailable) else StoreUnavailable(told(error))

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
