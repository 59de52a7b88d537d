"""The form in which an approver edits a call's arguments."""

import json
from typing import Any

import pytest

from gatepost.dashboard.argument_form import Field, fields_of, filled
from gatepost.documents.exact_json import decoded

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


def edited_arguments(form: dict[str, str], arguments: bytes = ARGUMENTS) -> dict[str, Any]:
    """Return the arguments with the values of the form."""
    filled_form = filled(list(fields(arguments).values()), form)
    assert not filled_form.errors, filled_form
    value: dict[str, Any] = json.loads(filled_form.encoded(arguments))
    return value


def test_each_argument_has_a_field_of_its_type() -> None:
    """Schema and value decide the type; an argument without a schema is edited as JSON."""
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
    """Return the form as a browser sends it when no field was changed."""
    return {field.key: field.text.replace("\n", "\r\n") for field in fields().values()}


def test_unedited_arguments_stay_unchanged_byte_for_byte() -> None:
    """Browsers send line breaks as CR LF, which is no edit, and numbers keep their digits."""
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
def test_an_edit_is_converted_to_the_type_of_the_argument(
    what: str, name: str, text: str, value: object
) -> None:
    """All other arguments stay unchanged."""
    expected = json.loads(ARGUMENTS) | {name: value}

    assert edited_arguments(unchanged() | {f"argument.{name}": text}) == expected


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
    """Every field keeps the text that was entered."""
    form = unchanged() | {f"argument.{name}": text, "argument.name": "Eve"}
    fields_by_name = {field.name: field for field in filled(list(fields().values()), form).fields}

    assert sentence in fields_by_name[name].error
    assert fields_by_name[name].text == text
    assert (fields_by_name["name"].text, fields_by_name["name"].error) == ("Eve", "")


def test_optional_arguments_can_be_left_out_or_added() -> None:
    """A required argument stays, whatever the form contains."""
    form = unchanged() | {"omit.note": "yes", "omit.name": "yes"}
    assert edited_arguments(form) == {k: v for k, v in json.loads(ARGUMENTS).items() if k != "note"}

    few = b'{"name": "Ada"}'
    added = {
        "argument.name": "Ada",
        "argument.count": "4",
        "argument.note": "",
        "argument.deep": "",
    }
    assert edited_arguments(added, few) == {"name": "Ada", "count": 4}


def test_arguments_with_redacted_secrets_cannot_be_edited() -> None:
    """The field is locked, so that the redaction mark does not replace the secret."""
    secret = b'{"name": "[REDACTED:TOKEN]", "deep": {"a": "x [REDACTED:KEY]"}}'
    secret_fields = fields(secret)

    assert (secret_fields["name"].kind, secret_fields["deep"].kind) == ("locked", "locked")
    form = {"argument.name": "x", "argument.deep": "{}", "omit.deep": "yes"}
    assert edited_arguments(form, secret) == json.loads(secret)


@pytest.mark.parametrize("text", ["a\rb", "a\0b", "\u202ex", "a\r\nb"])
def test_texts_that_browsers_would_change_are_edited_as_json(text: str) -> None:
    """A text field would change such a text without notice."""
    arguments = json.dumps({"name": text}).encode()

    assert fields(arguments)["name"].kind == "json"
    assert decoded(fields(arguments)["name"].text.encode()) == text


@pytest.mark.parametrize("schema", [{}, {"properties": 1}, {"properties": {"name": True}}])
def test_invalid_schemas_still_give_a_form(schema: dict[str, Any]) -> None:
    """Tools may have schemas of any kind."""
    assert [field.name for field in fields_of({"name": "x"}, schema)] == ["name"]
