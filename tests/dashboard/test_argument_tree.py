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
from gatepost.documents.exact_json import compact, decoded
from tests.support.measuring import count_lines


def only_node(encoded: str) -> Node:
    """Return the only member of an object."""
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
def test_values_are_shown_exactly_as_written(written: str, kind: str, text: str) -> None:
    """The approver sees every digit."""
    node = only_node(f'{{"a": {written}}}')

    assert (node.kind, node.text) == (kind, text)


@pytest.mark.parametrize("text", ["1", "-2.5", "true", "null", ""])
def test_texts_that_look_like_other_values_are_marked(text: str) -> None:
    """The page shows no quotation marks, so the text "1" needs a mark."""
    assert only_node(json.dumps({"a": text})).is_ambiguous
    assert not only_node('{"a": 1}').is_ambiguous


def test_lists_of_small_flat_objects_are_shown_as_a_table() -> None:
    """A row may lack a column."""
    node = only_node('{"rows": [{"n": 1, "who": "a"}, {"n": 2}]}')

    assert (node.kind, node.columns) == ("table", ("n", "who"))
    assert [row.cells["n"].text for row in node.nodes] == ["1", "2"]
    assert "who" not in node.nodes[1].cells


@pytest.mark.parametrize(
    "items", ["[1, 2]", '[{"a": [1]}]', '[{"a": {"b": 1}}]', '[{"a": "x\\ny"}]', "[{}]", "[]"]
)
def test_other_lists_are_shown_as_a_tree(items: str) -> None:
    """Nested or multi-line values do not fit a table cell."""
    assert only_node(f'{{"a": {items}}}').kind == "list"


BOUNDED_ARGUMENTS = [
    ("a long text", {"a": "x" * (MAX_TEXT + 5)}),
    ("many values", {"a": list(range(MAX_NODES + 5))}),
    ("many texts", {str(at): "x" * 2_000 for at in range(100)}),
]


@pytest.mark.parametrize(
    ("what", "value"), BOUNDED_ARGUMENTS, ids=[case[0] for case in BOUNDED_ARGUMENTS]
)
def test_arguments_that_are_not_shown_whole_are_marked(what: str, value: object) -> None:
    """The page has size limits, and the approver learns that values are left out."""
    assert not read(json.dumps(value).encode()).is_whole
    assert read(b'{"a": [1, "two"]}').is_whole


def test_deeply_nested_values_are_shown_as_json() -> None:
    """The depth of the tree is limited."""
    node = read(("[" * 40 + "]" * 40).encode())
    for _ in range(MAX_DEPTH):
        node = node.nodes[0]

    assert node.kind == "raw"
    assert node.text == "[" * 28 + "]" * 28
    assert read(b"[" * 100_000).kind == "raw"


def test_the_json_field_contains_the_same_value() -> None:
    """Numbers keep every digit."""
    written = '{"a": [1.10, {"b": "ü\\n"}], "c": {}, "d": [], "e": null}'
    value = decoded(written.encode())

    assert compact(value) == written
    assert compact(decoded(laid_out(value).encode())) == written


def test_the_list_of_requests_shows_the_first_three_arguments() -> None:
    """They are enough to tell one call from another."""
    assert summary(b'{"to": "a@b", "n": [1, 2], "x": true, "y": 1}') == [
        ("to", "a@b"),
        ("n", "[1, 2]"),
        ("x", "true"),
    ]
    assert summary(b"nonsense") == []


def test_a_list_of_requests_costs_no_more_with_long_arguments() -> None:
    """A caller may let twenty requests wait, and each open page shows all of them again."""

    def lines(count: int) -> int:
        rows = [{"item": number, "price": 1.5} for number in range(count)]
        encoded = json.dumps({"rows": rows, "to": "a@b"}).encode()
        return count_lines(lambda: summary(encoded))

    assert lines(5_000) <= lines(3)


def test_the_beginning_of_a_long_list_stands_as_it_was_sent() -> None:
    encoded = b'{"rows":[%s],"text":"%s"}' % (b",".join([b"1.50"] * 1_000), b"\\u00e4" * 1_000)

    assert summary(encoded) == [("rows", ("[" + "1.50," * 24)[:120]), ("text", "ä" * 120)]
