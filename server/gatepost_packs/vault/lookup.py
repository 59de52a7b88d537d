"""
Query the index: the note that a name means, the targets of links, and the results of a search.
"""

import difflib
import heapq
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gatepost_packs.vault.full_text import WordQuery, excerpts, unspaced
from gatepost_packs.vault.note import NoteLink
from gatepost_packs.vault.note_names import chosen, is_note, key_of, name_of, relative_target

Rows = sqlite3.Connection

MAX_FITTING = 1_000
"""Maximum number of notes of one name, or links to one note, that are read."""
MAX_COMPARED = 5_000
"""Maximum number of names that are compared with a name that no note has."""
MAX_NEAR = 20
"""The number of these names that are compared letter by letter."""

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
# A word in a title says more about a note than one in its text.
SEARCH = (
    "SELECT words.rowid, files.path, files.title, words.rank AS rank "
    "FROM words JOIN files ON files.id = words.rowid "
    "WHERE words MATCH ? AND rank MATCH 'bm25(10.0, 5.0, 5.0, 1.0)'"
)
BODY = "SELECT body FROM words WHERE rowid = ?"
NOTES_BELOW = "FROM files WHERE is_note AND path >= ? AND path < ?"


class FoundNote(NamedTuple):
    """One note that was found."""

    path: str
    title: str
    snippet: str
    score: float


class NoteSummary(NamedTuple):
    """One note in a list."""

    path: str
    title: str
    modified: float
    tags: list[str]


def named(rows: Rows, target: str) -> list[str]:
    """Return the notes of that name, the best match first, or else those with that alias."""
    key = key_of(target.strip("/"))
    paths = [path for (path,) in rows.execute(BY_NAME, (name_of(key), MAX_FITTING))]
    matches = chosen(key, filter(is_note, paths))
    return matches or [path for (path,) in rows.execute(BY_ALIAS, (key, MAX_FITTING))]


def similar(rows: Rows, target: str) -> list[str]:
    """Return names of notes that are similar."""
    name = name_of(target)
    names = [
        name
        for (name,) in rows.execute(
            "SELECT DISTINCT name FROM files WHERE is_note LIMIT ?", (MAX_COMPARED,)
        )
    ]
    # Comparing the sets of letters is fast. Comparing their order takes a hundredth of a second for
    # crafted names, during which no other call is served.
    letters = difflib.SequenceMatcher(b=name)

    def shared(candidate: str) -> float:
        letters.set_seq1(candidate)
        return letters.quick_ratio()

    candidates = heapq.nlargest(MAX_NEAR, names, key=shared)
    return difflib.get_close_matches(name, candidates, n=3, cutoff=0.6)


class LinkResolver:
    """
    Resolves links for one query of the index.

    The files of a name are read and compared once. Otherwise a thousand links to a name that a
    thousand files share would mean a million paths to split.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._paths_by_name: dict[str, list[tuple[str, str]]] = {}

    def target_of(self, source: str, target: str, *, relative: bool) -> str | None:
        """Return the file that a link in a note means; None if there is none."""
        files = self._files(name_of(target))
        if relative or target.startswith(("./", "../")):
            relative_path = relative_target(source, target)
            target_path = (
                None if relative_path is None else _path_with_key(key_of(relative_path), files)
            )
            if target_path is not None:
                return target_path
            target = target.lstrip("./") if target.startswith(".") else target
        key = key_of(target.lstrip("/"))
        return _path_with_key(key, files) or next(
            (p for k, p in files if k.endswith(f"/{key}")), None
        )

    def _files(self, name: str) -> list[tuple[str, str]]:
        """Return key and path of the files of that name, in the order of `chosen`."""
        if name not in self._paths_by_name:
            paths = [path for (path,) in self._rows.execute(BY_NAME, (name, MAX_FITTING))]
            self._paths_by_name[name] = [(key_of(path), path) for path in chosen(name, paths)]
        return self._paths_by_name[name]


def _path_with_key(key: str, files: Iterable[tuple[str, str]]) -> str | None:
    return next((path for file_key, path in files if file_key == key), None)


def links_of(
    rows: Rows, source: str, links: Iterable[NoteLink]
) -> list[tuple[NoteLink, str | None]]:
    """Return each link with its target file."""
    resolver = LinkResolver(rows)
    return [
        (link, resolver.target_of(source, link.target, relative=link.relative)) for link in links
    ]


def backlinks(rows: Rows, path: str) -> tuple[list[tuple[str, str]], bool]:
    """Return path and title of each note that links to this file, and whether there may be more."""
    titles: dict[str, str] = {}
    resolver = LinkResolver(rows)
    linking = rows.execute(LINKING, (name_of(path), MAX_FITTING + 1)).fetchall()
    for source, title, target, relative in linking[:MAX_FITTING]:
        found_target = resolver.target_of(source, target, relative=bool(relative))
        if source != path and found_target == path:
            titles[source] = title
    return list(titles.items()), len(linking) > MAX_FITTING


def tags_of(rows: Rows, path: str) -> list[str]:
    """Return the tags of the note at that path."""
    statement = (
        "SELECT tag FROM tags JOIN files ON files.id = tags.file WHERE path = ? ORDER BY tag"
    )
    return [tag for (tag,) in rows.execute(statement, (path,))]


def searched(
    rows: Rows, query: WordQuery, tag: str | None, limit: int
) -> tuple[list[FoundNote], bool]:
    """Return the best notes for a query, and whether all its words are in them."""
    condition, values = _tagged(tag, "words.rowid")
    statement = f"{SEARCH}{condition} ORDER BY rank LIMIT ?"
    for every, expression in ((True, query.all), (False, query.any)):
        hits = rows.execute(statement, (expression, *values, limit)).fetchall()
        if hits or query.all == query.any:
            return _hits(rows, query, hits), every
    return [], True


def listed(
    rows: Rows, folder: Sequence[str], tag: str | None, limit: int, offset: int
) -> tuple[list[NoteSummary], int]:
    """Return the notes below a folder by path, and their number."""
    start = "".join(f"{name}/" for name in folder)
    # Paths that begin with `a/` sort between `a/` and `a0`, because `0` follows `/`.
    end = f"{start[:-1]}0" if start else "\U0010ffff"
    condition, tagged = _tagged(tag, "id")
    values: list[Any] = [start, end, *tagged]
    total = rows.execute(f"SELECT count(*) {NOTES_BELOW}{condition}", values).fetchone()[0]
    page = rows.execute(
        f"SELECT path, title, modified {NOTES_BELOW}{condition} ORDER BY path LIMIT ? OFFSET ?",
        (*values, limit, offset),
    ).fetchall()
    return [
        NoteSummary(path, title, modified, tags_of(rows, path)) for path, title, modified in page
    ], total


def _tagged(tag: str | None, column: str) -> tuple[str, tuple[str, ...]]:
    """Return the condition that limits a statement to a tag and its nested tags."""
    if tag is None:
        return "", ()
    key = tag.strip().lstrip("#").strip("/").casefold()
    return f" AND {column} IN ({TAGGED})", (key, f"{key}/", f"{key}0")


def _hits(rows: Rows, query: WordQuery, hits: list[tuple[int, str, str, float]]) -> list[FoundNote]:
    bodies = (rows.execute(BODY, (number,)).fetchone()[0] for number, *_ in hits)
    # A part of a note need not hold all words of the query.
    snippets = excerpts(query.any, bodies)
    return [
        FoundNote(path, title, unspaced(snippet).strip(), round(-rank, 3))
        for (_, path, title, rank), snippet in zip(hits, snippets, strict=True)
    ]
