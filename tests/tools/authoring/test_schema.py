"""A signature is a schema and a check; what is wrong is said so that a model can mend it."""

import json
from enum import Enum
from typing import Annotated, Any, Literal, Protocol

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from gatepost.tools.authoring.schema import arguments_of
from gatepost.tools.offers.offer import CallContext, ToolFailure
from gatepost.tools.schemas.raw_schema import checker
from tests.support.measuring import each


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class SchemaLine(BaseModel):
    """One line."""

    amount: float
    note: str = ""


class SchemaTree(BaseModel):
    name: str
    children: list["SchemaTree"] = []


async def example(
    ctx: CallContext,
    filename: Annotated[str, Field(description="Where to", max_length=10)],
    lines: list[SchemaLine],
    count: int = 3,
    mode: Literal["fast", "safe"] = "safe",
    colour: Annotated[Colour, "What it looks like"] = Colour.RED,
) -> None: ...


async def grow(ctx: CallContext, tree: SchemaTree) -> None: ...


async def nothing(ctx: CallContext) -> None: ...


EXAMPLE = arguments_of(example)


def test_a_signature_becomes_a_plain_schema() -> None:
    """An object without titles or references, closed, with descriptions and defaults."""
    assert EXAMPLE.schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["filename", "lines"],
        "properties": {
            "filename": {"type": "string", "description": "Where to", "maxLength": 10},
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "description": "One line.",
                    "properties": {
                        "amount": {"type": "number"},
                        "note": {"type": "string", "default": ""},
                    },
                    "required": ["amount"],
                },
            },
            "count": {"type": "integer", "default": 3},
            "mode": {"type": "string", "enum": ["fast", "safe"], "default": "safe"},
            "colour": {
                "type": "string",
                "enum": ["red", "blue"],
                "description": "What it looks like",
                "default": "red",
            },
        },
    }


@pytest.mark.requirement("TL-04")
def test_no_arguments_are_an_empty_closed_object() -> None:
    """Clients expect such a schema of a tool without arguments."""
    assert arguments_of(nothing).schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_a_recursive_type_keeps_its_definition() -> None:
    """A type that refers to itself cannot be inlined."""
    schema = arguments_of(grow).schema

    assert list(schema["$defs"]) == ["SchemaTree"]
    jsonschema_rs.Draft202012Validator(schema).validate({"tree": {"name": "a", "children": []}})


def test_checked_arguments_have_the_types_of_the_function() -> None:
    """Models are built; an argument with a default may be missing."""
    checked = EXAMPLE.check(b'{"filename":"a","lines":[{"amount":1}],"colour":"blue"}')

    assert checked == {"filename": "a", "lines": [SchemaLine(amount=1.0)], "colour": Colour.BLUE}


INVALID_ARGUMENTS = [
    # arguments                               field             says
    ({}, "filename", ["`filename` is required.", "`lines` is required."]),
    ({"filename": 5, "lines": []}, "filename", ["`filename` should be a valid string (got 5)"]),
    ({"filename": "a" * 11, "lines": []}, "filename", ["at most 10 characters"]),
    ({"filename": "a", "lines": [{}]}, "lines[0].amount", ["`lines[0].amount` is required."]),
    ({"filename": "a", "lines": [], "mode": "slow"}, "mode", ["'fast' or 'safe'", '(got "slow")']),
    ({"filename": "a", "lines": [], "colour": 1}, "colour", ["'red' or 'blue'"]),
    ({"filename": "a", "lines": [], "count": "3"}, "count", ["`count` should be a valid integer"]),
    ({"filename": "a", "lines": [], "count": 1.5}, "count", ["`count`"]),
    ({"filename": "a", "lines": [], "x": 1}, "x", ["`x` is not an argument", "`count`"]),
    ({"filename": "a", "lines": [{"amount": "x"}] * 9}, "lines[0].amount", ["And 6 more."]),
    ([], None, ["The arguments should be"]),
]


@each(("arguments", "field", "expected_texts"), INVALID_ARGUMENTS)
def test_an_error_is_explained_to_the_model(
    arguments: Any, field: str | None, expected_texts: list[str]
) -> None:
    """It names the argument, the allowed values and the given one."""
    with pytest.raises(ToolFailure) as raised:
        EXAMPLE.check(json.dumps(arguments).encode())

    failure = raised.value.failure
    assert (failure.kind, failure.field) == ("validation", field)
    assert all(part in failure.message for part in expected_texts), failure.message


@pytest.mark.parametrize("arguments", [b'{"count":1e999}', b'{"filename":"\\ud800"}', b"\xff", b""])
def test_invalid_json_is_an_error(arguments: bytes) -> None:
    """Infinity, half characters and broken bytes never reach a tool."""
    with pytest.raises(ToolFailure):
        EXAMPLE.check(arguments)


def unnamed(ctx: CallContext, text) -> None: ...  # type: ignore[no-untyped-def]
def starred(ctx: CallContext, *texts: str) -> None: ...
def positional(ctx: CallContext, text: str, /) -> None: ...
def field_default(ctx: CallContext, text: str = Field(default="x")) -> None: ...
def no_context(text: str) -> None: ...
def maybe_no_context(text: str | None, ctx: CallContext) -> None: ...
def unnamed_context(text, ctx: CallContext) -> None: ...  # type: ignore[no-untyped-def]
def no_parameters() -> None: ...
def keywords(*, ctx: CallContext) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        *(unnamed, starred, positional, field_default),
        *(no_context, maybe_no_context, unnamed_context, no_parameters, keywords),
    ],
)
def test_a_signature_that_is_no_schema_is_refused(function: Any) -> None:
    """The error comes when the module is loaded and names the function."""
    with pytest.raises(TypeError, match=function.__name__):
        arguments_of(function)


class Speaks(Protocol):
    """The part of a context that an author's tools need."""

    def speak(self) -> None: ...


def plain(ctx, text: str) -> None: ...  # type: ignore[no-untyped-def]
def noted(ctx: Annotated[CallContext, "who calls"], text: str) -> None: ...
def partly(ctx: Speaks, text: str) -> None: ...
def unused(_: object, text: str) -> None: ...
def renamed(call: CallContext, text: str) -> None: ...


@pytest.mark.parametrize("function", [plain, noted, partly, unused, renamed])
def test_the_context_parameter_is_recognized_by_name_or_type(function: Any) -> None:
    """The parameter's name or its type marks it; the arguments follow it."""
    assert list(arguments_of(function).schema["properties"]) == ["text"]


RAW_SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["s", "m"]}, "n": {"type": "integer", "minimum": 1}},
    "required": ["size"],
}


def test_a_schema_of_ones_own_is_checked_as_written() -> None:
    """The failure names the place and the allowed values."""
    check = checker(RAW_SCHEMA)

    assert check(b'{"size":"s","more":[1]}') == {"size": "s", "more": [1]}
    with pytest.raises(ToolFailure) as raised:
        check(b'{"size":"x","n":0}')
    assert raised.value.failure.field in ("size", "n")
    assert '"s"' in raised.value.failure.message


def test_draft_07_schemas_keep_their_meaning() -> None:
    """An array of schemas in `items` is a tuple there, and invalid in 2020-12."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "pair": {"type": "array", "items": [{"type": "string"}, {"type": "number"}]}
        },
    }
    check = checker(schema)

    check(b'{"pair":["a",1]}')
    with pytest.raises(ToolFailure):
        check(b'{"pair":[1,"a"]}')


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object"},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"type": "nonsense"},
    ],
)
def test_a_schema_we_cannot_check_is_refused(schema: dict[str, Any]) -> None:
    """Unknown dialects, invalid schemas, and references that would have to be fetched."""
    with pytest.raises(ValueError):  # noqa: PT011  # ours, or the library's own words
        checker(schema)


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_the_check_agrees_with_the_schema(value: Any) -> None:
    """It refuses what JSON Schema refuses, and raises only ToolFailure."""
    arguments = {"filename": value, "lines": []}
    valid = jsonschema_rs.Draft202012Validator(EXAMPLE.schema).is_valid(arguments)
    try:
        EXAMPLE.check(json.dumps(arguments).encode())
        accepted = True
    except ToolFailure:
        accepted = False

    assert accepted == valid
