"""The form to edit a call's arguments, and its values as JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from gatepost.dashboard.argument_tree import laid_out
from gatepost.dashboard.escaping import hidden, spelt
from gatepost.documents.exact_json import ExactNumber, compact, decoded, encoded

FieldKind = Literal["line", "text", "number", "choice", "json", "locked"]

PREFIX = "argument."
OMIT_PREFIX = "omit."
MAX_FIELDS = 100
REDACTED = re.compile(r"\[REDACTED:[^\[\]\n]{1,128}\]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One argument with the properties of its schema."""

    name: str
    kind: FieldKind
    text: str = ""
    """The content of the field."""
    is_set: bool = True
    """Whether the call has this argument."""
    required: bool = False
    description: str = ""
    type: str = ""
    choices: tuple[str, ...] = ()
    error: str = ""
    omitted: bool = False
    """Whether the argument is to be omitted."""
    rows: int = 4

    @property
    def key(self) -> str:
        """Return the field's name in the form."""
        return PREFIX + _posted(self.name)

    @property
    def omit_key(self) -> str:
        """Return the name of the checkbox that leaves the argument out."""
        return OMIT_PREFIX + _posted(self.name)

    @property
    def id(self) -> str:
        """Return the field's id in the page."""
        return "a-" + self.name.encode(errors="surrogatepass").hex()


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a form: changed arguments, removed arguments and errors."""

    changed: Mapping[str, Any]
    removed: frozenset[str]
    fields: tuple[Field, ...]

    @property
    def errors(self) -> bool:
        """Return whether any field has an error."""
        return any(field.error for field in self.fields)

    def encoded(self, shown_arguments: bytes) -> bytes:
        """Return the arguments *shown_arguments* (a JSON object) with the changes applied."""
        members = decoded(shown_arguments)
        for name in self.removed:
            members.pop(name, None)
        return encoded(members | dict(self.changed))


def fields_of(shown_arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Field]:
    """
    Return the fields for redacted arguments, by the tool's schema.

    The call's arguments come first, in their order, then the other arguments of the schema. A value
    with a redacted part is locked, because an edit could replace the secret by its mark.
    """
    properties = schema.get("properties")
    known_properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    needed = schema.get("required")
    required = frozenset(needed) if isinstance(needed, list) else frozenset[str]()
    names = [*shown_arguments, *(name for name in known_properties if name not in shown_arguments)]
    return [
        _field(
            name, shown_arguments, _resolved(known_properties.get(name), schema), name in required
        )
        for name in names[:MAX_FIELDS]
    ]


def filled(fields: Sequence[Field], form: Mapping[str, str]) -> Filled:
    """Return the fields as submitted; a field that was not submitted is unchanged."""
    changed: dict[str, Any] = {}
    removed: set[str] = set()
    after: list[Field] = []
    for field in fields:
        text = form.get(field.key)
        if field.kind == "locked" or text is None:
            after.append(field)
            continue
        text = text.replace("\r\n", "\n")
        omitted = field.is_set and not field.required and field.omit_key in form
        now = msgspec.structs.replace(field, text=text, omitted=omitted)
        if omitted:
            removed.add(field.name)
        elif text != field.text:
            try:
                changed[field.name] = _value(field, text)
            except ValueError as error:
                now = msgspec.structs.replace(now, error=str(error))
        after.append(now)
    return Filled(changed=changed, removed=frozenset(removed), fields=tuple(after))


def _field(
    name: str, shown_arguments: Mapping[str, Any], schema: Mapping[str, Any], required: bool
) -> Field:
    is_given = name in shown_arguments
    value = shown_arguments.get(name)
    description = schema.get("description")
    common: dict[str, Any] = {
        "name": name,
        "is_set": is_given,
        "required": required,
        "description": description if isinstance(description, str) else "",
        "type": _type(schema),
    }
    if is_given and REDACTED.search(compact(value)):
        return Field(kind="locked", text=_text(value), **common)
    choices = _choices(schema)
    if choices and (not is_given or compact(value) in choices):
        return Field(
            kind="choice", choices=choices, text=compact(value) if is_given else "", **common
        )
    kind = _kind(value if is_given else None, is_given, schema)
    text = ""
    if is_given:
        text = spelt(laid_out(value)) if kind in {"json", "number"} else str(value)
    return Field(kind=kind, text=text, rows=min(max(text.count("\n") + 2, 3), 18), **common)


def _kind(value: Any, is_given: bool, schema: Mapping[str, Any]) -> FieldKind:
    types = schema.get("type")
    if isinstance(value, ExactNumber):
        return "number" if types in ("integer", "number") else "json"
    if isinstance(value, str) and types in ("string", None):
        # Browsers send every line break as CR LF. Texts with other line breaks are edited as JSON.
        if hidden(value):
            return "json"
        return "text" if "\n" in value or len(value) > 80 else "line"
    if types in ("integer", "number") and not is_given:
        return "number"
    if types == "string" and not is_given:
        return "text"
    return "json"


def _value(field: Field, text: str) -> Any:
    """Return the value of a field's text; ValueError carries a sentence."""
    if field.kind in {"line", "text"}:
        return text
    stripped = text.strip()
    if field.kind == "choice":
        if stripped not in field.choices:
            raise ValueError("Choose one of the listed values.")
    elif field.kind == "number":
        form = _INTEGER if field.type == "integer" else _NUMBER
        if not form.fullmatch(stripped):
            word = "a whole number" if field.type == "integer" else "a number"
            raise ValueError(f"Enter {word}, such as 42.")
    try:
        value = decoded(stripped.encode())
        # Python's parser accepts half a surrogate pair; others do not (RFC 8259, 8.2).
        encoded(value)
    except UnicodeEncodeError:
        raise ValueError("Not valid JSON: the text contains half of a surrogate pair.") from None
    except RecursionError:
        raise ValueError("The value is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"Not valid JSON: {_where(error)}.") from None
    return value


def _where(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (line {error.lineno}, column {error.colno})"
    return str(error)


def _choices(schema: Mapping[str, Any]) -> tuple[str, ...]:
    if schema.get("type") == "boolean":
        return ("true", "false")
    values = schema.get("enum")
    if not isinstance(values, list) or not all(isinstance(v, str | int | float) for v in values):
        return ()
    return tuple(compact(value) for value in values)


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    if isinstance(kind, list):
        return " or ".join(type_name for type_name in kind if isinstance(type_name, str))
    return ""


def _posted(name: str) -> str:
    """
    Return an argument's name as a form submits it.

    Browsers normalise line breaks in names (HTML, 4.10.21.8). Without this, an edit of such an
    argument would be lost.
    """
    return name if name.isprintable() and "%" not in name else quote(name, errors="surrogatepass")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else laid_out(value)


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a property's schema, with a reference within the document resolved."""
    if not isinstance(schema, Mapping):
        return {}
    several = schema.get("anyOf")
    if isinstance(several, list):
        # `str | None` as pydantic writes it: a missing value is left out, never null.
        alternatives = [alternative for alternative in several if alternative != {"type": "null"}]
        if len(alternatives) == 1 and isinstance(alternatives[0], Mapping):
            return {
                **_resolved(alternatives[0], root),
                **{k: v for k, v in schema.items() if k != "anyOf"},
            }
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    target: Any = root
    for part in reference[2:].split("/"):
        step = part.replace("~1", "/").replace("~0", "~")
        target = target.get(step) if isinstance(target, Mapping) else None
    return target if isinstance(target, Mapping) else {}
