"""Replace references by their targets, as far as the result is finite and small enough."""

import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from gatepost_packs.openapi.description.document import ApiDescription, UnresolvableReference
from gatepost_packs.openapi.description.reading import DescriptionUnreadable

ReferencePlace = Literal["node", "map", "examples", "example", "data"]

MAX_BYTES = 1_500_000
"""Bytes of JSON that references may add to one operation."""
SMALLEST = 100
"""Bytes that following any reference costs, so that their number is bounded too."""
DEPTH = 100
"""Levels below which no reference is followed."""

EXTERNAL_REFERENCE = re.compile(rb'"\$ref":"(?!#)')
DATA = frozenset(
    {"example", "default", "enum", "const", "value", "mapping", "required", "security"}
)
"""Members that hold values of the API, in which `$ref` is an ordinary word."""
MAPS = frozenset(
    {
        "properties",
        "patternProperties",
        "dependentSchemas",
        "$defs",
        "definitions",
        "schemas",
        "responses",
        "parameters",
        "requestBodies",
        "headers",
        "content",
        "encoding",
        "callbacks",
        "links",
        "pathItems",
        "paths",
        "securitySchemes",
    }
)
"""Members whose own members are names that an author chose, not words of OpenAPI."""
OVERRIDING_MEMBERS = frozenset(
    {"description", "summary", "title", "default", "deprecated", "example", "nullable"}
)
"""Members that may stand beside a reference and override its target."""


def refuse_outside(document: ApiDescription) -> None:
    """Raise DescriptionUnreadable if the description refers to another file or server."""
    if not EXTERNAL_REFERENCE.search(document.data):
        return
    for container, _ in _walk(msgspec.json.decode(document.data)):
        reference = container.get("$ref") if isinstance(container, dict) else None
        if isinstance(reference, str) and not reference.startswith("#"):
            raise DescriptionUnreadable(
                f"The description refers to {reference[:200]!r}, which is outside the description "
                "and is not fetched. Bundle it into one file first (for example with `redocly "
                "bundle`)."
            )


def resolved(document: ApiDescription, value: Any) -> Any:
    """
    Return *value*, changed in place, with every local reference replaced by its target.

    A reference that leads back to itself, has no target, or would make the result too large is
    replaced by an object that says so (`x-circular-ref`, `x-unresolved-ref`, `x-omitted-ref`). The
    object is valid wherever a reference was.
    """
    holder = [value]
    remaining_bytes = MAX_BYTES
    # Level by level, so that the deepest parts are left out.
    queue: deque[tuple[Any, Any, ReferencePlace, tuple[str, ...], int]] = deque(
        [(holder, 0, "node", (), 0)]
    )
    while queue:
        container, key, reference_place, chain, depth = queue.popleft()
        for _ in range(DEPTH):
            reference = _reference(container[key], reference_place)
            if reference is None:
                break
            budget = remaining_bytes if depth < DEPTH else 0
            target, target_bytes = _followed(document, container[key], reference, chain, budget)
            container[key] = target
            remaining_bytes -= target_bytes
            chain = (*chain, reference)
        if reference_place != "example":
            queue.extend(
                (container[key], inner, inner_place, chain, depth + 1)
                for inner, inner_place in _inner(container[key], reference_place)
            )
    return holder[0]


def _reference(value: Any, reference_place: ReferencePlace) -> str | None:
    if reference_place not in ("node", "example") or not isinstance(value, dict):
        return None
    reference = value.get("$ref")
    return reference if isinstance(reference, str) else None


def _followed(
    document: ApiDescription,
    value: dict[str, Any],
    reference: str,
    chain: tuple[str, ...],
    budget: int,
) -> tuple[dict[str, Any], int]:
    """Return the replacement of a reference, and how many bytes it added."""
    if reference in chain:
        name = reference.rpartition("/")[2]
        note = f"Circular: the same as {name}, of which this is a part."
        return {"description": note, "x-circular-ref": reference}, 0
    note = "The description does not define this."
    try:
        raw = document.resolve(reference)
    except UnresolvableReference:
        return {"description": note, "x-unresolved-ref": reference}, SMALLEST
    size = max(len(memoryview(raw)), SMALLEST)
    if size > budget:
        note = "Left out: with this, the operation would be too large to show."
        return {"description": note, "x-omitted-ref": reference}, 0
    target = msgspec.json.decode(raw)
    if not isinstance(target, dict):
        return {"description": note, "x-unresolved-ref": reference}, size
    siblings = {name: inner for name, inner in value.items() if name != "$ref"}
    if document.dialect != "3.1":
        # OpenAPI 3.0 ignores the members beside a reference; notes are useful all the same.
        siblings = {name: inner for name, inner in siblings.items() if name in OVERRIDING_MEMBERS}
    if (
        siblings.keys() - OVERRIDING_MEMBERS
        and siblings.keys() & target.keys() - OVERRIDING_MEMBERS
    ):
        return {"allOf": [target, siblings]}, size
    return {**target, **siblings}, size


def _inner(value: Any, reference_place: ReferencePlace) -> Iterator[tuple[Any, ReferencePlace]]:
    """Return the keys of the members to look into, and the kind of each."""
    if isinstance(value, list):
        for at, inner in enumerate(value):
            if isinstance(inner, dict | list):
                yield at, reference_place
    elif isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, dict | list):
                inner_place = _place_of(name, inner, reference_place)
                if inner_place != "data":
                    yield name, inner_place


def _place_of(name: str, value: Any, outer_place: ReferencePlace) -> ReferencePlace:
    if outer_place == "examples":
        return "example"
    if outer_place == "map":
        return "node"
    if name in DATA or name.startswith("x-"):
        return "data"
    if name == "examples":
        return "examples" if isinstance(value, dict) else "data"
    return "map" if name in MAPS and isinstance(value, dict) else "node"


def _walk(value: Any) -> Iterator[tuple[Any, ReferencePlace]]:
    stack: list[tuple[Any, ReferencePlace]] = [(value, "node")]
    while stack:
        container, reference_place = stack.pop()
        yield (
            (container, reference_place)
            if reference_place in ("node", "example")
            else ({}, reference_place)
        )
        if reference_place != "example":
            stack.extend(
                (container[key], inner_place)
                for key, inner_place in _inner(container, reference_place)
            )
