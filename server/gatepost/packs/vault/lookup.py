"""What the index answers: which note is meant, what leads where, what is found."""

import difflib
import heapq
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gatepost.packs.vault.names import beside, chosen, is_note, key_of, name_of
from gatepost.packs.vault.note import Link
from gatepost.packs.vault.query import Query, unspaced

Rows = sqlite3.Connection

MOST_FITTING = 1_000
"""Notes of one name, or links to one note, that are looked at."""
MOST_COMPARED = 5_000
"""Names that are compared with one that nothing has."""
MOST_NEAR = 20
"""Those of them that are compared letter by letter."""

BY_NAME = "SELECT path FROM files WHERE name = ? ORDER BY length(path), path LIMIT ?"
BY_ALIAS = (
    "SELECT path FROM files JOIN aliases ON aliases.file = files.id WHERE aliases.key = ? "
    "ORDER BY length(path), path LIMIT ?"
)
LINKING = (
    "SELECT DISTINCT files.path, files.title, links.target, links.relative FROM links "
    "JOIN files ON files.id = links.file WHERE links.name = ? ORDER BY files.path LIMIT ?"
)
TAGGED = "SELECT file FROM tags WHERE key = ? OR (key >= ? AND key < ?)"
# A word in a title says more of what a note is about than one in its text.
FOUND = (
    "SELECT files.path, files.title, words.rank AS rank, "
    "snippet(words, 3, '**', '**', '…', 32) AS snippet "
    "FROM words JOIN files ON files.id = words.rowid "
    "WHERE words MATCH ? AND rank MATCH 'bm25(10.0, 5.0, 5.0, 1.0)'"
)
LISTED = "FROM files WHERE is_note AND path >= ? AND path < ?"


class Hit(NamedTuple):
    """One note that was found."""

    path: str
    title: str
    snippet: str
    score: float


class Listed(NamedTuple):
    """One note in a list."""

    path: str
    title: str
    modified: float
    tags: list[str]


def named(rows: Rows, target: str) -> list[str]:
    """The notes of that name, the one that is meant first; those of that alias where none is."""
    key = key_of(target.strip("/"))
    paths = [path for (path,) in rows.execute(BY_NAME, (name_of(key), MOST_FITTING))]
    found = chosen(key, filter(is_note, paths))
    return found or [path for (path,) in rows.execute(BY_ALIAS, (key, MOST_FITTING))]


def similar(rows: Rows, target: str) -> list[str]:
    """Names of notes that somebody may have meant."""
    name = name_of(target)
    names = [
        name
        for (name,) in rows.execute(
            "SELECT DISTINCT name FROM files WHERE is_note LIMIT ?", (MOST_COMPARED,)
        )
    ]
    # Which letters two names have is told at once; in which order takes, for names that somebody
    # chose for it, a hundredth of a second each, in which nobody else is served.
    letters = difflib.SequenceMatcher(b=name)

    def shared(other: str) -> float:
        letters.set_seq1(other)
        return letters.quick_ratio()

    near = heapq.nlargest(MOST_NEAR, names, key=shared)
    return difflib.get_close_matches(name, near, n=3, cutoff=0.6)


class Ways:
    """
    Where links lead, for one question to the index.

    The files of a name are read and compared with once: a thousand links to a name that a thousand
    files have would otherwise be a million paths to take apart.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: dict[str, list[tuple[str, str]]] = {}

    def leads(self, source: str, target: str, *, relative: bool) -> str | None:
        """The file that a link in a note means; None when there is none."""
        files = self._files(name_of(target))
        if relative or target.startswith(("./", "../")):
            near = beside(source, target)
            found = None if near is None else _at(key_of(near), files)
            if found is not None:
                return found
            target = target.lstrip("./") if target.startswith(".") else target
        key = key_of(target.lstrip("/"))
        return _at(key, files) or next((p for k, p in files if k.endswith(f"/{key}")), None)

    def _files(self, name: str) -> list[tuple[str, str]]:
        """Key and path of the files of that name, in the order of `chosen`."""
        if name not in self._known:
            paths = [path for (path,) in self._rows.execute(BY_NAME, (name, MOST_FITTING))]
            self._known[name] = [(key_of(path), path) for path in chosen(name, paths)]
        return self._known[name]


def _at(key: str, files: Iterable[tuple[str, str]]) -> str | None:
    return next((path for other, path in files if other == key), None)


def links_of(rows: Rows, source: str, links: Iterable[Link]) -> list[tuple[Link, str | None]]:
    """Each link with the file that it leads to."""
    ways = Ways(rows)
    return [(link, ways.leads(source, link.target, relative=link.relative)) for link in links]


def backlinks(rows: Rows, path: str) -> tuple[list[tuple[str, str]], bool]:
    """Path and title of each note that links to this file, and whether there may be more."""
    found: dict[str, str] = {}
    ways = Ways(rows)
    linking = rows.execute(LINKING, (name_of(path), MOST_FITTING + 1)).fetchall()
    for source, title, target, relative in linking[:MOST_FITTING]:
        leads = ways.leads(source, target, relative=bool(relative))
        if source != path and leads == path:
            found[source] = title
    return list(found.items()), len(linking) > MOST_FITTING


def tags_of(rows: Rows, path: str) -> list[str]:
    """The tags of the note at that path."""
    statement = (
        "SELECT tag FROM tags JOIN files ON files.id = tags.file WHERE path = ? ORDER BY tag"
    )
    return [tag for (tag,) in rows.execute(statement, (path,))]


def searched(rows: Rows, query: Query, tag: str | None, limit: int) -> tuple[list[Hit], bool]:
    """The best notes for a query, and whether all of its words are in them."""
    within, values = _tagged(tag, "words.rowid")
    statement = f"{FOUND}{within} ORDER BY rank LIMIT ?"
    for every, expression in ((True, query.all), (False, query.any)):
        found = rows.execute(statement, (expression, *values, limit)).fetchall()
        if found or query.all == query.any:
            return [_hit(row) for row in found], every
    return [], True


def listed(
    rows: Rows, folder: Sequence[str], tag: str | None, limit: int, offset: int
) -> tuple[list[Listed], int]:
    """The notes below a folder by path, and how many there are."""
    start = "".join(f"{name}/" for name in folder)
    # What begins with `a/` stands between `a/` and `a0`, as `0` is what follows `/`.
    end = f"{start[:-1]}0" if start else "\U0010ffff"
    within, tagged = _tagged(tag, "id")
    values: list[Any] = [start, end, *tagged]
    total = rows.execute(f"SELECT count(*) {LISTED}{within}", values).fetchone()[0]
    page = rows.execute(
        f"SELECT path, title, modified {LISTED}{within} ORDER BY path LIMIT ? OFFSET ?",
        (*values, limit, offset),
    ).fetchall()
    return [
        Listed(path, title, modified, tags_of(rows, path)) for path, title, modified in page
    ], total


def _tagged(tag: str | None, column: str) -> tuple[str, tuple[str, ...]]:
    """What narrows a statement to a tag and those nested in it."""
    if tag is None:
        return "", ()
    key = tag.strip().lstrip("#").strip("/").casefold()
    return f" AND {column} IN ({TAGGED})", (key, f"{key}/", f"{key}0")


def _hit(row: tuple[str, str, float, str]) -> Hit:
    path, title, rank, snippet = row
    return Hit(path, title, unspaced(snippet).strip(), round(-rank, 3))
