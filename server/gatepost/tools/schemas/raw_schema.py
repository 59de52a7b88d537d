"""Accept a tool's own JSON Schema, and check its arguments with it (OpenAPI, another server)."""

from collections.abc import Callable, Iterator, Mapping, Set
from itertools import islice
from typing import Any

import jsonschema_rs

from gatepost.execution.failure import ToolFailure
from gatepost.tools.schemas.bounded_validation import Bounds, Hidden, decoded, described_error
from gatepost.tools.schemas.schema_branches import branching_of
from gatepost.tools.schemas.secret import secret_arguments

DIALECTS = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
}
DEFAULT_DIALECT = "https://json-schema.org/draft/2020-12/schema"

DEPTH = 64
MAX_SUBSCHEMAS = 5_000
"""A larger schema costs every agent tokens and every validator time (JS-04)."""
BACKTRACKING = 1_000
"""Maximum number of steps back of one pattern on one text; above it the text does not match."""

DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are not schemas."""


def validator_of(schema: Mapping[str, Any]) -> Any:
    """
    Return the validator of a schema: 2020-12, or draft-07 if ``$schema`` says so.

    Raises ValueError for any other dialect, and for a schema that is invalid, too deep, too large,
    or refers to something outside itself. Nothing is ever fetched.
    """
    dialect = str(schema.get("$schema", DEFAULT_DIALECT)).rstrip("#")
    if dialect not in DIALECTS:
        raise ValueError(f"JSON Schema dialect {dialect} is not supported")
    _bound(schema)
    parts = [part for part in _parts(schema) if isinstance(part, Mapping)]
    ids = {str(part["$id"]).partition("#")[0] for part in parts if "$id" in part}
    for part in parts:
        reference = part.get("$ref")
        if not isinstance(reference, str) or "://" not in reference:
            continue
        if reference.partition("#")[0] not in ids:
            _refuse_reference(reference)
    # Without this retriever the library would fetch references from any URL.
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
        if depth > DEPTH or count > MAX_SUBSCHEMAS:
            bounds = f"{DEPTH} levels or {MAX_SUBSCHEMAS} parts"
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


SHOWN_ERRORS = 3
"""As many as an agent can correct at once; thirty would fill its context window."""
MAX_ERRORS = 1_000
"""
The most validation errors that are built for one document. Each takes 1/30 of a millisecond,
because a failed alternative is kept with all its validation errors.
"""
COUNTED = frozenset({"minItems", "minProperties", "contains", "minLength", "pattern", "format"})
"""Keywords that the beginning of a document may violate although the whole does not."""


def checker(schema: Mapping[str, Any]) -> Callable[[bytes], Any]:
    """
    Return a function that checks arguments against a tool's own schema.

    Raises ValueError if `validator_of` refuses the schema or it has too many alternatives.
    """
    validator = validator_of(schema)

    def explain(value: Any, hidden: Hidden, ignored: Set[str] = COUNTED) -> ToolFailure | None:
        validation_errors = (
            error for error in validator.iter_errors(value) if error.kind.name not in ignored
        )
        errors = [
            described_error(error, hidden) for error in islice(validation_errors, SHOWN_ERRORS)
        ]
        if not errors:
            return None
        message = " ".join(sentence for _, sentence in errors)
        return ToolFailure("validation", message, field=errors[0][0] or None)

    bounds = Bounds(
        schema,
        branching_of(schema),
        lambda: validator,
        explain,
        most_errors=MAX_ERRORS,
        copying=True,
        hidden=Hidden(secret_arguments(schema)),
    )

    def check(arguments: bytes) -> Any:
        value = decoded(arguments)
        if len(arguments) > bounds.harmless_bytes and bounds.passes(arguments, value):
            return value
        if not validator.is_valid(value):
            failure = explain(value, bounds.hidden(arguments), ignored=frozenset())
            if failure is not None:
                raise failure
        return value

    return check
