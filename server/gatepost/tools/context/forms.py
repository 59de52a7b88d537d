"""The schemas of forms for users: flat fields of the few types that every client can show."""

import re
from collections.abc import Mapping
from typing import Any

from jsonschema_rs import Draft202012Validator
from jsonschema_rs import ValidationError as JsonSchemaError
from pydantic import PydanticUserError, TypeAdapter

FormSchema = dict[str, Any]

NAMING = {"type", "title", "description", "default"}
CHOICE_KEYWORDS = {"enum", "oneOf", "enumNames"}
SHAPES: Mapping[str, set[str]] = {
    "string": NAMING | CHOICE_KEYWORDS | {"minLength", "maxLength", "format"},
    "number": NAMING | {"minimum", "maximum"},
    "integer": NAMING | {"minimum", "maximum"},
    "boolean": NAMING,
    "array": NAMING | {"items", "minItems", "maxItems"},
}
"""The types of fields and the keywords of each (schema PrimitiveSchemaDefinition)."""
FORMATS = ("email", "uri", "date", "date-time")
FIELDS = 64

# A form must never ask for these, because its content passes through the client and its model
# (E-04). The first pattern matches words anywhere in a name, the second at its end.
SECRET_WORDS = re.compile(
    r"\b(?:passwords?|passwd|passphrase|passcode|pwd|secrets?|credentials?|cvv|cvc|iban"
    r"|(?:credit|debit) ?card|card ?number|api ?keys?)\b"
)
SECRET_ENDS = re.compile(
    r"(?:\btoken|\b(?:private|access|encryption|signing|ssh|auth) ?key|^(?:pin|key|otp))$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_LINK = re.compile(r"\bhttps?://", re.IGNORECASE)


def form_of(fields: Any) -> FormSchema:
    """
    Return the ``requestedSchema`` of a pydantic model, TypedDict, dataclass or JSON schema.

    Raises ValueError with a message for fields that a form cannot show (schema
    ElicitRequestFormParams) or must not ask for.
    """
    schema = dict(fields) if isinstance(fields, Mapping) else _generated(fields)
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        raise ValueError("a form is an object with properties")
    if not 0 < len(properties) <= FIELDS:
        raise ValueError(f"a form has 1 to {FIELDS} fields")
    simplified = {
        name: _field(name, field, schema.get("$defs", {})) for name, field in properties.items()
    }
    required = [name for name in schema.get("required", ()) if name in simplified]
    return {
        "type": "object",
        "properties": simplified,
        **({"required": required} if required else {}),
    }


def validation_error_in(schema: FormSchema, content: Mapping[str, Any]) -> str | None:
    """Return the error of a completed form, as a sentence without its values (E-13)."""
    fields = {name: value for name, value in content.items() if name in schema["properties"]}
    try:
        # `validate` stops at the first error; iterating would build all of them first.
        Draft202012Validator(schema, validate_formats=True).validate(fields)
    except JsonSchemaError as error:
        name = ".".join(str(part) for part in error.instance_path)
        return f"`{name}` does not fit the form" if name else "a required field is missing"
    return None


def _generated(fields: Any) -> FormSchema:
    try:
        return TypeAdapter(fields).json_schema()
    except PydanticUserError as error:
        raise ValueError(f"a form cannot be made of {fields}: {error.message}") from None


def is_secret(name: str) -> bool:
    """Return whether a name suggests a password, key, token or payment card."""
    phrase = _CAMEL.sub(" ", name).strip().lower()
    return bool(SECRET_WORDS.search(phrase) or SECRET_ENDS.search(phrase))


def _field(name: str, field: Any, definitions: Mapping[str, Any]) -> FormSchema:
    if not isinstance(field, Mapping):
        raise ValueError(f"the field `{name}` is no schema")
    shape = _simplified(field, definitions)
    if is_secret(name) or is_secret(str(shape.get("title", ""))) or shape.get("writeOnly"):
        raise ValueError(
            f"the field `{name}` asks for a secret, and what is typed into a form passes through "
            "the client and its model; send the person to a page of yours with ask_url"
        )
    keywords = SHAPES.get(str(shape.get("type")))
    if keywords is None:
        raise ValueError(
            f"the field `{name}` is no text, number, boolean or choice, which is all that forms "
            "can show"
        )
    if unknown := sorted(shape.keys() - keywords):
        raise ValueError(f"the field `{name}` uses {', '.join(unknown)}, which no form can show")
    _check_words(name, shape)
    return shape


def _check_words(name: str, shape: FormSchema) -> None:
    if shape.get("format", FORMATS[0]) not in FORMATS:
        raise ValueError(
            f"the field `{name}` has the format {shape['format']}; forms know {', '.join(FORMATS)}"
        )
    if shape["type"] == "array":
        _check_items(name, shape.get("items"))
    elif CHOICE_KEYWORDS & shape.keys():
        _check_choice(name, shape)
    if _LINK.search(f"{shape.get('title')} {shape.get('description')}"):
        # A link that looks like part of the client would allow phishing (E-07).
        raise ValueError(f"the field `{name}` shows a URL; pages are opened with ask_url")


def _check_items(name: str, items: Any) -> None:
    if not isinstance(items, Mapping) or len({"enum", "anyOf"} & items.keys()) != 1:
        raise ValueError(f"the field `{name}` is a list, which forms show of choices only")
    if "enum" in items:
        _check_texts(name, items["enum"])
    else:
        _check_titled(name, items["anyOf"])


def _check_choice(name: str, shape: FormSchema) -> None:
    if "oneOf" in shape:
        if "enum" in shape or "enumNames" in shape:
            raise ValueError(f"the field `{name}` has its choices twice")
        _check_titled(name, shape["oneOf"])
        return
    values: Any = shape.get("enum")
    _check_texts(name, values)
    if len(shape.get("enumNames") or values) != len(values):
        raise ValueError(f"the field `{name}` has more or fewer names than choices")


def _check_texts(name: str, values: Any) -> None:
    if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
        raise ValueError(f"the choices of `{name}` must be texts")


def _check_titled(name: str, choices: Any) -> None:
    if not isinstance(choices, list) or not choices:
        raise ValueError(f"the choices of `{name}` must be a list")
    for choice in choices:
        texts = isinstance(choice, Mapping) and choice.keys() == {"const", "title"}
        if not texts or not all(isinstance(value, str) for value in choice.values()):
            raise ValueError(f"each choice of `{name}` has a `const` and a `title`, both texts")


def _simplified(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> FormSchema:
    """Simplify a generated property: inline definitions, drop null and turn `const` into `enum`."""
    shape = dict(field)
    options = [option for option in shape.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        # A type "or None" is a field that may be left empty.
        del shape["anyOf"]
        shape = {**options[0], **shape}
    name = str(shape.pop("$ref", "")).removeprefix("#/$defs/")
    if name in definitions:
        target = {key: value for key, value in definitions[name].items() if key != "title"}
        shape = {**target, **shape}
    if shape.get("default", ...) is None:
        del shape["default"]
    if isinstance(shape.get("const"), str):
        shape["enum"] = [shape.pop("const")]
    if isinstance(items := shape.get("items"), Mapping):
        shape["items"] = _simplified(items, definitions)
    return shape
