"""
The part of a note that is shown for a hit: some words of where it fits best.

SQLite's own `snippet` holds each hit in a text against all others, and `highlight` copies the text
for each; nothing stops them meanwhile. A word that a note has two hundred thousand times kept a
thread for hours, and the server from ending. So they only ever see a part.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing

TOKENIZE = 'tokenize = "porter unicode61 remove_diacritics 2"'
"""What a word is, in the index as here."""
PART = 1_000
"""Characters that are looked at together."""
MOST = 200_000
"""Characters of one note that are looked at."""
BEGINNING = 200
"""Characters that are shown of a note whose text holds no hit."""
FITS = (
    "SELECT snippet(parts, 0, '**', '**', '…', 32) FROM parts WHERE parts MATCH ? "
    "ORDER BY rank LIMIT 1"
)


def excerpts(expression: str, bodies: Iterable[str]) -> Iterator[str]:
    """Of each text some words, with `**` around what *expression* finds and `…` where it is cut."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as rows:
        rows.execute(f"CREATE VIRTUAL TABLE parts USING fts5(part, {TOKENIZE})")
        for body in bodies:
            rows.execute("DELETE FROM parts")
            rows.executemany("INSERT INTO parts VALUES (?)", ((part,) for part in _parts(body)))
            found = rows.execute(FITS, (expression,)).fetchone()
            yield found[0] if found is not None else _beginning(body)


def _parts(body: str) -> Iterator[str]:
    """The text in pieces that end where a word does, if there is such a place."""
    at, most = 0, min(len(body), MOST)
    while at < most:
        end = min(at + PART, most)
        if end < len(body):
            end = max(body.rfind(" ", at + 1, end), body.rfind("\n", at + 1, end), -1)
            end = end if end > 0 else at + PART
        yield body[at:end]
        at = end


def _beginning(body: str) -> str:
    if len(body) <= BEGINNING:
        return body
    cut = body.rfind(" ", 1, BEGINNING)
    return f"{body[: cut if cut > 0 else BEGINNING]}…"
