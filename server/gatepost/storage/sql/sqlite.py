"""A SQLite file: the files beside it, and the settings of its connections."""

import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor

from gatepost.permissions import close_to_others
from gatepost.storage.errors import StoreRefused
from gatepost.storage.sql.database import STATEMENT_MS, engine_options

LOCK = "-lock"
"""The end of the name of the file that is locked while the database is written."""
COMPANION_FILES = ("-wal", "-shm")
"""
The files that SQLite creates beside the database. New ones get the database's permissions; existing
ones keep theirs.
"""
WAL = "-audit-"
"""The end of the names of write-ahead logs, before their numbers (`sqlite_audit_wal`)."""
ZEROS = bytes(65_536)

# The first pragma makes the others wait for a lock instead of failing at once.
PRAGMAS: Mapping[str, int | str] = {
    "busy_timeout": STATEMENT_MS,
    "journal_mode": "wal",
    # FULL: a transaction that was acknowledged survives the loss of power.
    "synchronous": 2,
    "fullfsync": 1,
    # Pages in the log after which a commit copies them into the file. `SqliteAuditStore`, which
    # writes most of them, copies them sooner, between two batches.
    "wal_autocheckpoint": 4_000,
    # Deleted or erased data is overwritten; otherwise it could be read from the file for years.
    "secure_delete": 1,
    "foreign_keys": 1,
    # KiB of pages that each connection caches. SQLite's 2,000 for each of three took 6 MB of a
    # process and saved no time that could be measured: the system caches the file, too.
    "cache_size": -512,
}


def prepare(path: str) -> os.stat_result:
    """Make the file unless it is there, and close it to other users; raises StoreRefused."""
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        # Created before SQLite creates it: the files beside it get its permissions, and it contains
        # arguments.
        _close(path, os.O_RDWR | os.O_CREAT)
        for companion in (*(path + end for end in COMPANION_FILES), *wals(path).values()):
            with suppress(FileNotFoundError):
                _close(companion, os.O_RDWR)
        _close(path + LOCK, os.O_RDWR | os.O_CREAT)
        return os.stat(path)
    except OSError as error:
        file = error.filename or path
        raise StoreRefused(f"the database {file} cannot be opened: {error.strerror}") from None


def _close(path: str, flags: int) -> None:
    """Open the file, or make it, and close it to other users; OSError."""
    handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        close_to_others(handle, path)
    finally:
        os.close(handle)


def engine_of(path: str, connections: int) -> Engine:
    """Return SQLAlchemy's engine with that number of connections to a file."""
    engine = create_engine(
        URL.create("sqlite", database=path),
        pool_size=connections,
        # A connection is used by one thread after another.
        connect_args={"check_same_thread": False},
        **engine_options(),
    )

    @event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, _: object) -> None:
        cursor = connection.cursor()
        set_pragmas(path, cursor)
        cursor.close()

    return engine


def connect(path: str) -> sqlite3.Connection:
    """Return a connection of the driver itself to a file that is there."""
    os.stat(path)  # SQLite would create the file
    connection = sqlite3.connect(path, isolation_level=None)
    set_pragmas(path, connection.cursor())
    return connection


def wals(path: str) -> dict[int, str]:
    """Return the paths of the write-ahead logs beside a file, by their numbers."""
    folder, name = os.path.split(path)
    paths: dict[int, str] = {}
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name.startswith(name + WAL):
                number = entry.name.removeprefix(name + WAL)
                if number.isascii() and number.isdecimal() and number == str(int(number)):
                    paths[int(number)] = entry.path
    return dict(sorted(paths.items()))


def overwrite(file: int, end: int) -> None:
    """Overwrite an open file up to an offset; OSError."""
    for offset in range(0, end, len(ZEROS)):
        os.pwrite(file, ZEROS[: end - offset], offset)


def set_pragmas(path: str, cursor: DBAPICursor | sqlite3.Cursor) -> None:
    """Configure a new connection; raises StoreRefused."""
    for name, value in PRAGMAS.items():
        _set(cursor, f"PRAGMA {name} = {value}")
        cursor.execute(f"PRAGMA {name}")
        row = cursor.fetchone()
        # SQLite ignores a pragma that it cannot apply, without an error.
        if row is None or row[0] != value:
            raise StoreRefused(f"the database {path} refuses PRAGMA {name} = {value}")


def _set(cursor: DBAPICursor | sqlite3.Cursor, pragma: str) -> None:
    # If several processes open a new file at once, one of them turns the log on. SQLite refuses the
    # others at once, without the busy timeout, because they could wait for each other. So wait for
    # the write lock, for which SQLite does wait, and try again.
    until = time.monotonic() + STATEMENT_MS / 1000
    while True:
        try:
            cursor.execute(pragma)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() >= until:
                raise
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("COMMIT")
