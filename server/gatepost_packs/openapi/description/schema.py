"""Convert a description's schemas to JSON Schema 2020-12 for validators and models."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from gatepost_packs.openapi.description.document import Dialect

TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
DEPTH = 20
"""Levels of a schema that are kept; a model reads no deeper, and any value is accepted below."""
MAX_PARTS = 2_000
MAX_CHOICES = 500
"""Values of one enum that are kept; models read no more, and the API checks them anyway."""
LONGEST = 2_000
"""Characters of a description."""


class SchemaConversion:
    """
    One conversion with its limits: parts that are too deep or too many accept any value.

    *drops* is `readOnly` for requests and `writeOnly` for responses. *lenient* omits
    `additionalProperties: false`, which servers often violate in their responses.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        drops: str = "readOnly",
        lenient: bool = False,
        without_patterns: bool = False,
    ) -> None:
        self.remaining_parts = MAX_PARTS
        self._old = dialect != "3.1"
        self._drops, self._lenient, self._without_patterns = drops, lenient, without_patterns

    def schema(self, written: Any, depth: int = 0) -> dict[str, Any]:
        """Return the schema as JSON Schema; all references must be resolved."""
        if not isinstance(written, Mapping) or depth >= DEPTH:
            return {}
        simple: dict[str, Any] = {}
        for word, keep in KEPT_KEYWORDS.items():
            if word in written and keep(written[word]):
                simple[word] = written[word]
        if self._without_patterns:
            simple.pop("pattern", None)
        if "description" in simple:
            simple["description"] = simple["description"].strip()[:LONGEST]
        self._types(written, simple)
        self._objects(written, simple, depth)
        for word in ("allOf", "anyOf", "oneOf", "prefixItems"):
            if isinstance(written.get(word), list) and self._fits(len(written[word])):
                simple[word] = [self.schema(item, depth + 1) for item in written[word]]
        for word in ("items", "not", "contains", "propertyNames", "if", "then", "else"):
            if isinstance(written.get(word), Mapping) and self._fits(1):
                simple[word] = self.schema(written[word], depth + 1)
        return self._nullable(simple) if self._old and written.get("nullable") is True else simple

    def _fits(self, parts: int) -> bool:
        """Return whether there is room for so many parts, and take it."""
        if not 0 < parts <= self.remaining_parts:
            return False
        self.remaining_parts -= parts
        return True

    def _types(self, written: Mapping[str, Any], simple: dict[str, Any]) -> None:
        type_ = written.get("type")
        if type_ == "file":
            type_ = "string"
        listed = (
            [type_name for type_name in type_ if type_name in TYPES]
            if isinstance(type_, list)
            else []
        )
        if isinstance(type_, str) and type_ in TYPES:
            simple["type"] = type_
        elif listed:
            simple["type"] = listed
        for word, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            exclusive = written.get(word)
            if exclusive is True and limit in simple:
                simple[word] = simple.pop(limit)
            elif _is_number(exclusive):
                simple[word] = exclusive

    def _objects(self, written: Mapping[str, Any], simple: dict[str, Any], depth: int) -> None:
        properties = written.get("properties")
        dropped: set[str] = set()
        if isinstance(properties, Mapping) and self._fits(len(properties)):
            dropped = {
                name
                for name, property_schema in properties.items()
                if self._is_dropped(property_schema)
            }
            simple["properties"] = {
                name: self.schema(property_schema, depth + 1)
                for name, property_schema in properties.items()
                if name not in dropped
            }
        required = written.get("required")
        if isinstance(required, list):
            still_required = {name for name in required if isinstance(name, str)} - dropped
            if still_required:
                simple["required"] = sorted(still_required)
        additional = written.get("additionalProperties")
        if isinstance(additional, Mapping) and self._fits(1):
            simple["additionalProperties"] = self.schema(additional, depth + 1)
        elif isinstance(additional, bool) and not (self._lenient and additional is False):
            simple["additionalProperties"] = additional

    def _is_dropped(self, schema: Any) -> bool:
        return isinstance(schema, Mapping) and schema.get(self._drops) is True

    @staticmethod
    def _nullable(simple: dict[str, Any]) -> dict[str, Any]:
        """Translate OpenAPI 3.0's own way to allow null."""
        if isinstance(simple.get("enum"), list) and None not in simple["enum"]:
            simple["enum"] = [*simple["enum"], None]
        if isinstance(simple.get("type"), str):
            return {**simple, "type": [simple["type"], "null"]}
        if not simple.keys() & {"allOf", "anyOf", "oneOf", "enum"}:
            return simple
        described = {"description": simple.pop("description")} if "description" in simple else {}
        return {**described, "anyOf": [simple, {"type": "null"}]}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_pattern(value: Any) -> bool:
    """Return whether the pattern is valid in Python; the validator accepts few others."""
    try:
        return isinstance(value, str) and len(value) < 1000 and re.compile(value) is not None
    except (re.error, RecursionError, OverflowError):
        return False


KEPT_KEYWORDS: Mapping[str, Callable[[Any], bool]] = {
    "description": lambda value: isinstance(value, str) and bool(value.strip()),
    "format": lambda value: isinstance(value, str),
    "enum": lambda value: isinstance(value, list) and 0 < len(value) <= MAX_CHOICES,
    "const": lambda _: True,
    "default": lambda _: True,
    "deprecated": lambda value: value is True,
    "minimum": _is_number,
    "maximum": _is_number,
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "minLength": _is_count,
    "maxLength": _is_count,
    "pattern": _is_pattern,
    "minItems": _is_count,
    "maxItems": _is_count,
    "uniqueItems": lambda value: value is True,
    "minProperties": _is_count,
    "maxProperties": _is_count,
    "contentEncoding": lambda value: isinstance(value, str),
}
"""Keywords with the same meaning in every version, and the types that their values need."""
