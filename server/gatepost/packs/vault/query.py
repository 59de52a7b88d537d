"""What somebody looks for → an expression of SQLite's full-text search that is always valid."""

import re
from typing import NamedTuple

from gatepost.tools.api import ToolFailure

MOST_TERMS = 32

TERM = re.compile(r'(-?)(?:"([^"]*)"|([^\s"]+))')
# Scripts that put no blanks between words: each character is made a word, in notes and in
# queries alike, so that words are found as phrases (Han, kana, and their halves).
SPACELESS = re.compile(
    "([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff])"
)
SPACED = re.compile(
    "(?<=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]) "
    "| (?=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff])"
)


class Query(NamedTuple):
    """The same question asked twice: for all of its words, and for any of them."""

    all: str
    any: str


def query_of(text: str) -> Query:
    """
    Read what somebody looks for: words, "phrases", beginnings of words (`word*`), and what must
    not be there (`-word`). Everything else is a letter or a blank.

    ToolFailure when nothing is left to look for.
    """
    wanted: list[str] = []
    unwanted: list[str] = []
    for minus, phrase, word in TERM.findall(text):
        term = _quoted(phrase or word.rstrip("*"))
        if term is None:
            continue
        begins = not phrase and word.endswith("*")
        (unwanted if minus else wanted).append(f"{term}*" if begins else term)
    if not wanted:
        message = (
            '`query` holds no word to look for. Write words, "a phrase", beginnings (`meet*`), '
            "and `-word` for what must not be there."
        )
        raise ToolFailure("validation", message, field="query")
    # Each word once: its places in a text are compared with those of every other.
    without = "".join(f" NOT {term}" for term in [*dict.fromkeys(unwanted)][:MOST_TERMS])
    wanted = [*dict.fromkeys(wanted)][:MOST_TERMS]
    return Query(
        f"({' AND '.join(wanted)}){without}",
        f"({' OR '.join(wanted)}){without}",
    )


def spaced(text: str) -> str:
    """The text with blanks around the characters of scripts that have none."""
    return text if text.isascii() else SPACELESS.sub(r" \1 ", text)


def unspaced(text: str) -> str:
    """The same without these blanks."""
    if text.isascii():
        return text
    return SPACED.sub("", SPACED.sub("", text))


def _quoted(text: str) -> str | None:
    """As a string of the full-text search, where nothing in it means anything."""
    words = spaced(text).replace('"', " ").replace("\0", " ")
    if not any(character.isalnum() for character in words):
        return None
    return f'"{words}"'
