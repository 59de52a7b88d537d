"""A tool's schema in draft-07 means what it meant in 2020-12."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.rest.tool_descriptions import DRAFT_07, as_draft_07
from gatepost.tools.schemas.raw_schema import validator_of
from tests.support.measuring import each

NAMES = st.sampled_from(["a", "b", "c"])
LEAF_SCHEMAS = st.sampled_from(
    [
        True, False, {}, {"type": "integer"}, {"type": "string", "minLength": 1}, {"const": 1},
        {"enum": ["x", None, {"$ref": "data, not a reference"}]}, {"type": "null"},
        {"minimum": 0, "exclusiveMaximum": 2}, {"required": ["a"]}, {"maxProperties": 1},
    ]
)  # fmt: skip
REFERENCES = st.sampled_from(["#/$defs/a", "#/$defs/b", "#here", "#/$defs/c/prefixItems/0"])
JSON_VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 2, -1, 1.0, "", "x", "xy"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


RELATED_KEYWORDS = [
    ("type",), ("properties", "additionalProperties", "patternProperties"), ("propertyNames",),
    ("prefixItems", "items"), ("items",), ("contains", "minContains"), ("contains",), ("allOf",),
    ("anyOf",), ("oneOf",), ("not",), ("if", "then", "else"), ("dependentRequired",),
    ("dependentSchemas", "dependentRequired"), ("dependencies",), ("$ref",),
    ("$ref", "description"),
]  # fmt: skip
"""Keywords that mean something to each other; a schema of all of them accepts hardly anything."""


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas of a few keywords, with old and new ones side by side."""
    lists = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(NAMES, inner, min_size=1, max_size=2)
    required = st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2)
    values = {
        "type": st.sampled_from(["object", "array", "integer", ["object", "array"]]),
        "properties": named,
        "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
        "propertyNames": st.sampled_from([True, {"maxLength": 1}]),
        "prefixItems": lists,
        "minContains": st.just(0),
        "allOf": lists,
        "anyOf": lists,
        "oneOf": lists,
        "dependentRequired": required,
        "dependentSchemas": named,
        "dependencies": required,
        "$ref": REFERENCES,
        "description": st.just("said"),
    }

    def strategy_of(chosen: list[tuple[str, ...]]) -> st.SearchStrategy[dict[str, Any]]:
        keywords = {keyword for group in chosen for keyword in group}
        return st.fixed_dictionaries({name: values.get(name, inner) for name in keywords})

    return st.lists(st.sampled_from(RELATED_KEYWORDS), min_size=1, max_size=2).flatmap(strategy_of)


SCHEMAS = st.recursive(LEAF_SCHEMAS, nodes, max_leaves=6)


def below_root(node: Any, first: Any, second: Any) -> dict[str, Any]:
    """Return a root with the node, where every reference finds a target other than itself."""
    plain = {
        "a": _without_references(first),
        "b": {"$anchor": "here", **_without_references(second)}
        if isinstance(second, dict)
        else {"$anchor": "here"},
        "c": {"prefixItems": [{"type": "integer"}]},
    }
    return {"$defs": plain, "properties": {"a": node}, "items": node}


def _without_references(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_references(child) for child in node]
    if isinstance(node, dict) and "enum" not in node:
        return {name: _without_references(child) for name, child in node.items() if name != "$ref"}
    return node


def accepts(schema: Any, value: Any) -> bool:
    validator = (
        jsonschema_rs.Draft202012Validator(schema, validate_formats=False)
        if schema.get("$schema") != DRAFT_07
        else jsonschema_rs.Draft7Validator(schema, validate_formats=False)
    )
    return bool(validator.is_valid(value))


def converted_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {**as_draft_07(schema), "$schema": DRAFT_07}


@pytest.mark.requirement("O1")
@given(SCHEMAS, SCHEMAS, SCHEMAS, JSON_VALUES)
def test_both_schemas_accept_the_same_values(
    node: Any, first: Any, second: Any, value: Any
) -> None:
    """This holds for all keywords that draft-07 has a form of."""
    schema = below_root(node, first, second)
    before = json.dumps(schema)

    assert accepts(schema, {"a": value}) == accepts(converted_schema(schema), {"a": value})
    assert accepts(schema, [value]) == accepts(converted_schema(schema), [value])
    assert json.dumps(schema) == before


DROPPED_KEYWORDS = {
    "unevaluatedProperties": SCHEMAS,
    "unevaluatedItems": SCHEMAS,
    "minContains": st.integers(0, 3),
    "maxContains": st.integers(0, 3),
    "contains": SCHEMAS,
    "properties": st.dictionaries(NAMES, SCHEMAS, max_size=2),
    "prefixItems": st.lists(SCHEMAS, min_size=1, max_size=2),
    "allOf": st.lists(SCHEMAS, min_size=1, max_size=1),
}


@pytest.mark.requirement("O1")
@given(st.fixed_dictionaries({}, optional=DROPPED_KEYWORDS), JSON_VALUES)
def test_keywords_that_draft_07_lacks_make_the_schema_more_permissive(
    node: dict[str, Any], value: Any
) -> None:
    """A client refuses no value that the tool accepts; the tool's own check refuses the rest."""
    schema = below_root(node, True, True)

    assert not accepts(schema, {"a": value}) or accepts(converted_schema(schema), {"a": value})


REWRITTEN_SCHEMAS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "definitions",
        {"$defs": {"x": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/x"}}},
        {
            "definitions": {"x": {"type": "string"}},
            "properties": {"a": {"$ref": "#/definitions/x"}},
        },
    ),
    (
        "a property of that name",
        {"properties": {"$defs": {"type": "null"}, "items": {"$ref": "#/properties/$defs"}}},
        {"properties": {"$defs": {"type": "null"}, "items": {"$ref": "#/properties/$defs"}}},
    ),
    (
        "both names",
        {"$defs": {"x": True}, "definitions": {"x": False}, "not": {"$ref": "#/$defs/x"}},
        {"$defs": {"x": True}, "definitions": {"x": False}, "not": {"$ref": "#/$defs/x"}},
    ),
    (
        "tuple",
        {"prefixItems": [{"type": "string"}], "items": False},
        {"items": [{"type": "string"}], "additionalItems": False},
    ),
    (
        "pointer into a tuple",
        {"prefixItems": [True], "items": {"const": 1}, "not": {"$ref": "#/prefixItems/0"},
         "if": {"$ref": "#/items"}},
        {"items": [True], "additionalItems": {"const": 1}, "not": {"$ref": "#/items/0"},
         "if": {"$ref": "#/additionalItems"}},
    ),
    (
        "beside a reference",
        {"$ref": "#/$defs/x", "minLength": 2, "$defs": {"x": {"type": "string"}}},
        {"minLength": 2, "definitions": {"x": {"type": "string"}},
         "allOf": [{"$ref": "#/definitions/x"}]},
    ),
    (
        "dependent",
        {"dependentRequired": {"a": ["b"], "c": ["a"]},
         "dependentSchemas": {"a": {"minProperties": 2}}},
        {"dependencies": {
            "a": {"allOf": [{"required": ["b"]}, {"minProperties": 2}]}, "c": ["a"]}},
    ),
    (
        "dialect",
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
        {"$schema": DRAFT_07, "type": "object"},
    ),
    (
        "already draft-07",
        {"$schema": DRAFT_07, "items": [True], "definitions": {"x": True}},
        {"$schema": DRAFT_07, "items": [True], "definitions": {"x": True}},
    ),
    ("closed", {"unevaluatedProperties": False}, {"additionalProperties": False}),
    ("data", {"const": {"$defs": {"prefixItems": 1}}}, {"const": {"$defs": {"prefixItems": 1}}}),
    (
        "anchor",
        {"$defs": {"x": {"$anchor": "here", "type": "string"}}, "items": {"$ref": "#here"}},
        {"definitions": {"x": {"$id": "#here", "type": "string"}}, "items": {"$ref": "#here"}},
    ),
    (
        "own address",
        {"$id": "https://e.example/s", "$defs": {"x": True},
         "not": {"$ref": "https://e.example/s#/$defs/x"}},
        {"$id": "https://e.example/s", "definitions": {"x": True},
         "not": {"$ref": "https://e.example/s#/definitions/x"}},
    ),
    (
        "itself",
        {"properties": {"inner": {"$ref": "#"}}},
        {"properties": {"inner": {"$ref": "#"}}},
    ),
]  # fmt: skip


@pytest.mark.requirement("O1")
@each(
    ("schema", "expected"),
    [c[1:] for c in REWRITTEN_SCHEMAS],
    ids=[c[0] for c in REWRITTEN_SCHEMAS],
)
def test_keywords_of_2020_12_become_those_of_draft_07(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Values that are data stay unchanged."""
    assert as_draft_07(schema) == expected
    validator_of({**as_draft_07(schema), "$schema": DRAFT_07})
