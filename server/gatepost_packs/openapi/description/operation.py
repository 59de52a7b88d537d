"""An operation of any OpenAPI version: its parameters, its body, its responses."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from gatepost_packs.openapi.description.document import ApiDescription, Dialect, OperationSummary
from gatepost_packs.openapi.description.reference import resolved

Where = Literal["path", "query", "header", "cookie"]
PARAMETER_LOCATIONS: Mapping[str, Where] = {
    "path": "path",
    "query": "query",
    "header": "header",
    "cookie": "cookie",
}
JSON, FORM, MULTIPART = (
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
)

# Swagger 2.0: the OpenAPI 3 style of each collectionFormat, and whether it explodes.
COLLECTIONS = {
    "csv": ("form", False),
    "ssv": ("spaceDelimited", False),
    "pipes": ("pipeDelimited", False),
    "multi": ("form", True),
}
SCHEMA_WORDS = frozenset(
    {
        "type",
        "format",
        "items",
        "default",
        "enum",
        "maximum",
        "minimum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "multipleOf",
    }
)
"""Keywords that Swagger 2.0 writes beside a parameter's name instead of in a schema."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter outside the body (OpenAPI 3, Parameter Object)."""

    name: str
    where: Where
    required: bool
    description: str = ""
    schema: Mapping[str, Any] = {}
    style: str = "form"
    explode: bool = True
    is_json: bool = False
    """Its value travels as JSON (`content` instead of `schema`)."""


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request (OpenAPI 3, Request Body Object)."""

    required: bool
    description: str = ""
    media: Mapping[str, Mapping[str, Any]]
    """The schema by media type, the preferred one first: JSON, a form, any other."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is needed to describe or call an operation; all references are resolved."""

    entry: OperationSummary
    dialect: Dialect
    source: Mapping[str, Any]
    """As it is written, with references resolved."""
    parameters: tuple[Parameter, ...]
    body: RequestBody | None


def read_operation(document: ApiDescription, entry: OperationSummary) -> Operation:
    """Return the operation of that entry."""
    source: dict[str, Any] = resolved(document, document.operation(entry))
    parameters: dict[tuple[str, str], dict[str, Any]] = {}
    listed = source.get("parameters")
    for parameter in listed if isinstance(listed, list) else ():
        if isinstance(parameter, dict) and isinstance(parameter.get("name"), str):
            # The operation's own parameters come last and replace those of its path.
            parameters[parameter["name"], str(parameter.get("in"))] = parameter
    if listed is not None:
        source["parameters"] = list(parameters.values())
    old = document.dialect == "2.0"
    body = _old_body(document, source, parameters) if old else _body(source.get("requestBody"))
    return Operation(
        entry=entry,
        dialect=document.dialect,
        source=source,
        parameters=tuple(_parameters(parameters.values(), old=old)),
        body=body,
    )


def answer_schema(operation: Operation) -> Mapping[str, Any] | None:
    """Return the schema of the operation's successful JSON response; None if none is declared."""
    responses = operation.source.get("responses")
    if not isinstance(responses, dict):
        return None
    success_codes = [code for code in sorted(responses) if code[:1] == "2"] or ["default"]
    answer = responses.get(success_codes[0])
    if not isinstance(answer, dict):
        return None
    if operation.dialect == "2.0":
        return _mapping(answer.get("schema")) or None
    media = _media(answer.get("content"))
    return next((schema for name, schema in media.items() if is_json(name)), None)


def is_json(media_type: str) -> bool:
    """Return whether that media type is JSON or built on it (RFC 6839)."""
    bare = media_type.partition(";")[0].strip().lower()
    return bare in (JSON, "text/json", "*/*", "application/*") or bare.endswith("+json")


def _parameters(written: Any, *, old: bool) -> Iterator[Parameter]:
    for parameter in written:
        where = PARAMETER_LOCATIONS.get(str(parameter.get("in")))
        if where is None:
            continue
        content = _media(parameter.get("content"))
        schema = next(iter(content.values())) if content else _mapping(parameter.get("schema"))
        style, explode = _style(parameter, where)
        if old:
            schema = {name: parameter[name] for name in parameter if name in SCHEMA_WORDS}
            style, explode = _old_style(parameter, where)
        yield Parameter(
            name=parameter["name"],
            where=where,
            required=parameter.get("required") is True or where == "path",
            description=_text_or_empty(parameter.get("description")),
            schema=schema,
            style=style,
            explode=explode,
            is_json=any(is_json(name) for name in content),
        )


def _style(written: Mapping[str, Any], where: Where) -> tuple[str, bool]:
    usual = "form" if where in ("query", "cookie") else "simple"
    style = written.get("style") if isinstance(written.get("style"), str) else usual
    explode = written.get("explode")
    return str(style), explode if isinstance(explode, bool) else style == "form"


def _old_style(written: Mapping[str, Any], where: Where) -> tuple[str, bool]:
    if where != "query":
        return "simple", False
    return COLLECTIONS.get(str(written.get("collectionFormat", "csv")), ("form", False))


def _body(written: Any) -> RequestBody | None:
    if not isinstance(written, dict):
        return None
    media = _media(written.get("content")) or {JSON: {}}
    return RequestBody(
        required=written.get("required") is True,
        description=_text_or_empty(written.get("description")),
        media=dict(sorted(media.items(), key=lambda item: _rank(item[0]))),
    )


def _old_body(
    document: ApiDescription,
    source: Mapping[str, Any],
    written: Mapping[tuple[str, str], dict[str, Any]],
) -> RequestBody | None:
    consumes = source.get("consumes", document.member("consumes"))
    types = (
        [media_type for media_type in consumes if isinstance(media_type, str)]
        if isinstance(consumes, list)
        else []
    )
    fields = {
        name: parameter for (name, where), parameter in written.items() if where == "formData"
    }
    body_parameters = [parameter for (_, where), parameter in written.items() if where == "body"]
    if body_parameters:
        media = {name: _mapping(body_parameters[0].get("schema")) for name in types or [JSON]}
        return RequestBody(
            required=body_parameters[0].get("required") is True,
            description=_text_or_empty(body_parameters[0].get("description")),
            media=dict(sorted(media.items(), key=lambda item: _rank(item[0]))),
        )
    if not fields:
        return None
    files = any(field.get("type") == "file" for field in fields.values())
    form = MULTIPART if files or types == [MULTIPART] else FORM
    schema = {
        "type": "object",
        "properties": {
            name: {word: field[word] for word in (*SCHEMA_WORDS, "description") if word in field}
            for name, field in fields.items()
        },
        "required": [name for name, field in fields.items() if field.get("required") is True],
    }
    return RequestBody(required=bool(schema["required"]), media={form: schema})


def _media(content: Any) -> dict[str, Mapping[str, Any]]:
    if not isinstance(content, dict):
        return {}
    return {
        name: _mapping(entry.get("schema"))
        for name, entry in content.items()
        if isinstance(entry, dict)
    }


def _rank(media_type: str) -> int:
    bare = media_type.partition(";")[0].strip().lower()
    ranks = (is_json(bare), bare == FORM, bare == MULTIPART, True)
    return ranks.index(True)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text_or_empty(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
