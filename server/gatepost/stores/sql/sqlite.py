"""A SQLite file as a database."""

import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from urllib.parse import unquote

from sqlalchemy import URL, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor

from gatepost.stores.api import StoreRefused, StoreUnavailable
from gatepost.stores.sql.database import STATEMENT_MS, Database, engine_of

SCHEME = "sqlite:///"
# Writers of one file take turns anyway; the second connection lets readers pass them.
CONNECTIONS = 2

# The first makes the others wait for a lock instead of failing at once.
PRAGMAS: Mapping[str, int | str] = {
    "busy_timeout": STATEMENT_MS,
    "journal_mode": "wal",
    # FULL: a transaction that was acknowledged survives the loss of power.
    "synchronous": 2,
    "fullfsync": 1,
    # Pages in the log after which a commit waits until they are in their places. Who writes most of
    # them (`scribe`) sees to that sooner, between two batches, where nobody waits for it.
    "wal_autocheckpoint": 4_000,
    # What is deleted or erased is overwritten; else it could be read from the file for years.
    "secure_delete": 1,
    "foreign_keys": 1,
}


def database(url: str) -> Database:
    """The file of a `sqlite:///` URL, made for this user alone; raises StoreRefused."""
    path = path_of(url)
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        # Before SQLite does: the files beside it get its permissions, and it holds arguments.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        ours = _identity(path)
    except OSError as error:
        raise StoreRefused(f"the database {path} cannot be opened: {error.strerror}") from None
    engine = engine_of(URL.create("sqlite+aiosqlite", database=path), connections=CONNECTIONS)

    @event.listens_for(engine.sync_engine, "connect")
    def settle(connection: DBAPIConnection, _: object) -> None:
        cursor = connection.cursor()
        _settle(path, cursor)
        cursor.close()

    @event.listens_for(engine.sync_engine, "do_connect")
    @event.listens_for(engine.sync_engine, "checkout")
    def there(*_: object) -> None:
        _there(path, ours)

    return Database(engine, interruptible=False)


def opener(path: str) -> Callable[[sqlite3.Connection | None], sqlite3.Connection]:
    """
    How whoever uses the driver itself gets a connection to this file, and finds out whether the one
    that it has still is one; raises StoreUnavailable and the driver's errors.
    """
    ours = _identity(path)

    def opened(kept: sqlite3.Connection | None) -> sqlite3.Connection:
        _there(path, ours)
        if kept is not None:
            return kept
        connection = sqlite3.connect(path, isolation_level=None)
        _settle(path, connection.cursor())
        return connection

    return opened


def let_go(url: str) -> bool:
    """
    Empty the log beside the file (`-wal`), where what was deleted may stand still; False while
    somebody reads what it holds. Raises the driver's errors.
    """
    with closing(opener(path_of(url))(None)) as connection:
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _settle(path: str, cursor: DBAPICursor | sqlite3.Cursor) -> None:
    for name, wanted in PRAGMAS.items():
        _set(cursor, f"PRAGMA {name} = {wanted}")
        cursor.execute(f"PRAGMA {name}")
        found = cursor.fetchone()
        # SQLite ignores what it cannot do, without a word.
        if found is None or found[0] != wanted:
            raise StoreRefused(f"the database {path} refuses PRAGMA {name} = {wanted}")


def _set(cursor: DBAPICursor | sqlite3.Cursor, pragma: str) -> None:
    # Of several that open a new file at once, one turns the log on. SQLite refuses the others
    # without the wait that they have asked for, lest they wait for each other: so wait for the turn
    # to write, which it knows how to wait for, and try again.
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


def _there(path: str, ours: tuple[int, int]) -> None:
    # SQLite would go on in a file that is removed, whose records nobody finds again, and make an
    # empty one for the next connection.
    try:
        found: object = _identity(path)
    except OSError:
        found = None
    if found != ours:
        raise StoreUnavailable("the database's file is gone or another one: start anew")


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def path_of(url: str) -> str:
    """Where the file is."""
    return unquote(url.removeprefix(SCHEME))


def exists(url: str) -> bool:
    """Whether the file is there."""
    return os.path.exists(path_of(url))
