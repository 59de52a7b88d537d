"""Texts of strangers: visible, bounded, and never changed where a change would break the tool."""

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.upstreams.cleaning import (
    MAX_DEPTH,
    MAX_VALUE,
    Unusable,
    check_exact,
    cleaned,
    cleaned_schema,
    is_visible,
    usable,
    usable_input,
    visible_line,
)

REMOVAL_NOTE = ("invisible characters removed",)
HIDDEN_CHARACTERS = {
    "zero width": "\u200b\u200c\u200d\u2060\ufeff",
    "bidi": "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c",
    "tags": "".join(map(chr, range(0xE0061, 0xE007B))),
    "variation selectors": "\ufe00\ufe0e\U000e0100\U000e01ef",
    "private use": "\ue000\U000f0000",
    "controls": "\x00\x07\x1b\x7f",
    "blanks": "\u3164\u115f\u2800\u00ad\u034f\u180e",
    "surrogates": "\ud800",
    "unassigned": "\U000e0fff\ufff9",
}


@pytest.mark.parametrize("hidden_character", HIDDEN_CHARACTERS.values(), ids=HIDDEN_CHARACTERS)
def test_invisible_text_is_removed(hidden_character: str) -> None:
    """The review reports it."""
    assert cleaned(f"Read{hidden_character} a file", 100) == ("Read a file", REMOVAL_NOTE)
    assert not is_visible(f"re{hidden_character}ad")


@pytest.mark.parametrize(
    "text",
    [
        "Plain.\n\tAnd more",
        "Größe: 10 µm",
        "日本語の説明",
        "👩‍💻 ❤️ 👍🏽 1️⃣",
        "naïve e\u0301",
        "العربية",
    ],
)
def test_ordinary_text_of_all_languages_is_unchanged(text: str) -> None:
    """So are emoji."""
    assert cleaned(text, 100) == (text, ())


def test_lines_end_in_one_way() -> None:
    """Line separators that only some programs know become line feeds, too."""
    assert cleaned("a\r\nb\rc\u2028d\u2029e\x85f", 100) == ("a\nb\nc\nd\ne\nf", ())


def test_a_long_text_is_shortened() -> None:
    """A text that is too long only before the cleaning is shortened, too."""
    assert cleaned("x" * 11, 10) == ("x" * 9 + "…", ("shortened",))
    text, report = cleaned("\u200b" * 1_000_000 + "hidden", 10)
    assert text == ""
    assert report == ("shortened", *REMOVAL_NOTE)


@given(st.text(max_size=300), st.integers(2, 100))
def test_a_clean_text_is_visible_and_bounded(text: str, max_characters: int) -> None:
    """A second cleaning changes nothing."""
    clean, _ = cleaned(text, max_characters)

    assert len(clean) <= max_characters
    assert cleaned(clean, max_characters) == (clean, ())
    bad = [
        character
        for character in clean
        if unicodedata.category(character) in {"Cc", "Cs", "Co", "Cn"}
    ]
    assert set(bad) <= {"\n", "\t"}


@given(st.text(max_size=50))
def test_a_shown_text_is_one_line(text: str) -> None:
    """Reasons and pages show such texts."""
    assert "\n" not in visible_line(text)


def test_texts_of_a_schema_are_cleaned() -> None:
    """This holds at any depth; names and values are unchanged."""
    dirty: dict[str, Any] = {
        "type": "object",
        "title": "T\u200b",
        "properties": {
            "description": {"type": "string", "description": "A\u202e text"},
            "kind": {"enum": ["a", "b"], "default": "a", "examples": [{"title": "x"}]},
        },
        "$defs": {"title": {"description": "\u2066d"}},
        "anyOf": [{"description": "e\ufeff"}],
    }
    clean, report = cleaned_schema(dirty)

    assert clean == {
        "type": "object",
        "title": "T",
        "properties": {
            "description": {"type": "string", "description": "A text"},
            "kind": {"enum": ["a", "b"], "default": "a", "examples": [{"title": "x"}]},
        },
        "$defs": {"title": {"description": "d"}},
        "anyOf": [{"description": "e"}],
    }
    assert report == ("schema: invisible characters removed",)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"pa\u200bth": {}}},
        {"properties": {"path\n": {}}},
        {"properties": {"p": {"enum": ["a", "a\u200b"]}}},
        {"properties": {"p": {"const": "\u202e"}}},
        {"properties": {"p": {"default": {"description": "\u200b"}}}},
        {"properties": {"p": {"examples": ["\U000e0041"]}}},
        {"properties": {"p": {"pattern": "^\u200b$"}}},
        {"properties": {"p": {"x-note": "\u200b"}}},
        {"properties": {"p": {"enum": ["x" * (MAX_VALUE + 1)]}}},
        {"required": ["a\u200b"]},
        [],
        "object",
        None,
    ],
)
def test_a_schema_that_would_have_to_change_is_unusable(schema: Any) -> None:
    """The tool would not understand the changed name or value."""
    with pytest.raises(Unusable):
        cleaned_schema(schema)


def test_a_deep_schema_is_unusable() -> None:
    """It is refused before other code walks it."""
    schema: Any = {}
    for _ in range(100_000):
        schema = {"not": schema}

    with pytest.raises(Unusable, match=f"{MAX_DEPTH} levels"):
        cleaned_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string"},
        {"type": ["object", "null"]},
        {"type": "object", "properties": {"a": {"$ref": "https://evil.example/a.json"}}},
        {"type": "object", "properties": {"a": {"type": "strange"}}},
        {"type": "object", "$schema": "https://example.com/own"},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
    ],
)
def test_an_input_schema_that_cannot_be_enforced_is_unusable(schema: Any) -> None:
    """The error names the schema."""
    with pytest.raises(Unusable, match="schema"):
        usable_input(schema)


def test_an_output_schema_needs_no_object() -> None:
    """The revision 2026-07-28 allows output of any JSON type."""
    usable({"type": "array", "items": {"type": "string"}}, "output")


def test_exact_texts_are_checked_anywhere_in_a_value() -> None:
    """The check covers `_meta` as well."""
    check_exact({"a": [1, {"b": "c"}], "d": None}, "it")
    with pytest.raises(Unusable):
        check_exact({"a": [1, {"b": "\u200b"}]}, "it")
