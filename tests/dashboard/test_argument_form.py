"""The form in which an approver edits a call's arguments."""

import json
from typing import Any

import pytest

from gatepost.dashboard.argument_form import Field, fields_of, filled
from gatepost.tools.exact_json import decoded

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Who it is."},
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "deep": {"$ref": "#/$defs/Deep"},
        "flag": {"type": "boolean"},
        "mode": {"enum": ["fast", "slow"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["name"],
    "$defs": {"Deep": {"type": "object", "description": "Nested."}},
}
ARGUMENTS = (
    b'{"name": "Ada", "count": 3, "price": 1.10, "deep": {"a": [1, 2.50]}, "flag": true, '
    b'"mode": "fast", "note": "one\\ntwo", "more": [1]}'
)


def fields(arguments: bytes = ARGUMENTS) -> dict[str, Field]:
    return {field.name: field for field in fields_of(decoded(arguments), SCHEMA)}


def edited(form: dict[str, str], arguments: bytes = ARGUMENTS) -> dict[str, Any]:
    """What the form makes of the arguments."""
    filled_form = filled(list(fields(arguments).values()), form)
    assert not filled_form.errors, filled_form
    value: dict[str, Any] = json.loads(filled_form.encoded(arguments))
    return value


def test_each_argument_has_the_field_that_fits_it() -> None:
    """By its schema and its value; what no schema knows is JSON."""
    assert {name: field.kind for name, field in fields().items()} == {
        "name": "line",
        "count": "number",
        "price": "number",
        "deep": "json",
        "flag": "choice",
        "mode": "choice",
        "note": "text",
        "more": "json",
    }
    assert fields()["name"].required
    assert fields()["deep"].description == "Nested."


def unchanged() -> dict[str, str]:
    """The form as a browser sends it when nothing was touched."""
    return {field.key: field.text.replace("\n", "\r\n") for field in fields().values()}


def test_what_is_not_touched_stays_byte_for_byte() -> None:
    """A browser sends every line break as CR LF; that alone is no edit, and no number changes."""
    filled_form = filled(list(fields().values()), unchanged())

    assert (dict(filled_form.changed), filled_form.removed) == ({}, frozenset())
    assert b'"price":1.10' in filled_form.encoded(ARGUMENTS)


EDITS = [
    ("a text", "name", "Eve", "Eve"),
    ("a text over lines", "note", "x\r\ny", "x\ny"),
    ("a whole number", "count", " 12 ", 12),
    ("a number", "price", "-0.5e3", -500.0),
    ("a choice", "flag", "false", False),
    ("another choice", "mode", '"slow"', "slow"),
    ("JSON", "deep", '{"a": []}', {"a": []}),
    ("a text that looks like JSON", "name", "[1]", "[1]"),
]


@pytest.mark.parametrize(("what", "name", "text", "value"), EDITS, ids=[case[0] for case in EDITS])
def test_an_edit_becomes_its_value(what: str, name: str, text: str, value: object) -> None:
    """What was typed, in the argument's own type; all others stay."""
    expected = json.loads(ARGUMENTS) | {name: value}

    assert edited(unchanged() | {f"argument.{name}": text}) == expected


INVALID_INPUTS = [
    ("count", "1.5", "a whole number"),
    ("count", "", "a whole number"),
    ("count", "٣", "a whole number"),
    ("price", "NaN", "a number"),
    ("deep", "{", "Not valid JSON"),
    ("deep", '{"a": NaN}', "Not valid JSON"),
    ("flag", "maybe", "one of the listed values"),
    ("mode", '"other"', "one of the listed values"),
]


@pytest.mark.parametrize(("name", "text", "sentence"), INVALID_INPUTS)
def test_a_form_error_is_shown_and_keeps_the_input(name: str, text: str, sentence: str) -> None:
    """The field keeps what was typed, and so do the others."""
    form = unchanged() | {f"argument.{name}": text, "argument.name": "Eve"}
    fields_by_name = {field.name: field for field in filled(list(fields().values()), form).fields}

    assert sentence in fields_by_name[name].error
    assert fields_by_name[name].text == text
    assert (fields_by_name["name"].text, fields_by_name["name"].error) == ("Eve", "")


def test_what_may_be_missing_can_be_left_out_or_added() -> None:
    """A required argument stays whatever the form says."""
    form = unchanged() | {"omit.note": "yes", "omit.name": "yes"}
    assert edited(form) == {k: v for k, v in json.loads(ARGUMENTS).items() if k != "note"}

    few = b'{"name": "Ada"}'
    added = {
        "argument.name": "Ada",
        "argument.count": "4",
        "argument.note": "",
        "argument.deep": "",
    }
    assert edited(added, few) == {"name": "Ada", "count": 4}


def test_a_secret_stays_where_it_is() -> None:
    """An approver must not put the mark of a secret in its place; the field is locked."""
    secret = b'{"name": "[REDACTED:TOKEN]", "deep": {"a": "x [REDACTED:KEY]"}}'
    secret_fields = fields(secret)

    assert (secret_fields["name"].kind, secret_fields["deep"].kind) == ("locked", "locked")
    form = {"argument.name": "x", "argument.deep": "{}", "omit.deep": "yes"}
    assert edited(form, secret) == json.loads(secret)


@pytest.mark.parametrize("text", ["a\rb", "a\0b", "\u202ex", "a\r\nb"])
def test_a_text_that_no_browser_would_give_back_is_edited_as_json(text: str) -> None:
    """A text field would change it unnoticed."""
    arguments = json.dumps({"name": text}).encode()

    assert fields(arguments)["name"].kind == "json"
    assert decoded(fields(arguments)["name"].text.encode()) == text


@pytest.mark.parametrize("schema", [{}, {"properties": 1}, {"properties": {"name": True}}])
def test_any_schema_gives_a_form(schema: dict[str, Any]) -> None:
    """Tools bring schemas of all kinds."""
    assert [field.name for field in fields_of({"name": "x"}, schema)] == ["name"]
