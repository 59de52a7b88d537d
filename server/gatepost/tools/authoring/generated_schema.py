"""Generate the JSON Schema of a type, in the form that clients and models read best."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode


class Plain(GenerateJsonSchema):
    """Generates schemas without the titles that pydantic derives from names, which cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema_of(adapter: TypeAdapter[Any], mode: JsonSchemaMode = "validation") -> dict[str, Any]:
    """Return the simplified schema of a type."""
    return simplify(adapter.json_schema(schema_generator=Plain, mode=mode))


def simplify(schema: dict[str, Any]) -> dict[str, Any]:
    """Simplify a generated schema: an object at the root, no title, inline definitions."""
    definitions = schema.pop("$defs", {})
    tidied: dict[str, Any] = _inline(schema, definitions, ())
    tidied.pop("title", None)
    tidied.setdefault("type", "object")
    tidied.setdefault("properties", {})
    inlined = {name: _inline(value, definitions, (name,)) for name, value in definitions.items()}
    reached = _reached(tidied, inlined)
    if used := {name: inlined[name] for name in inlined if name in reached}:
        tidied["$defs"] = used
    return tidied


def _inline(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    """Inline references, because several clients and models do not follow them."""
    if isinstance(node, list):
        return [_inline(item, definitions, inside) for item in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref", "")).removeprefix("#/$defs/")
    if (
        name in definitions
        and name not in inside
        and name not in _reached(definitions[name], definitions)
    ):
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        target = {k: v for k, v in definitions[name].items() if k != "title"}
        return _inline({**target, **siblings}, definitions, (*inside, name))
    return {key: _inline(value, definitions, inside) for key, value in node.items()}


def _references(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*(_references(item) for item in node))
    if not isinstance(node, dict):
        return set()
    targets = (
        {node["$ref"].removeprefix("#/$defs/")} if isinstance(node.get("$ref"), str) else set()
    )
    return targets.union(*(_references(value) for value in node.values()))


def _reached(node: Any, definitions: Mapping[str, Any]) -> set[str]:
    """Return the names of all definitions that *node* refers to, directly or not."""
    visited: set[str] = set()
    unvisited = _references(node)
    while unvisited:
        visited |= unvisited
        unvisited = {
            n for d in unvisited if d in definitions for n in _references(definitions[d])
        } - visited
    return visited
