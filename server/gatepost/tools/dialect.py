"""Which JSON Schemas are taken: valid ones of a known dialect, closed in themselves, bounded."""

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

DIALECTS = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
}
DEFAULT_DIALECT = "https://json-schema.org/draft/2020-12/schema"

DEPTH = 64
MOST_SUBSCHEMAS = 5_000
"""Every model that is shown the schema pays for it, and every validator walks it (JS-04)."""
BACKTRACKING = 100_000
"""Steps of one pattern on one text; beyond, the text counts as not matching."""

DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""


def validator_of(schema: Mapping[str, Any]) -> Any:
    """
    The validator of a schema: 2020-12 unless ``$schema`` says draft-07.

    ValueError for any other dialect, for a schema that its dialect does not allow, that is too
    deep or too large, or that refers to something outside of itself: nothing is ever fetched.
    """
    dialect = str(schema.get("$schema", DEFAULT_DIALECT)).rstrip("#")
    if dialect not in DIALECTS:
        raise ValueError(f"JSON Schema dialect {dialect} is not supported")
    _bound(schema)
    parts = [part for part in _parts(schema) if isinstance(part, Mapping)]
    own = {str(part["$id"]).partition("#")[0] for part in parts if "$id" in part}
    for part in parts:
        reference = part.get("$ref")
        if not isinstance(reference, str) or "://" not in reference:
            continue
        if reference.partition("#")[0] not in own:
            _refuse_reference(reference)
    # Without a retriever of our own the library would fetch references from wherever they point.
    return DIALECTS[dialect](
        dict(schema),
        retriever=_refuse_reference,
        pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKING),
    )


def _bound(schema: Mapping[str, Any]) -> None:
    level: list[Any] = [schema]
    depth = count = 0
    while level:
        depth += 1
        count += sum(isinstance(node, Mapping) for node in level)
        if depth > DEPTH or count > MOST_SUBSCHEMAS:
            bounds = f"{DEPTH} levels or {MOST_SUBSCHEMAS} parts"
            raise ValueError(f"the schema is larger than the {bounds} allowed")
        level = [inner for node in level for inner in _inside(node)]


def _parts(node: Any) -> Iterator[Any]:
    yield node
    for inner in _inside(node):
        yield from _parts(inner)


def _inside(node: Any) -> list[Any]:
    if isinstance(node, Mapping):
        return [value for keyword, value in node.items() if keyword not in DATA]
    return node if isinstance(node, list) else []


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}, which lies outside of it")
