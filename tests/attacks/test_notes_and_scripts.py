"""Notes and scripts that were written to slow down the server or to mislead a reviewer."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import product

import pytest

from gatepost.cli.configuration import DEFAULT_FILE
from gatepost.cli.scripts import show
from gatepost.policy.script_reviews.script import Script, ScriptReview
from gatepost_packs.vault import lookup
from gatepost_packs.vault.front_matter import merged, split
from gatepost_packs.vault.full_text import query_of
from gatepost_packs.vault.index import TABLES
from gatepost_packs.vault.note import NoteLink
from tests.support.measuring import count_lines

AT_ONCE = 1_000


def yaml_bomb(levels: int) -> str:
    """Return mappings that take in one another, ten times each."""
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, levels + 1):
        taken = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {{<<: [{taken}]}}")
    return "---\n" + "\n".join(lines) + "\n---\nText.\n"


def test_front_matter_with_exponential_yaml_aliases_is_refused_quickly() -> None:
    """Eight such lines took minutes and gigabytes before any limit applied."""
    few, many = count_lines(lambda: split(yaml_bomb(2))), count_lines(lambda: split(yaml_bomb(5)))

    assert many < few + 100_000
    assert (split(yaml_bomb(5)).problem or "").startswith(
        "The front matter is too large with its YAML aliases"
    )


def test_a_property_named_like_a_yaml_merge_key_is_quoted() -> None:
    """Obsidian would otherwise merge another mapping instead of reading the property."""
    assert merged(split(""), {"<<": {"a": 1}}) == "---\n'<<':\n  a: 1\n---\n"


@pytest.fixture
def rows() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        for statement in TABLES.split(";\n")[:-1]:
            opened.execute(statement)
        yield opened


def _add(rows: sqlite3.Connection, name: str, path: str) -> int:
    values = (path, "", 0, name, 1, "", 0.0)
    statement = "INSERT INTO files (path, stamp, changed, name, is_note, title, modified)"
    return int(rows.execute(f"{statement} VALUES (?, ?, ?, ?, ?, ?, ?)", values).lastrowid or 0)


def test_links_to_a_name_that_many_files_share_are_resolved_quickly(
    rows: sqlite3.Connection,
) -> None:
    """A thousand links to a thousand files of one name blocked all tenants for a minute."""
    for at in range(AT_ONCE):
        _add(rows, "n", f"{at}/n.md")
    source = _add(rows, "index", "index.md")
    links = [NoteLink(f"{at}/n") for at in range(AT_ONCE)]
    rows.executemany(
        "INSERT INTO links VALUES (?, ?, ?, ?)", [(source, "n", link.target, 0) for link in links]
    )
    resolved = lookup.links_of(rows, "index.md", links)

    assert [leads for _, leads in resolved] == [f"{at}/n.md" for at in range(AT_ONCE)]
    assert lookup.backlinks(rows, "7/n.md")[0] == [("index.md", "")]
    assert count_lines(lambda: lookup.links_of(rows, "index.md", links)) < 2_500_000


def test_finding_similar_names_takes_a_bounded_number_of_steps(rows: sqlite3.Connection) -> None:
    """An unknown name was compared with five thousand names, ten milliseconds each."""
    for at, letters in enumerate(product("ab", repeat=8)):
        _add(rows, f"{''.join(letters) * 5}{at}", f"{at}.md")
    target = "ab" * 20

    assert lookup.similar(rows, target)
    assert count_lines(lambda: lookup.similar(rows, target)) < 1_000_000


@pytest.mark.parametrize("text", ["a ", "# a\n", "| a | b |\n", "a" * 30 + " "])
def test_a_search_for_a_word_that_fills_a_note_returns_one_short_snippet(
    rows: sqlite3.Connection, text: str
) -> None:
    """SQLite compared all positions of the word with each other for hours."""
    number = _add(rows, "often", "often.md")
    body = text * (900_000 // len(text))
    rows.execute(
        "INSERT INTO words (rowid, title, names, tags, body) VALUES (?, ?, ?, ?, ?)",
        (number, "", "", "", body),
    )
    word = query_of(" ".join(f"{'a' * at}*" for at in range(1, 30)))
    (hit,) = lookup.searched(rows, word, None, 20)[0]

    assert "**a" in hit.snippet
    assert len(hit.snippet) < 3_000


LINE_BREAKS = {"return": "\r", "form feed": "\f", "next line": "\x85", "separator": "\u2028"}


@pytest.mark.parametrize("sign", LINE_BREAKS.values(), ids=LINE_BREAKS)
def test_a_script_review_escapes_line_separators_in_comments(
    sign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent could move a check into a comment, and the comparison showed no change."""
    approved = "def main():\n  # Only for us.\n  check()\n  return pay()\n"
    changed = approved.replace("us.\n", f"us.{sign}")
    before = Script("pay", approved.encode(), "workspace")
    review = ScriptReview(
        name="pay", digest=before.digest, content=approved, place="workspace", at=0.0
    )

    show(Script("pay", changed.encode(), "workspace"), review, "acme", DEFAULT_FILE)
    escaped = sign.encode("unicode_escape").decode()
    assert f"+  # Only for us.{escaped}  check()" in capsys.readouterr().out
