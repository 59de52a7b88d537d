"""Text of agents and callers is shown so that it cannot mislead."""

import pytest

from gatepost.dashboard.escaping import hidden, oneline, pieces, plain_text
from tests.support.measuring import each

ESCAPED_TEXTS = [
    # what                      written            shown as
    ("a carriage return", "a\rb", "a\\rb"),
    ("NUL", "a\0b", "a\\0b"),
    ("an escape sequence", "\x1b[31m", "\\e[31m"),
    ("C1 controls", "\x9b", "\\u009b"),
    ("right-to-left override", "\u202egnp.exe", "\\u202egnp.exe"),
    ("isolates", "\u2066x\u2069", "\\u2066x\\u2069"),
    ("Arabic letter mark", "\u061c", "\\u061c"),
    ("zero width space", "pay\u200bpal", "pay\\u200bpal"),
    ("zero width joiner", "a\u200db", "a\\u200db"),
    ("byte order mark", "\ufeffx", "\\ufeffx"),
    ("soft hyphen", "a\u00adb", "a\\u00adb"),
    ("no-break space", "a\u00a0b", "a\\u00a0b"),
    ("line separator", "a\u2028b", "a\\u2028b"),
    ("tag characters", "x\U000e0041", "x\\U000e0041"),
    ("variation selectors", "x\ufe01\U000e0101", "x\\ufe01\\U000e0101"),
    ("Hangul filler", "x\u3164", "x\\u3164"),
    ("half a surrogate pair", "x\ud800", "x\\ud800"),
    ("private use", "x\ue000", "x\\ue000"),
    ("unassigned", "x\u0378", "x\\u0378"),
]


@each(("what", "written", "seen"), ESCAPED_TEXTS, ids=[case[0] for case in ESCAPED_TEXTS])
def test_hidden_characters_are_shown_as_escapes(what: str, written: str, seen: str) -> None:
    """No character stays invisible or changes the order of others."""
    assert plain_text(written) == seen
    assert hidden(written) == seen.count("\\")


@pytest.mark.parametrize(
    "text", ["", "plain", "two\nlines\tand a tab", "Müller & Söhne", "שלום", "日本語", "🙂", "<b>"]
)
def test_readable_text_of_any_script_is_not_escaped(text: str) -> None:
    """Letters of all scripts are ordinary text."""
    assert plain_text(text) == text
    assert hidden(text) == 0


def test_redaction_marks_are_separated_from_text() -> None:
    """The mark stands out, also between escaped characters."""
    parts = pieces("key=[REDACTED:GITHUB_TOKEN]\x00")

    assert [(piece.kind, piece.text) for piece in parts] == [
        ("plain", "key="),
        ("secret", "[REDACTED:GITHUB_TOKEN]"),
        ("escape", "\\0"),
    ]


def test_an_escape_has_the_name_of_its_character_as_title() -> None:
    """The title appears when a user points at the escape."""
    assert pieces("\u202e")[0].title == "U+202E RIGHT-TO-LEFT OVERRIDE"


def test_lists_show_the_beginning_of_a_text_on_one_line() -> None:
    """Line breaks become signs, and a truncated text ends with an ellipsis."""
    assert oneline("a\nb\tc", 20) == "a ↵ b c"
    assert oneline("x" * 30, 20) == "x" * 20 + "…"
