"""A call's arguments as a person reads them."""

import json

import pytest

from gatepost.dashboard.argument_tree import (
    MAX_DEPTH,
    MAX_NODES,
    MAX_TEXT,
    Node,
    laid_out,
    read,
    summary,
)
from gatepost.tools.exact_json import compact, decoded


def only(encoded: str) -> Node:
    """The one member of an object."""
    return read(encoded.encode()).nodes[0]


@pytest.mark.parametrize(
    ("written", "kind", "text"),
    [
        ('"x"', "text", "x"),
        ("1.50", "number", "1.50"),
        ("12345678901234567890123", "number", "12345678901234567890123"),
        ("1e400", "number", "1e400"),
        ("true", "flag", "true"),
        ("null", "null", "null"),
    ],
)
def test_a_value_is_shown_as_it_was_written(written: str, kind: str, text: str) -> None:
    """No digit gets lost on the way to the person who approves it."""
    node = only(f'{{"a": {written}}}')

    assert (node.kind, node.text) == (kind, text)


@pytest.mark.parametrize("text", ["1", "-2.5", "true", "null", ""])
def test_a_text_that_looks_like_something_else_says_so(text: str) -> None:
    """ "1" is not 1, and a page without quotation marks must not make them alike."""
    assert only(json.dumps({"a": text})).is_ambiguous
    assert not only('{"a": 1}').is_ambiguous


def test_small_flat_objects_in_a_list_are_a_table() -> None:
    """Rows of an invoice read as rows; a row may lack a column."""
    node = only('{"rows": [{"n": 1, "who": "a"}, {"n": 2}]}')

    assert (node.kind, node.columns) == ("table", ("n", "who"))
    assert [row.cells["n"].text for row in node.nodes] == ["1", "2"]
    assert "who" not in node.nodes[1].cells


@pytest.mark.parametrize(
    "items", ["[1, 2]", '[{"a": [1]}]', '[{"a": {"b": 1}}]', '[{"a": "x\\ny"}]', "[{}]", "[]"]
)
def test_anything_else_in_a_list_is_a_tree(items: str) -> None:
    """What does not fit a cell is not squeezed into one."""
    assert only(f'{{"a": {items}}}').kind == "list"


BOUNDED_ARGUMENTS = [
    ("a long text", {"a": "x" * (MAX_TEXT + 5)}),
    ("many values", {"a": list(range(MAX_NODES + 5))}),
    ("many texts", {str(at): "x" * 2_000 for at in range(100)}),
]


@pytest.mark.parametrize(
    ("what", "value"), BOUNDED_ARGUMENTS, ids=[case[0] for case in BOUNDED_ARGUMENTS]
)
def test_what_is_left_out_is_told(what: str, value: object) -> None:
    """A page has bounds, and the approver learns that it does not show all of it."""
    assert not read(json.dumps(value).encode()).is_whole
    assert read(b'{"a": [1, "two"]}').is_whole


def test_what_is_nested_deeply_is_shown_as_json() -> None:
    """Nesting makes no page without end."""
    node = read(("[" * 40 + "]" * 40).encode())
    for _ in range(MAX_DEPTH):
        node = node.nodes[0]

    assert node.kind == "raw"
    assert node.text == "[" * 28 + "]" * 28
    assert read(b"[" * 100_000).kind == "raw"


def test_a_value_can_be_edited_as_json() -> None:
    """What stands in a form's field is the same value, number by number."""
    written = '{"a": [1.10, {"b": "ü\\n"}], "c": {}, "d": [], "e": null}'
    value = decoded(written.encode())

    assert compact(value) == written
    assert compact(decoded(laid_out(value).encode())) == written


def test_a_list_shows_the_first_arguments() -> None:
    """Enough to tell one call from another."""
    assert summary(b'{"to": "a@b", "n": [1, 2], "x": true, "y": 1}') == [
        ("to", "a@b"),
        ("n", "[1, 2]"),
        ("x", "true"),
    ]
    assert summary(b"nonsense") == []
