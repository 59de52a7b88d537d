"""Small pure parts: what YAML means, what is cut, what arguments are called, who gets what."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatepost.tools.schemas.raw_schema import validator_of
from gatepost_packs.openapi.description.api_response import shortened, shown_body
from gatepost_packs.openapi.description.document import ApiDescription
from gatepost_packs.openapi.description.operation import answer_schema, read_operation
from gatepost_packs.openapi.description.operation_arguments import arguments_of
from gatepost_packs.openapi.description.operation_request import (
    Misuse,
    OperationInput,
    request_target,
)
from gatepost_packs.openapi.description.reading import canonical
from gatepost_packs.openapi.description.schema import Simplified

pytestmark = pytest.mark.requirement("X7")

YAML = """
openapi: 3.0.0
on: off
date: 2024-01-01
version: 1.10
octal: 010
big: 123456789012345678901234567890
whole: -7
exponent: 1e3
infinite: 1e999
empty:
tilde: ~
yes: true
200: {description: &d ok}
again: *d
base: &b {a: 1, b: 2}
merged: {<<: *b, b: 3}
text: |
  one
  two
"""


def test_yaml_is_read_by_its_core_schema() -> None:
    """YAML 1.2: no dates and no `on`; keys are texts; aliases and merges work."""
    assert json.loads(canonical(YAML.encode())) == {
        "openapi": "3.0.0",
        "on": "off",
        "date": "2024-01-01",
        "version": 1.1,
        "octal": "010",
        "big": 1.2345678901234568e29,
        "whole": -7,
        "exponent": 1000.0,
        "infinite": "1e999",
        "empty": None,
        "tilde": None,
        "yes": True,
        "200": {"description": "ok"},
        "again": "ok",
        "base": {"a": 1, "b": 2},
        "merged": {"a": 1, "b": 3},
        "text": "one\ntwo\n",
    }


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8),
    max_leaves=60,
)


@given(JSON_VALUES, st.integers(1, 400))
@example([[]], 2)
@example([[None]], 4)
@example({"a": [None, None]}, 9)
def test_a_cut_body_is_valid_json_within_the_requested_size(value: Any, most: int) -> None:
    """A small body is unchanged, and the result is at most `null` beyond the limit."""
    text = shortened(value, most)
    size = len(msgspec.json.encode(text.body))

    assert text.cut is (text.body != value or size > most)
    assert size <= max(most, 4)


@given(st.binary(max_size=60), st.sampled_from(["", "application/json", "text/plain"]))
def test_any_body_can_be_shown(data: bytes, content_type: str) -> None:
    """Any bytes become JSON."""
    json.dumps(shown_body(data, content_type, truncated=False, max_bytes=40).body)


def operation(written: dict[str, Any], path: str = "/a/{id}", version: str = "3.0.0") -> Any:
    document = {"openapi": version, "paths": {path: {"post": written}}}
    description = ApiDescription(canonical(json.dumps(document).encode()))
    return read_operation(description, description.entries[0])


CLASHING_PARAMETERS = {
    "parameters": [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "id", "in": "query", "schema": {"type": "integer"}},
        {"name": "id", "in": "header"},
        {"name": "id", "in": "cookie"},
        {"name": "filter[name]", "in": "query"},
        {"name": "Authorization", "in": "header"},
        {"name": "X-Key", "in": "header"},
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/xml": {},
            "application/json": {
                "schema": {
                    "allOf": [
                        {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
                        {"properties": {"made": {"type": "string", "readOnly": True}}},
                    ]
                }
            },
        },
    },
}


def test_clashing_parameter_names_get_prefixes_and_are_mapped_back() -> None:
    """Path before query before header before cookie before body."""
    arguments = arguments_of(operation(CLASHING_PARAMETERS), hidden=frozenset({"x-key"}))
    values = {"id": "p", "query_id": 1, "header_id": "h", "cookie_id": "c", "body_id": 2}

    assert [argument.name for argument in arguments.listed] == [
        "id",
        "query_id",
        "filter_name",
        "header_id",
        "cookie_id",
        "body_id",
    ]
    assert arguments.schema()["required"] == ["id", "body_id"]
    assert arguments.schema()["additionalProperties"] is False
    assert arguments.input_of({**values, "filter_name": "f"}) == OperationInput(
        {"id": "p"}, {"id": 1, "filter[name]": "f"}, {"id": "h"}, {"id": "c"}, {"id": 2}
    )


SCHEMAS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
    (
        {"type": "string", "nullable": True, "enum": ["a"]},
        {"type": ["string", "null"], "enum": ["a", None]},
    ),
    ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
    ({"type": "file"}, {"type": "string"}),
    ({"type": "any", "required": True, "enum": [], "maxLength": -1}, {}),
    ({"type": "string", "pattern": "(["}, {"type": "string"}),
    ({"example": 1, "xml": {}, "x-a": 1, "discriminator": {}, "title": "T"}, {}),
    (
        {
            "type": "object",
            "properties": {"a": {"readOnly": True}, "b": {}},
            "required": ["a", "b"],
        },
        {"type": "object", "properties": {"b": {}}, "required": ["b"]},
    ),
    (
        {"allOf": [{"type": "string"}], "nullable": True, "description": "D"},
        {"description": "D", "anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]},
    ),
]


@pytest.mark.parametrize(("written", "converted"), SCHEMAS)
def test_a_schema_is_translated_to_2020_12(
    written: dict[str, Any], converted: dict[str, Any]
) -> None:
    """Unknown keywords and invalid values are left out."""
    assert Simplified("3.0").schema(written) == converted
    validator_of({"type": "object", "properties": {"x": converted}})


@given(JSON_VALUES)
def test_any_schema_becomes_a_valid_one(written: Any) -> None:
    """The result is valid whatever the description contains."""
    schema = Simplified("3.0", without_patterns=True).schema({"properties": {"x": written}})

    validator_of({"type": "object", "properties": {"x": schema}})


def test_a_deeply_nested_schema_is_cut() -> None:
    """Levels beyond twenty accept any value."""
    node: dict[str, Any] = {}
    for _ in range(200):
        node = {"type": "object", "properties": {f"p{at}": node for at in range(3)}}
    simplified = Simplified("3.1")
    schema = simplified.schema(node)

    assert len(json.dumps(schema)) < 400_000
    validator_of({**schema, "type": "object"})


def test_the_output_schema_is_that_of_the_best_status() -> None:
    """The first 2xx that is JSON; else `default`; else none."""
    content = {"content": {"application/json": {"schema": {"type": "object"}}}}
    other = {"content": {"text/html": {"schema": {"type": "string"}}}}

    assert answer_schema(operation({"responses": {"404": other, "201": content}})) is not None
    assert answer_schema(operation({"responses": {"default": content}})) is not None
    assert answer_schema(operation({"responses": {"200": other, "default": content}})) is None
    assert answer_schema(operation({})) is None


@given(st.text(min_size=1, max_size=20))
def test_no_path_value_adds_a_path_segment(value: str) -> None:
    """The path has as many segments as its template, whatever the value holds."""
    try:
        target = request_target(operation({}, "/a/{id}/b"), OperationInput(path={"id": value}))
    except Misuse:
        return
    first, segment, last = target.removeprefix("/").split("/")

    assert (first, last) == ("a", "b")
    assert segment not in ("", ".", "..")
    assert not set(segment) & set("?#\\/ ")


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "utf_7", "zlib", "no-such"])
def test_a_server_cannot_choose_a_python_codec(charset: str) -> None:
    """Python's punycode keeps a processor busy for minutes with one answer."""
    data = b"-a9a9+AGE-\\x41"
    body = shown_body(data, f"text/plain; charset={charset}", truncated=False, max_bytes=1_000)

    assert body.body == data.decode()


def test_text_is_read_by_the_character_set_it_names() -> None:
    """Only character sets of the web are used."""
    for charset, data in {"latin1": b"\xfc", "Shift_JIS": "語".encode("cp932")}.items():
        body = shown_body(data, f"text/plain; charset={charset}", truncated=False, max_bytes=1_000)

        assert body.body in ("ü", "語")
