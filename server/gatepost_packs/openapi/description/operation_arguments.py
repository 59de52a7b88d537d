"""Map an operation to one flat set of arguments with valid names, and arguments back."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gatepost_packs.openapi.description.document import OperationSummary
from gatepost_packs.openapi.description.operation import (
    FORM,
    MULTIPART,
    Operation,
    RequestBody,
    Where,
    is_json,
)
from gatepost_packs.openapi.description.operation_request import OperationInput, is_file
from gatepost_packs.openapi.description.schema import SchemaConversion

LONGEST = 64
WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
NOT_IN_NAMES = re.compile(r"[^a-z0-9]+", re.ASCII)


def tool_names(
    entries: Sequence[OperationSummary], prefix: str = ""
) -> Mapping[tuple[str, str], str]:
    """
    Return a name for each operation, by path and method.

    The name is the operationId in snake case, or method and path if the operationId is missing or
    not unique. Names that are still equal each get a suffix made from path and method, so that no
    name depends on the other operations, or on which operations are offered.
    """
    ids = Counter(_snake(entry.operation_id) for entry in entries)
    simple_names = {
        (entry.path, entry.method): prefix
        + (
            _snake(entry.operation_id)
            if entry.operation_id and ids[_snake(entry.operation_id)] == 1
            else ""
        )
        for entry in entries
    }
    full_names = {
        parameter: name if name != prefix else prefix + _snake(f"{parameter[1]} {parameter[0]}")
        for parameter, name in simple_names.items()
    }
    counted = Counter(_cut(name) for name in full_names.values())
    return {
        parameter: name
        if len(name) <= LONGEST and counted[name] == 1
        else _suffixed(name, parameter)
        for parameter, name in full_names.items()
    }


def argument_name(name: str) -> str:
    """
    Return a name for an argument: letters, digits, `_`, `.` and `-`, at most 64, as models take it.
    """
    return re.sub(r"[^a-zA-Z0-9_.-]+", "_", name).strip("_")[:LONGEST] or "value"


def _snake(text: str) -> str:
    return NOT_IN_NAMES.sub("_", WORD_START.sub("_", text).lower()).strip("_")


def _cut(name: str) -> str:
    return name[:LONGEST]


def _suffixed(name: str, parameter: tuple[str, str]) -> str:
    digest = hashlib.sha256(" ".join(parameter).encode()).hexdigest()[:6]
    return f"{name[: LONGEST - 7].rstrip('_')}_{digest}"


ArgumentTarget = Where | Literal["member", "body"]
IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
"""Header parameters that OpenAPI says to ignore."""
FILE = "A file: an object with `filename`, `data_base64` and `content_type`."


class OperationArgument(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of a tool."""

    name: str
    target: ArgumentTarget
    source: str
    """Its name there; empty for the whole body."""
    required: bool
    schema: Mapping[str, Any]


class OperationArguments(msgspec.Struct, frozen=True, kw_only=True):
    """All arguments of a tool."""

    listed: tuple[OperationArgument, ...]
    media_type: str | None = None
    """The media type of the body that its members form."""
    open: bool = False
    """Whether the body takes undeclared members."""

    def schema(self) -> dict[str, Any]:
        """Return their JSON Schema."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {argument.name: dict(argument.schema) for argument in self.listed},
            "additionalProperties": self.open,
        }
        required = [argument.name for argument in self.listed if argument.required]
        return {**schema, "required": required} if required else schema

    def input_of(self, arguments: Mapping[str, Any]) -> OperationInput:
        """Return checked arguments by their place."""
        parts: dict[str, dict[str, Any]] = {where: {} for where in ("path", "query", "header")}
        parts |= {"cookie": {}, "member": {}, "body": {}}
        by_name = {argument.name: argument for argument in self.listed}
        for name, value in arguments.items():
            argument = by_name.get(name)
            parts[argument.target if argument else "member"][
                argument.source if argument else name
            ] = value
        body = parts["body"].get("", parts["member"] or None)
        return OperationInput(parts["path"], parts["query"], parts["header"], parts["cookie"], body)


def arguments_of(
    operation: Operation, *, hidden: frozenset[str] = frozenset(), without_patterns: bool = False
) -> OperationArguments:
    """
    Return the arguments of an operation, without *hidden* headers (lower case).

    If a path, a query and a body use the same name, the first keeps it and the others get `query_`,
    `header_`, `cookie_` or `body_` before it. *without_patterns* leaves patterns out.
    """
    simplified = SchemaConversion(operation.dialect, without_patterns=without_patterns)
    order = ("path", "query", "header", "cookie")
    used = [
        parameter
        for where in order
        for parameter in operation.parameters
        if parameter.where == where
        and not (where == "header" and parameter.name.lower() in IGNORED_HEADERS | hidden)
    ]
    arguments = [
        OperationArgument(
            name=argument_name(parameter.name),
            target=parameter.where,
            source=parameter.name,
            required=parameter.required,
            schema=_described(simplified.schema(parameter.schema), parameter.description),
        )
        for parameter in used
    ]
    media_type, body = None, operation.body
    is_open = False
    if body is not None:
        media_type = next(iter(body.media))
        body_schema = simplified.schema(_joined(body.media[media_type]))
        members = list(_members(body, media_type, body_schema))
        is_open = bool(members) and body_schema.get("additionalProperties", False) is not False
        arguments += members or [_whole(body, media_type, body_schema)]
    return OperationArguments(
        listed=tuple(_with_unique_names(arguments)), media_type=media_type, open=is_open
    )


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description} if description else schema


def _members(
    body: RequestBody, media_type: str, schema: Mapping[str, Any]
) -> Iterator[OperationArgument]:
    """Return each member of an object body as an argument."""
    bare = media_type.partition(";")[0].strip().lower()
    properties = schema.get("properties")
    choices = schema.keys() & {"anyOf", "oneOf", "not", "if"}
    if not properties or choices or not (is_json(bare) or bare in (FORM, MULTIPART)):
        return
    written = _joined(body.media[media_type]).get("properties", {})
    for name, inner in properties.items():
        if bare == MULTIPART and is_file(written.get(name)):
            description = " ".join(filter(None, [str(inner.get("description", "")), FILE]))
            inner = {"type": ["object", "string"], "description": description}
        yield OperationArgument(
            name=argument_name(name),
            target="member",
            source=name,
            required=body.required and name in schema.get("required", ()),
            schema=inner,
        )


def _whole(body: RequestBody, media_type: str, schema: dict[str, Any]) -> OperationArgument:
    description = body.description or f"The body of the request ({media_type})."
    return OperationArgument(
        name="body",
        target="body",
        source="",
        required=body.required,
        schema=_described(schema, "" if "description" in schema else description),
    )


def _joined(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge an `allOf` of plain objects, the usual way to write inheritance, into one object."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or not parts:
        return schema
    flat = [_joined(part) for part in parts if isinstance(part, Mapping)]
    own_schema = {word: value for word, value in schema.items() if word != "allOf"}
    if len(flat) != len(parts) or not all(
        _is_plain(flat_schema) for flat_schema in (*flat, own_schema)
    ):
        return schema
    properties: dict[str, Any] = {}
    required: list[str] = []
    for flat_schema in (*flat, own_schema):
        properties |= flat_schema.get("properties", {})
        required += flat_schema.get("required", [])
    return {"type": "object", **own_schema, "properties": properties, "required": required}


def _is_plain(schema: Mapping[str, Any]) -> bool:
    return (
        schema.get("type", "object") == "object"
        and not schema.keys() & {"anyOf", "oneOf", "allOf", "not", "enum"}
        and isinstance(schema.get("properties", {}), Mapping)
        and isinstance(schema.get("required", []), list)
    )


def _with_unique_names(arguments: list[OperationArgument]) -> Iterator[OperationArgument]:
    taken_names: set[str] = set()
    for argument in arguments:
        name = argument.name
        if name in taken_names:
            prefix = "body" if argument.target in ("member", "body") else argument.target
            name = argument_name(f"{prefix}_{name}")
        number = 2
        while name in taken_names:
            name = argument_name(f"{name[:58]}_{number}")
            number += 1
        taken_names.add(name)
        yield msgspec.structs.replace(argument, name=name)
