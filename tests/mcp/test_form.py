"""What a form may hold, and what becomes of it in each revision."""

from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

import pytest
from pydantic import BaseModel, Field, SecretStr
from typing_extensions import TypedDict

from gatepost import Elicitation
from gatepost.mcp.projection import projected
from gatepost.tools.context.client import MissingCapability
from tests.mcp import fixture_tools
from tests.support.client_requests import Trip
from tests.support.measuring import each


@dataclass
class Flat:
    name: str
    count: int = 1


class LooseDict(TypedDict):
    name: str
    count: NotRequired[int]


@pytest.mark.requirement("E-02")
@pytest.mark.parametrize("fields", [Flat, LooseDict])
def test_e_02_a_form_may_be_any_flat_type(fields: Any) -> None:
    """A dataclass or a TypedDict says the same as a model."""
    schema = Elicitation("Who?", fields).request.params["requestedSchema"]

    assert list(schema["properties"]) == ["name", "count"]
    assert schema["required"] == ["name"]


def schema(field: Any, name: str = "x") -> dict[str, Any]:
    return {"type": "object", "properties": {name: field}}


class Nested(BaseModel):
    trip: Flat


class Pattern(BaseModel):
    x: Annotated[str, Field(pattern="a+")]


class Above(BaseModel):
    x: Annotated[int, Field(gt=3)]


class HiddenField(BaseModel):
    x: SecretStr


UNSHOWABLE_FORMS: list[tuple[Any, str]] = [
    (Nested, "is no text"),
    (Pattern, "pattern"),
    (Above, "exclusiveMinimum"),
    (int, "object with properties"),
    (dict[str, int], "object with properties"),
    pytest.param(object(), "cannot be made", id="no type"),
    ({}, "object with properties"),
    ({"type": "object", "properties": {}}, "1 to 64 fields"),
    ({"type": "object", "properties": {str(n): {"type": "boolean"} for n in range(65)}}, "1 to 64"),
    (schema([]), "is no schema"),
    (schema({"type": "null"}), "is no text"),
    (schema({"type": ["string", "null"]}), "is no text"),
    (schema({"type": "string", "format": "hostname"}), "has the format hostname"),
    (schema({"type": "array", "items": {"type": "string"}}), "of choices only"),
    (schema({"type": "array"}), "of choices only"),
    (schema({"type": "string", "enum": []}), "must be texts"),
    (schema({"type": "string", "enum": [1]}), "must be texts"),
    (schema({"type": "string", "enumNames": ["A"]}), "must be texts"),
    (schema({"type": "string", "enum": ["a", "b"], "enumNames": ["A"]}), "more or fewer"),
    (schema({"type": "string", "oneOf": [{"const": "a"}]}), "a `const` and a `title`"),
    (schema({"type": "string", "oneOf": "a"}), "must be a list"),
    (schema({"type": "string", "oneOf": [], "enum": ["a"]}), "twice"),
]


@pytest.mark.requirement("E-03")
@each(("fields", "sentence"), UNSHOWABLE_FORMS, ids=lambda value: str(value)[:40])
def test_e_03_a_form_that_no_client_can_show_is_refused(fields: Any, sentence: str) -> None:
    """The error comes before the client is asked."""
    with pytest.raises(ValueError, match=sentence):
        Elicitation("Fill this in", fields)


@pytest.mark.requirement("E-03")
@pytest.mark.parametrize("fields", [fixture_tools.DEFAULTS, fixture_tools.CHOICES])
def test_e_03_every_shape_of_the_form_schema_is_sent_unchanged(fields: Any) -> None:
    """Texts, numbers, booleans and the five kinds of choice."""
    assert Elicitation("Choose", fields).request.params["requestedSchema"] == fields


SECRETS = [
    *("password", "userPassword", "Passphrase", "client_secret", "api_key"),
    *("apiKey", "access_token", "token", "sshKey", "private key", "pin", "cvv", "cardNumber"),
    *("credit_card", "iban", "otp", "aws-credentials"),
]


@pytest.mark.requirement("E-04")
@each("name", SECRETS)
def test_e_04_no_form_asks_for_a_secret(name: str) -> None:
    """Neither the name nor the title of a field may be that of a secret."""
    for fields in (schema({"type": "string"}, name), schema({"type": "string", "title": name})):
        with pytest.raises(ValueError, match="ask_url"):
            Elicitation("Fill this in", fields)


@pytest.mark.requirement("E-04")
def test_e_04_a_field_with_a_secret_type_is_refused() -> None:
    """The name of its field does not matter."""
    with pytest.raises(ValueError, match="ask_url"):
        Elicitation("Fill this in", HiddenField)


@pytest.mark.parametrize("name", ["max_tokens", "author", "monkey", "sort_key", "discard", "pins"])
def test_field_names_that_only_resemble_secrets_are_allowed(name: str) -> None:
    """The check compares words and not letters."""
    Elicitation("Fill this in", schema({"type": "string"}, name))


@pytest.mark.requirement("E-07")
@pytest.mark.parametrize("word", ["title", "description"])
def test_e_07_no_field_shows_a_link(word: str) -> None:
    """A link in a form looks like the client's own."""
    with pytest.raises(ValueError, match="ask_url"):
        Elicitation("Hm", schema({"type": "string", word: "See HTTPS://example.com"}))


@pytest.mark.requirement("E-01", "E-02", "E-03")
def test_e_01_e_03_forms_are_reduced_to_each_older_revision() -> None:
    """2025-06-18 has no mode, no titled choices and no defaults of texts."""
    trip, choices = (
        Elicitation("Where?", Trip).request,
        Elicitation("?", fixture_tools.CHOICES).request,
    )
    schema = projected(trip, "2025-06-18")

    assert projected(trip, "2025-11-25") == projected(trip, "2026-07-28") == trip.params
    assert schema["requestedSchema"]["properties"] == {
        "where": {"type": "string", "title": "Where to?", "minLength": 2, "maxLength": 40},
        "day": {"type": "string", "title": "Day", "format": "date"},
        "people": {"type": "integer", "title": "People", "minimum": 1, "maximum": 9},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "note": {"type": "string", "title": "Note"},
    }
    assert (schema.keys(), schema["requestedSchema"]["required"]) == (
        {"message", "requestedSchema"},
        ["where", "day"],
    )
    assert projected(choices, "2025-06-18")["requestedSchema"]["properties"]["titledSingle"] == {
        "type": "string",
        "enum": ["value1", "value2", "value3"],
        "enumNames": ["Choice 1", "Choice 2", "Choice 3"],
    }


@pytest.mark.requirement("E-01")
def test_e_01_a_form_that_a_revision_lacks_is_a_missing_capability() -> None:
    """Such are multiple choices in 2025-06-18, and any form in 2025-03-26."""
    several = {"type": "array", "items": {"type": "string", "enum": ["a"]}}
    required = Elicitation("?", {**schema(several), "required": ["x"]}).request
    alone = Elicitation("?", schema(several)).request

    for request, revision in (
        (required, "2025-06-18"),
        (alone, "2025-06-18"),
        (Elicitation("?", Flat).request, "2025-03-26"),
    ):
        with pytest.raises(MissingCapability):
            projected(request, revision)
