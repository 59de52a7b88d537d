"""What is known of a vault's notes, in a SQLite file: made from the notes, and never believed."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from gatepost.packs.lock import taken
from gatepost.packs.vault.excerpt import TOKENIZE
from gatepost.packs.vault.names import is_note, key_of, name_of
from gatepost.packs.vault.note import Note
from gatepost.packs.vault.query import spaced
from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import Item

T = TypeVar("T")

FILE = "vault.sqlite"
VERSION = 1
"""Of the tables; an index of another one is made anew."""
PAGE = 4096
CACHE_KIB = 8_000
BUSY_S = 20.0
LOCK_EVERY_S = 0.01
LOOK_EVERY = 10_000
"""Steps of SQLite between two looks at whether anybody still waits."""

SETTLED_S = 2.0
"""A file changed so shortly ago may change again within one tick of its clock, unseen."""

TABLES = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, stamp TEXT NOT NULL,
    changed INTEGER NOT NULL, name TEXT NOT NULL, is_note INTEGER NOT NULL, title TEXT NOT NULL,
    modified REAL NOT NULL
);
CREATE INDEX files_by_name ON files (name);
CREATE TABLE tags (file INTEGER NOT NULL, key TEXT NOT NULL, tag TEXT NOT NULL);
CREATE INDEX tags_by_key ON tags (key);
CREATE INDEX tags_by_file ON tags (file);
CREATE TABLE aliases (file INTEGER NOT NULL, key TEXT NOT NULL);
CREATE INDEX aliases_by_key ON aliases (key);
CREATE INDEX aliases_by_file ON aliases (file);
CREATE TABLE links (
    file INTEGER NOT NULL, name TEXT NOT NULL, target TEXT NOT NULL, relative INTEGER NOT NULL
);
CREATE INDEX links_by_name ON links (name);
CREATE INDEX links_by_file ON links (file);
CREATE VIRTUAL TABLE words USING fts5(
    title, names, tags, body, {TOKENIZE}
);
"""
GONE = tuple(
    f"DELETE FROM {table} WHERE {column} = ?"  # noqa: S608  # names from this line
    for table, column in (
        ("files", "id"),
        ("tags", "file"),
        ("aliases", "file"),
        ("links", "file"),
        ("words", "rowid"),
    )
)

WAITS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT})
"""What says nothing about the file itself."""


def _require_search() -> None:
    with closing(sqlite3.connect(":memory:")) as rows:
        try:
            rows.execute("CREATE VIRTUAL TABLE words USING fts5(body)")
        except sqlite3.OperationalError:
            message = "this Python's SQLite has no FTS5, by which notes are searched"
            raise ImportError(message) from None


_require_search()  # told by `gatepost check`, and not by the first search


class Known(msgspec.Struct, frozen=True):
    """One file of the vault, and what it says if it is a note."""

    item: Item
    note: Note | None = None
    settled: bool = True
    """Not changed while, or shortly before, it was read."""


Memory = Mapping[str, tuple[int, str]]
"""By path: the number of its row, which no other row ever gets, and the stamp it was read with."""


class Full(Exception):
    """The index has no room for more."""


class Broken(Exception):
    """The index was no use and is gone: whoever asked may begin anew."""


class Index:
    """
    The index of one tenant, as a piece of blocking work sees it; opened anew for each.

    Whoever writes holds a lock of its own, so that of several processes one does at a time, also
    where SQLite's locks do not reach. A file that is damaged, or none of ours, is removed.
    """

    def __init__(self, place: Path, stop: threading.Event, most_bytes: int) -> None:
        self._file = place / FILE
        self._stop = stop
        self._pages = max(most_bytes // PAGE, 16)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Answer what *work* reads; Broken, or ToolFailure when others hold it for too long."""
        with self._judged():
            with self._opened() as rows:
                if rows.execute("PRAGMA user_version").fetchone()[0] == VERSION:
                    return work(rows)
            self.write(lambda rows: None)
            with self._opened() as rows:
                return work(rows)

    def known(self) -> Memory:
        """What is known of which files."""
        return self.read(
            lambda rows: {
                path: (number, stamp)
                for number, path, stamp in rows.execute("SELECT id, path, stamp FROM files")
            }
        )

    def behind(self, known: Memory, items: Sequence[Item]) -> list[Item]:
        """
        Forget what is gone; answers the files that are new or changed.

        *known* is from before *items* were listed: what another process has found since is not
        in it, and so is not taken for gone.
        """
        changed = [item for item in items if known.get(item.path, (0, ""))[1] != _stamp(item)]
        there = {item.path for item in items}
        gone = [number for path, (number, _) in known.items() if path not in there]
        if gone:
            self._drop(lambda rows: _forget(rows, gone))
        return changed

    def put(self, known: Memory, found: Sequence[Known]) -> bool:
        """Keep what these files say; False when there is no room for them."""
        before = [known[one.item.path][0] for one in found if one.item.path in known]
        # On its own: where there is no room for what a note says now, what it said before must
        # not be found either.
        self._drop(lambda rows: _forget(rows, before))
        try:
            self.write(lambda rows: _keep(rows, found))
        except Full:
            return False
        return True

    def _drop(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Remove something, and be it by removing all: that too may need room."""
        try:
            self.write(work)
        except Full:
            self._clear()
            raise Broken from None

    def write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Change it as a whole or not at all; Full, Broken, or ToolFailure as for `read`."""
        with self._judged(), self._alone(), self._opened() as rows:
            rows.execute("BEGIN IMMEDIATE")
            if rows.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                _make(rows)
            work(rows)
            rows.execute("COMMIT")

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, BUSY_S, isolation_level=None)) as rows:
            rows.set_progress_handler(self._stop.is_set, LOOK_EVERY)
            rows.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            rows.execute(f"PRAGMA max_page_count = {self._pages}")
            rows.execute("PRAGMA trusted_schema = OFF")
            yield rows

    @contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + BUSY_S
        try:
            while not taken(handle):
                if self._stop.wait(LOCK_EVERY_S) or time.monotonic() > until:
                    raise _busy()
            yield
        finally:
            os.close(handle)  # which also ends the lock

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Tell a file that is damaged from one that is busy, or full."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if self._stop.is_set() or code in WAITS:
                raise _busy() from None
            if code == sqlite3.SQLITE_FULL:
                raise Full from None
            self._clear()
            raise Broken from None

    def _clear(self) -> None:
        with self._alone():
            # The journal first: one without its file would be taken for that of the next.
            for name in (f"{FILE}-journal", FILE):
                self._file.with_name(name).unlink(missing_ok=True)


def _make(rows: sqlite3.Connection) -> None:
    if rows.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise sqlite3.DatabaseError("the tables are of another version")
    for statement in TABLES.split(";\n")[:-1]:
        rows.execute(statement)
    rows.execute(f"PRAGMA user_version = {VERSION}")


def _keep(rows: sqlite3.Connection, found: Sequence[Known]) -> None:
    for one in found:
        path, note, changed = one.item.path, one.note, one.item.stamp[-1]
        newer = rows.execute("SELECT id, changed FROM files WHERE path = ?", (path,)).fetchone()
        if newer is not None:
            if newer[1] > changed:
                continue  # another process read the file after us
            _forget(rows, [newer[0]])
        title = "" if note is None else note.title
        stamp = _stamp(one.item) if one.settled else ""
        number = rows.execute(
            "INSERT INTO files (path, stamp, changed, name, is_note, title, modified) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (path, stamp, changed, name_of(path), is_note(path), title, one.item.modified),
        ).lastrowid
        if note is not None:
            _keep_note(rows, number, one, note)


def _keep_note(rows: sqlite3.Connection, number: int | None, one: Known, note: Note) -> None:
    rows.executemany(
        "INSERT INTO tags VALUES (?, ?, ?)", [(number, tag.casefold(), tag) for tag in note.tags]
    )
    rows.executemany(
        "INSERT INTO aliases VALUES (?, ?)", [(number, key_of(alias)) for alias in note.aliases]
    )
    rows.executemany(
        "INSERT INTO links VALUES (?, ?, ?, ?)",
        {(number, name_of(link.target), link.target, link.relative) for link in note.links},
    )
    names = " ".join([*note.aliases, one.item.path])
    rows.execute(
        "INSERT INTO words (rowid, title, names, tags, body) VALUES (?, ?, ?, ?, ?)",
        (
            number,
            *map(spaced, (note.title, names, " ".join(note.tags), note.matter.body)),
        ),
    )


def _forget(rows: sqlite3.Connection, numbers: Sequence[int]) -> None:
    for statement in GONE:
        rows.executemany(statement, [(number,) for number in numbers])


def _stamp(item: Item) -> str:
    return "-".join(map(str, item.stamp))


def _busy() -> ToolFailure:
    message = "The vault's index is busy with other changes. Try again."
    return ToolFailure("upstream_unavailable", message, retry_after=1.0)
