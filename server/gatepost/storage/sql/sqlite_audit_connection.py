"""Write audit records and checkpoints into the tables of a SQLite file, and empty its logs."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from msgspec.structs import astuple

from gatepost.storage.audit import ChainHead, Checkpoint, Link, RecordsByChain, Segment, Sign
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.sql.audit_heads import stored_head
from gatepost.storage.sql.audit_sums import rows_of_chain
from gatepost.storage.sql.database import error_summary
from gatepost.storage.sql.sqlite import connect, overwrite, wals
from gatepost.storage.sql.sqlite_audit_statements import (
    Execute,
    ends_of,
    executing,
    newest_checkpoint,
    put,
    recorded_ends,
)
from gatepost.storage.sql.sqlite_audit_wal import synchronise
from gatepost.storage.sql.sqlite_database import check_file, write_lock
from gatepost.storage.sql.tables import escaped
from gatepost.storage.sqlite_file import path_of

COPIED_BYTES = 4_194_304
"""The bytes of SQLite's log after which it is copied into the database file, between two merges."""
CHAIN_BYTES = 16_384
"""The approximate bytes of SQLite's log that the pages of a chain take, beside its records."""


class SqliteAuditConnection:
    """The connection that audit records are written with to a SQLite file; for one thread."""

    def __init__(self, path: str) -> None:
        self.path, self._file = path, os.stat(path)
        self._connection: sqlite3.Connection | None = None
        self._uncopied = 0
        """The approximate bytes that may exist only in SQLite's log."""
        self.is_commit_unknown = False
        """Whether a transaction has failed that may have been committed all the same."""

    def write(self, batch: RecordsByChain, link: Link) -> None:
        """Add a batch to the tables."""
        if any(batch.values()):
            with self.transaction() as execute:
                self.extend(execute, batch, link)

    def sign(self, tenants: Sequence[str], sign: Sign) -> dict[str, Checkpoint]:
        """Add checkpoints, as `AuditStore.sign` does."""
        new_checkpoints: dict[str, tuple[Checkpoint, ChainHead]] = {}
        with self.transaction() as execute:
            for tenant in tenants:
                heads = [stored_head((tenant, *row[1:])) for row in ends_of(execute, tenant)]
                newest = newest_checkpoint(execute, tenant)
                if heads and (signed := sign(heads, newest)) is not None:
                    new_checkpoints[tenant] = signed
            rows = [(escaped(tenant), *signed) for tenant, signed in new_checkpoints.items()]
            checkpoints = [(name, *astuple(checkpoint)) for name, checkpoint, _ in rows]
            new_heads = [(name, *astuple(head)[1:]) for name, _, head in rows]
            put(execute, heads=new_heads, checkpoints=checkpoints)
            self._uncopied += sum(len(row[2]) + len(row[3]) for row in checkpoints)
        return {tenant: checkpoint for tenant, (checkpoint, _) in new_checkpoints.items()}

    def extend(self, execute: Execute, batch: RecordsByChain, link: Link) -> None:
        """Add a batch to the tables, within a transaction."""
        # In the order of the tables: neighbours share pages, which are changed once.
        escaped_names = [(chain, (escaped(chain[0]), chain[1])) for chain in batch]
        names = dict(sorted(escaped_names, key=lambda item: item[1]))
        segments: list[tuple[str, Segment]] = []
        heads: list[tuple[Any, ...]] = []
        sums: list[tuple[Any, ...]] = []
        for chain, before in recorded_ends(execute, names):
            key = names[chain]
            linked, head = link(chain, before, batch[chain])
            segments += [(key[0], segment) for segment in linked]
            sums += rows_of_chain(*key, linked)
            heads.append((*key, *astuple(head)[2:]))
        put(execute, segments, heads, sums)
        self._uncopied += sum(CHAIN_BYTES + len(segment.records) for _, segment in segments)

    def copy_log(self) -> None:
        """Copy the log into the database file if it has grown; a failed copy is made later."""
        if self._uncopied < COPIED_BYTES or self._connection is None:
            return
        self._uncopied = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        """Close the connection; the next user opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def synchronise(self) -> None:
        """Make every committed transaction durable; raises StoreUnavailable."""
        with self.reading():
            synchronise_log(self.path)

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Execute]:
        """
        Run a block in a transaction; raises StoreUnavailable.

        Without *durable*, a loss of power may undo it, until a later one is durable.
        """
        with write_lock(self.path), self.reading() as execute:
            execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}", ())
            execute("BEGIN IMMEDIATE", ())
            yield execute
            self.is_commit_unknown = True
            execute("COMMIT", ())
            self.is_commit_unknown = False

    @contextmanager
    def reading(self) -> Iterator[Execute]:
        """Run a block with a connection, which is closed if it fails; raises StoreUnavailable."""
        is_done = False
        try:
            check_file(self.path, self._file)
            if self._connection is None:
                self._connection = connect(self.path)
            yield executing(self._connection)
            is_done = True
        except sqlite3.Error as error:
            raise StoreUnavailable(error_summary(error)) from None
        except OSError as error:
            reason = f"a write-ahead log of audit records cannot be used: {error.strerror}"
            raise StoreUnavailable(reason) from None
        finally:
            if not is_done:
                self.close()  # closing rolls back


def synchronise_log(path: str) -> None:
    """
    Make every committed transaction of a SQLite file durable; OSError.

    Frames are overwritten only after this, because a merge may be in SQLite's log alone.
    """
    # Without a log, everything is in the file, which SQLite has synchronised.
    with suppress(FileNotFoundError):
        log = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            synchronise(log)
        finally:
            os.close(log)


def empty_log(url: str) -> bool:
    """
    Truncate the logs beside the file (`-wal`, `-audit-1`…), which may still contain deleted data.

    Return False if a reader prevents it. Raises the driver's errors.
    """
    path = path_of(url)
    with closing(connect(path)) as connection:
        with write_lock(path):
            # Write-ahead logs continue at their beginning only within such a transaction.
            connection.execute("BEGIN IMMEDIATE")
            merged = connection.execute("SELECT writer, pruned FROM audit_heads WHERE tenant = ''")
            ends = {number: end for number, end in merged if isinstance(end, int)}
            synchronise_log(path)
            for number, name in wals(path).items():
                with suppress(FileNotFoundError, PermissionError), open(name, "r+b") as file:
                    size = os.fstat(file.fileno()).st_size
                    overwrite(file.fileno(), min(ends.get(number, 0), size))
            connection.execute("COMMIT")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy
