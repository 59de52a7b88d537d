"""
Search full text with SQLite: queries that are always valid, and excerpts for the hits.

SQLite's own `snippet` compares each hit in a text with all others, and `highlight` copies the text
for each. Neither can be stopped. A note with one word two hundred thousand times kept a thread busy
for hours, and the server could not stop. So both functions only get a part of the note.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from gatepost import ToolFailure

MAX_QUERY_WORDS = 32

QUERY_WORD = re.compile(r'(-?)(?:"([^"]*)"|([^\s"]+))')
# Scripts without spaces between words: each character becomes a word, in notes and in queries, so
# that words are found as phrases (Han, kana, and their half-width forms).
SPACELESS = re.compile(
    "([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff])"
)
SPACED = re.compile(
    "(?<=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]) "
    "| (?=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff])"
)


class WordQuery(NamedTuple):
    """The same query in two forms: for all its words, and for any of them."""

    all: str
    any: str


def query_of(text: str) -> WordQuery:
    """
    Parse a query: words, "phrases", prefixes (`word*`) and excluded words (`-word`). Every other
    character is a letter or a space.

    ToolFailure if no word is left.
    """
    phrases: list[str] = []
    unwanted: list[str] = []
    for minus, phrase, word in QUERY_WORD.findall(text):
        quoted = _quoted(phrase or word.rstrip("*"))
        if quoted is None:
            continue
        begins = not phrase and word.endswith("*")
        (unwanted if minus else phrases).append(f"{quoted}*" if begins else quoted)
    if not phrases:
        message = (
            '`query` holds no word to search for. Write words, "a phrase", prefixes (`meet*`), '
            "and `-word` to exclude a word."
        )
        raise ToolFailure("validation", message, field="query")
    # Each word once: its positions in a text are compared with those of every other.
    exclusions = "".join(
        f" NOT {quoted}" for quoted in [*dict.fromkeys(unwanted)][:MAX_QUERY_WORDS]
    )
    phrases = [*dict.fromkeys(phrases)][:MAX_QUERY_WORDS]
    return WordQuery(
        f"({' AND '.join(phrases)}){exclusions}",
        f"({' OR '.join(phrases)}){exclusions}",
    )


def spaced(text: str) -> str:
    """Return the text with spaces around the characters of scripts without spaces."""
    return text if text.isascii() else SPACELESS.sub(r" \1 ", text)


def unspaced(text: str) -> str:
    """Return the text without these spaces."""
    if text.isascii():
        return text
    return SPACED.sub("", SPACED.sub("", text))


def _quoted(text: str) -> str | None:
    """Return a string of the full-text search, in which no character has a special meaning."""
    words = spaced(text).replace('"', " ").replace("\0", " ")
    if not any(character.isalnum() for character in words):
        return None
    return f'"{words}"'


TOKENIZE = 'tokenize = "porter unicode61 remove_diacritics 2"'
"""The tokenizer, the same as the index uses."""
PART_CHARACTERS = 1_000
"""Characters that are searched together."""
SEARCHED_CHARACTERS = 200_000
"""Characters of one note that are searched."""
BEGINNING = 200
"""Characters that are shown of a note without a hit in its text."""
SNIPPET = (
    "SELECT snippet(parts, 0, '**', '**', '…', 32) FROM parts WHERE parts MATCH ? "
    "ORDER BY rank LIMIT 1"
)


def excerpts(expression: str, bodies: Iterable[str]) -> Iterator[str]:
    """
    Return an excerpt of each text, with `**` around the matches of *expression* and `…` where it is
    cut.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as rows:
        rows.execute(f"CREATE VIRTUAL TABLE parts USING fts5(part, {TOKENIZE})")
        for body in bodies:
            # To roll back takes less than to delete, which reads the words of each part again.
            rows.execute("BEGIN")
            rows.executemany("INSERT INTO parts VALUES (?)", ((part,) for part in _parts(body)))
            row = rows.execute(SNIPPET, (expression,)).fetchone()
            rows.execute("ROLLBACK")
            yield row[0] if row is not None else _beginning(body)


def _parts(body: str) -> Iterator[str]:
    """Split the text into pieces that end between words if possible."""
    at, limit = 0, min(len(body), SEARCHED_CHARACTERS)
    while at < limit:
        end = min(at + PART_CHARACTERS, limit)
        if end < len(body):
            end = max(body.rfind(" ", at + 1, end), body.rfind("\n", at + 1, end), -1)
            end = end if end > 0 else at + PART_CHARACTERS
        yield body[at:end]
        at = end


def _beginning(body: str) -> str:
    if len(body) <= BEGINNING:
        return body
    end = body.rfind(" ", 1, BEGINNING)
    return f"{body[: end if end > 0 else BEGINNING]}…"
