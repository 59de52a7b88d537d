"""One flat set of arguments for an operation, and the way back to where each of them goes."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from gatepost.openapi.naming import argument_name
from gatepost.openapi.operation import FORM, MULTIPART, Body, Operation, Where, is_json
from gatepost.openapi.request import Given, is_file
from gatepost.openapi.schema import Simplified

Target = Where | Literal["member", "body"]
NOT_ASKED = frozenset({"accept", "content-type", "authorization"})
"""Header parameters that OpenAPI says are to be ignored."""
FILE = "A file: an object with `filename`, `data_base64` and `content_type`."


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of a tool."""

    name: str
    target: Target
    source: str
    """Its name there; empty for the body as a whole."""
    required: bool
    schema: Mapping[str, Any]


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """All arguments of a tool."""

    listed: tuple[Argument, ...]
    media_type: str | None = None
    """Of the body that its members are put together to."""
    open: bool = False
    """Whether the body takes members that nobody names."""

    def schema(self) -> dict[str, Any]:
        """Their JSON Schema."""
        made: dict[str, Any] = {
            "type": "object",
            "properties": {one.name: dict(one.schema) for one in self.listed},
            "additionalProperties": self.open,
        }
        required = [one.name for one in self.listed if one.required]
        return {**made, "required": required} if required else made

    def given(self, arguments: Mapping[str, Any]) -> Given:
        """Checked arguments by where they go."""
        parts: dict[str, dict[str, Any]] = {where: {} for where in ("path", "query", "header")}
        parts |= {"cookie": {}, "member": {}, "body": {}}
        known = {one.name: one for one in self.listed}
        for name, value in arguments.items():
            one = known.get(name)
            parts[one.target if one else "member"][one.source if one else name] = value
        body = parts["body"].get("", parts["member"] or None)
        return Given(parts["path"], parts["query"], parts["header"], parts["cookie"], body)


def arguments_of(
    operation: Operation, *, hidden: frozenset[str] = frozenset(), plain: bool = False
) -> Arguments:
    """
    The arguments of an operation; *hidden* headers (lower case) are nobody's to give.

    Names clash where a path, a query and a body have the same: the first keeps it, the others get
    `query_`, `header_`, `cookie_` or `body_` before it. With *plain* there are no patterns.
    """
    simplified = Simplified(operation.dialect, plain=plain)
    order = ("path", "query", "header", "cookie")
    wanted = [
        one
        for where in order
        for one in operation.parameters
        if one.where == where and not (where == "header" and one.name.lower() in NOT_ASKED | hidden)
    ]
    found = [
        Argument(
            name=argument_name(one.name),
            target=one.where,
            source=one.name,
            required=one.required,
            schema=_described(simplified.schema(one.schema), one.description),
        )
        for one in wanted
    ]
    media_type, body = None, operation.body
    is_open = False
    if body is not None:
        media_type = next(iter(body.media))
        whole = simplified.schema(_joined(body.media[media_type]))
        members = list(_members(body, media_type, whole))
        is_open = bool(members) and whole.get("additionalProperties", False) is not False
        found += members or [_whole(body, media_type, whole)]
    return Arguments(listed=tuple(_apart(found)), media_type=media_type, open=is_open)


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description} if description else schema


def _members(body: Body, media_type: str, schema: Mapping[str, Any]) -> Iterator[Argument]:
    """The members of a body that is an object with names, each an argument."""
    bare = media_type.partition(";")[0].strip().lower()
    properties = schema.get("properties")
    choices = schema.keys() & {"anyOf", "oneOf", "not", "if"}
    if not properties or choices or not (is_json(bare) or bare in (FORM, MULTIPART)):
        return
    written = _joined(body.media[media_type]).get("properties", {})
    for name, inner in properties.items():
        if bare == MULTIPART and is_file(written.get(name)):
            told = " ".join(filter(None, [str(inner.get("description", "")), FILE]))
            inner = {"type": ["object", "string"], "description": told}
        yield Argument(
            name=argument_name(name),
            target="member",
            source=name,
            required=body.required and name in schema.get("required", ()),
            schema=inner,
        )


def _whole(body: Body, media_type: str, schema: dict[str, Any]) -> Argument:
    told = body.description or f"The body of the request ({media_type})."
    return Argument(
        name="body",
        target="body",
        source="",
        required=body.required,
        schema=_described(schema, "" if "description" in schema else told),
    )


def _joined(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """An `allOf` of plain objects as one object: the usual way to write inheritance."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or not parts:
        return schema
    flat = [_joined(one) for one in parts if isinstance(one, Mapping)]
    own = {word: value for word, value in schema.items() if word != "allOf"}
    if len(flat) != len(parts) or not all(_is_plain(one) for one in (*flat, own)):
        return schema
    properties: dict[str, Any] = {}
    required: list[str] = []
    for one in (*flat, own):
        properties |= one.get("properties", {})
        required += one.get("required", [])
    return {"type": "object", **own, "properties": properties, "required": required}


def _is_plain(schema: Mapping[str, Any]) -> bool:
    return (
        schema.get("type", "object") == "object"
        and not schema.keys() & {"anyOf", "oneOf", "allOf", "not", "enum"}
        and isinstance(schema.get("properties", {}), Mapping)
        and isinstance(schema.get("required", []), list)
    )


def _apart(found: list[Argument]) -> Iterator[Argument]:
    taken: set[str] = set()
    for one in found:
        name = one.name
        if name in taken:
            prefix = "body" if one.target in ("member", "body") else one.target
            name = argument_name(f"{prefix}_{name}")
        number = 2
        while name in taken:
            name = argument_name(f"{name[:58]}_{number}")
            number += 1
        taken.add(name)
        yield msgspec.structs.replace(one, name=name)
