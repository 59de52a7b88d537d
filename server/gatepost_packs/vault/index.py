"""The search index of a vault's notes in an SQLite file; the files always take precedence."""

import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec

from gatepost import Item, ToolFailure
from gatepost_packs.file_lock import lock
from gatepost_packs.vault.full_text import TOKENIZE, spaced
from gatepost_packs.vault.note import Note
from gatepost_packs.vault.note_names import is_note, key_of, name_of

T = TypeVar("T")

FILE = "vault.sqlite"
VERSION = 3
"""Version of the tables; an index of another version is rebuilt."""
PAGE_BYTES = 4096
CACHE_KIB = 8_000
BUSY_S = 20.0
LOCK_EVERY_S = 0.01
LOOK_EVERY = 10_000
"""Steps of SQLite between two checks whether the call was abandoned."""

UNKNOWN = -1
"""Instead of a number of changes that does not count any more."""
STABLE_S = 2.0
"""A file that changed this recently may change again within one tick of its clock, unnoticed."""

TABLES = f"""
CREATE TABLE state (changes INTEGER NOT NULL, listing BLOB);
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
DELETE_FILE = tuple(
    f"DELETE FROM {table} WHERE {column} = ?"  # noqa: S608  # names from this line
    for table, column in (
        ("files", "id"),
        ("tags", "file"),
        ("aliases", "file"),
        ("links", "file"),
        ("words", "rowid"),
    )
)

BUSY_ERRORS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT})


def _require_search() -> None:
    with closing(sqlite3.connect(":memory:")) as rows:
        try:
            rows.execute("CREATE VIRTUAL TABLE words USING fts5(body)")
        except sqlite3.OperationalError:
            message = "this Python's SQLite has no FTS5, which the search needs"
            raise ImportError(message) from None


_require_search()  # reported by `gatepost check`, before the first search


class IndexedFile(msgspec.Struct, frozen=True):
    """One file of the vault, with its contents if it is a note."""

    item: Item
    note: Note | None = None
    is_stable: bool = True
    """Whether it stayed unchanged while, and shortly before, it was read."""


class KnownFiles(msgspec.Struct, frozen=True):
    """What the index knew at one moment."""

    changes: int
    """The number of changes of the index until then; `UNKNOWN` if others have changed it since."""
    listing: bytes | None = None
    """The digest of the list of files for which the index is complete; None if it may not be."""
    stamps: Mapping[str, tuple[int, str]] | None = None
    """
    By path: the row number, which is never used again, and the stamp at reading. None if they were
    not read.
    """


class IndexDifference(msgspec.Struct, frozen=True):
    """How a list of files differs from what the index knew; files that are gone are removed."""

    known_files: KnownFiles
    listing: bytes
    """The digest of the list."""
    changed: Sequence[Item] = ()
    """The new and changed files."""


class IndexFull(Exception):
    """The index has no space left."""


class BrokenIndex(Exception):
    """The index was unusable and is removed; the caller may start again."""


class TenantIndex:
    """
    The index of one tenant for blocking work; opened for each piece of work.

    A writer holds a lock of its own, so that only one process writes at a time, even where SQLite's
    locks do not work. A damaged or foreign file is removed.
    """

    def __init__(self, folder: Path, stop: threading.Event, max_bytes: int) -> None:
        self._file = folder / FILE
        self._stop = stop
        self._pages = max(max_bytes // PAGE_BYTES, 16)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """
        Return the result of *work*; BrokenIndex, or ToolFailure if others hold the index too long.

        All its statements see the same state: a write between two statements could remove a row
        that the first has found.
        """
        with self._judged():
            with self._opened() as rows:
                rows.execute("BEGIN")
                if rows.execute("PRAGMA user_version").fetchone()[0] == VERSION:
                    return work(rows)
            self.write(lambda rows: None)
            with self._opened() as rows:
                rows.execute("BEGIN")
                return work(rows)

    def known_files(self, *, is_whole: bool) -> KnownFiles:
        """Return what the index knows; with *is_whole*, the stamps of all files, too."""

        def read_state(rows: sqlite3.Connection) -> KnownFiles:
            changes, listing = _state(rows)
            if not is_whole:
                return KnownFiles(changes, listing)
            stamps = {
                path: (number, stamp)
                for number, path, stamp in rows.execute("SELECT id, path, stamp FROM files")
            }
            return KnownFiles(changes, listing, stamps)

        return self.read(read_state)

    def difference(self, known_files: KnownFiles, items: Sequence[Item]) -> IndexDifference | None:
        """
        Remove deleted files; return the new and changed ones.

        *known_files* must be older than the listing *items*, so that files which another process
        has found since do not count as deleted. Return None if the stamps of that moment are needed
        and cannot be read any more.
        """
        files = [item for item in items if item.type == "file"]
        listing = _digest(files)
        if listing == known_files.listing:
            return IndexDifference(known_files, listing)
        if known_files.stamps is None:
            changes = known_files.changes
            known_files = self.known_files(is_whole=True)
            if known_files.changes != changes:
                return None
        stamps = known_files.stamps or {}
        changed = [item for item in files if stamps.get(item.path, (0, ""))[1] != _stamp(item)]
        present = {item.path for item in files}
        forgotten = [number for path, (number, _) in stamps.items() if path not in present]
        if forgotten or not changed:
            known_files = self._drop(known_files, forgotten, None if changed else listing)
        return IndexDifference(known_files, listing, changed)

    def put(
        self, known_files: KnownFiles, files: Sequence[IndexedFile], listing: bytes | None
    ) -> KnownFiles | None:
        """
        Store the contents of these files; return what is known then, or None if there is no room.

        *listing* is the digest of the list of files if the index is complete for it then.
        """
        stamps = known_files.stamps or {}
        before = [stamps[file.item.path][0] for file in files if file.item.path in stamps]

        def replace(rows: sqlite3.Connection) -> None:
            _forget(rows, before)
            _store_files(rows, files)

        try:
            return self.write(replace, known_files, listing)
        except IndexFull:
            # Where there is no space for the new contents, the old ones must not be found either.
            self._drop(known_files, before, None)
            return None

    def _drop(
        self, known_files: KnownFiles, numbers: Sequence[int], listing: bytes | None
    ) -> KnownFiles:
        """Remove rows; if even that lacks room, remove the whole index."""
        try:
            return self.write(lambda rows: _forget(rows, numbers), known_files, listing)
        except IndexFull:
            self._clear()
            raise BrokenIndex from None

    def write(
        self,
        work: Callable[[sqlite3.Connection], None],
        known_files: KnownFiles | None = None,
        listing: bytes | None = None,
    ) -> KnownFiles:
        """
        Change the index as a whole or not at all; raise IndexFull, BrokenIndex, or ToolFailure as
        `read` does.

        Note *listing* as the list for which the index is complete, unless another process has
        changed the index since *known_files*. Return what is known then.
        """
        known_files = known_files or KnownFiles(UNKNOWN)
        with self._judged(), self._locked(), self._opened() as rows:
            rows.execute("BEGIN IMMEDIATE")
            if rows.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                _make(rows)
            changes, _ = _state(rows)
            is_alone = changes == known_files.changes
            work(rows)
            rows.execute(
                "UPDATE state SET changes = ?, listing = ?",
                (changes + 1, listing if is_alone else None),
            )
            rows.execute("COMMIT")
        return msgspec.structs.replace(known_files, changes=changes + 1 if is_alone else UNKNOWN)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, BUSY_S, isolation_level=None)) as rows:
            rows.set_progress_handler(self._stop.is_set, LOOK_EVERY)
            rows.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            rows.execute(f"PRAGMA max_page_count = {self._pages}")
            rows.execute("PRAGMA trusted_schema = OFF")
            yield rows

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + BUSY_S
        try:
            while not lock(handle):
                if self._stop.wait(LOCK_EVERY_S) or time.monotonic() > until:
                    raise _busy()
            yield
        finally:
            os.close(handle)  # closing also releases the lock

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Tell a damaged file from a busy or full one."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if self._stop.is_set() or code in BUSY_ERRORS:
                raise _busy() from None
            if code == sqlite3.SQLITE_FULL:
                raise IndexFull from None
            self._clear()
            raise BrokenIndex from None

    def _clear(self) -> None:
        with self._locked():
            # SQLite's journal first: the next database would use a left-over journal.
            for name in (f"{FILE}-journal", FILE):
                self._file.with_name(name).unlink(missing_ok=True)


def _make(rows: sqlite3.Connection) -> None:
    if rows.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise sqlite3.DatabaseError("the tables are of another version")
    for statement in TABLES.split(";\n")[:-1]:
        rows.execute(statement)
    # Not 0: a process may remember the number of an index that was removed since.
    rows.execute("INSERT INTO state (changes) VALUES (?)", (secrets.randbits(48),))
    rows.execute(f"PRAGMA user_version = {VERSION}")


def _state(rows: sqlite3.Connection) -> tuple[int, bytes | None]:
    """Return the number of changes, and the digest of the list for which the index is complete."""
    state: tuple[int, bytes | None] | None = rows.execute(
        "SELECT changes, listing FROM state"
    ).fetchone()
    if state is None:
        raise sqlite3.DatabaseError("the index lacks its state")
    return state


def _digest(files: Sequence[Item]) -> bytes:
    """Return what two lists of files have in common only if they are equal, with all stamps."""
    return sha256(msgspec.msgpack.encode([(item.path, item.stamp) for item in files])).digest()


def _store_files(rows: sqlite3.Connection, files: Sequence[IndexedFile]) -> None:
    for file in files:
        path, note, changed = file.item.path, file.note, file.item.stamp[-1]
        newer = rows.execute("SELECT id, changed FROM files WHERE path = ?", (path,)).fetchone()
        if newer is not None:
            if newer[1] > changed:
                continue  # another process has read the file after this one
            _forget(rows, [newer[0]])
        title = "" if note is None else note.title
        stamp = _stamp(file.item) if file.is_stable else ""
        number = rows.execute(
            "INSERT INTO files (path, stamp, changed, name, is_note, title, modified) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (path, stamp, changed, name_of(path), is_note(path), title, file.item.modified),
        ).lastrowid
        if note is not None:
            _keep_note(rows, number, file, note)


def _keep_note(rows: sqlite3.Connection, number: int | None, file: IndexedFile, note: Note) -> None:
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
    names = " ".join([*note.aliases, file.item.path])
    rows.execute(
        "INSERT INTO words (rowid, title, names, tags, body) VALUES (?, ?, ?, ?, ?)",
        (
            number,
            *map(spaced, (note.title, names, " ".join(note.tags), note.front_matter.body)),
        ),
    )


def _forget(rows: sqlite3.Connection, numbers: Sequence[int]) -> None:
    for statement in DELETE_FILE:
        rows.executemany(statement, [(number,) for number in numbers])


def _stamp(item: Item) -> str:
    return "-".join(map(str, item.stamp))


def _busy() -> ToolFailure:
    message = "The vault's index is busy with other changes. Try again."
    return ToolFailure("upstream_unavailable", message, retry_after=1.0)
