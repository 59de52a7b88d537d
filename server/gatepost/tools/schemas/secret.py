"""Read `x-gatepost-secret` in a tool's schema: arguments that hold secrets."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from gatepost.secrets.names import REFERENCE_PREFIX

SecretPath = tuple[str | None, ...]
"""The property names that lead to a secret from the root; None is any item and any name."""

KEYWORD = "x-gatepost-secret"
HINT = "A stored secret may be named in its place: `secret:NAME`."
MAX_PARTS = 50_000
"""Maximum number of parts of a schema that are walked; references could make it endless."""

# The keywords with schemas for the same value, for each item or member, and by name.
_SAME = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not")
_EACH = (
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")


class _Marked:
    """Marks the schema of the annotated type."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core)
        schema[KEYWORD] = True
        return schema


Secret = Annotated[str, _Marked()]
"""
The type of an argument that is a password, a token or a key: `token: Secret`.

The agent can pass `secret:NAME` and never sees the secret; ``ctx.secret`` returns its value. A
value that the agent passes itself is kept out of every answer, log and record. A tool with such an
argument cannot become a task, because the task's record would keep the value.
"""


def secret_arguments(schema: Mapping[str, Any]) -> tuple[SecretPath, ...]:
    """
    Return the paths of the secrets in a schema; raises ValueError if they cannot be determined.

    That is the case for a mark inside a recursive definition, a mark that the supported keywords
    do not reach, and a mark with a value other than `true`.
    """
    marks = sum(1 for part in _parts(schema) if KEYWORD in part)
    if not marks:
        return ()
    walk = _SecretWalk(schema)
    paths = dict.fromkeys(walk.paths(schema, (), ("#",)))
    if walk.recursive_references & walk.marked_references:
        raise ValueError(f"{KEYWORD}: not within what contains itself")
    if marks > len(walk.marked_ids):
        raise ValueError(f"{KEYWORD}: only what `properties`, `items` and the like lead to has it")
    if () in paths:
        raise ValueError(f"{KEYWORD}: the arguments as a whole are none")
    return tuple(paths)


class _SecretWalk:
    """One walk over all subschemas for a value and for its parts."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._remaining = MAX_PARTS
        self.marked_ids: set[int] = set()
        """The ids of the marked parts."""
        self.marked_references: set[str] = set()
        """The references that lead to marked parts."""
        self.recursive_references: set[str] = set()
        """The references that lead to themselves."""

    def paths(self, node: Any, path: SecretPath, inside: tuple[str, ...]) -> Iterator[SecretPath]:
        """Yield the paths of the marks at *node* and below it, inside these references."""
        if isinstance(node, Sequence) and not isinstance(node, str):
            for inner in node:
                yield from self.paths(inner, path, inside)
        if not isinstance(node, Mapping):
            return
        self._remaining -= 1
        if self._remaining < 0:
            raise ValueError(f"{KEYWORD}: the schema is too large to look for secrets in")
        if KEYWORD in node:
            if node[KEYWORD] is not True:
                raise ValueError(f"{KEYWORD}: the only value is true")
            self.marked_ids.add(id(node))
            self.marked_references.update(inside)
            yield path
        yield from self._referred(node.get("$ref"), path, inside)
        for inner, inner_path in _subschemas(node, path):
            yield from self.paths(inner, inner_path, inside)

    def _referred(
        self, reference: Any, path: SecretPath, inside: tuple[str, ...]
    ) -> Iterator[SecretPath]:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return
        if reference in inside:
            self.recursive_references.add(reference)
            return
        target: Any = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            step = part.replace("~1", "/").replace("~0", "~")
            target = target.get(step) if isinstance(target, Mapping) else None
        yield from self.paths(target, path, (*inside, reference))


def _subschemas(node: Mapping[str, Any], path: SecretPath) -> Iterator[tuple[Any, SecretPath]]:
    """Yield the subschemas of a schema, each with the path of its value."""
    for name, inner in node.get("properties", {}).items():
        yield inner, (*path, name)
    for inner in node.get("patternProperties", {}).values():
        yield inner, (*path, None)
    for inner in node.get("dependentSchemas", {}).values():
        yield inner, path
    for keyword in _SAME:
        yield node.get(keyword), path
    for keyword in _EACH:
        yield node.get(keyword), (*path, None)


def _parts(node: Any, *, by_name: bool = False) -> Iterator[Mapping[str, Any]]:
    """Yield every schema in a schema, without defaults and examples that look like schemas."""
    if isinstance(node, Sequence) and not isinstance(node, str):
        for inner in node:
            yield from _parts(inner)
    if not isinstance(node, Mapping):
        return
    if by_name:
        for inner in node.values():
            yield from _parts(inner)
        return
    yield node
    for keyword, inner in node.items():
        if keyword in _SCHEMAS_BY_NAME:
            yield from _parts(inner, by_name=True)
        elif keyword in _SAME or keyword in _EACH:
            yield from _parts(inner)


def with_hints(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with a hint for the agent at each secret."""
    return {key: _hinted(key, value) for key, value in _with_hint(schema).items()}


def _with_hint(node: Mapping[str, Any]) -> Mapping[str, Any]:
    if node.get(KEYWORD) is not True or HINT in node.get("description", ""):
        return node
    return {**node, "description": " ".join(filter(None, [node.get("description"), HINT]))}


def _hinted(keyword: str, node: Any) -> Any:
    if keyword in _SCHEMAS_BY_NAME and isinstance(node, Mapping):
        return {name: _hinted("not", inner) for name, inner in node.items()}
    if keyword not in _SAME and keyword not in _EACH:
        return node
    if isinstance(node, list | tuple):
        return [_hinted(keyword, inner) for inner in node]
    return with_hints(node) if isinstance(node, Mapping) else node


def literals(paths: Sequence[SecretPath], arguments: bytes) -> list[str]:
    """
    Return the secrets in a call's arguments (raw JSON), without references to stored ones.

    They are all strings at or below one of the paths, even in invalid arguments.
    """
    if not paths:
        return []
    try:
        # The most lenient decoder: it must find every value that a check might have accepted. An
        # object becomes the tuple of its members, because a dict keeps one of several of one name.
        value = json.loads(arguments, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return []
    texts = [
        text for path in paths for found_value in _at(value, path) for text in _texts(found_value)
    ]
    return [text for text in dict.fromkeys(texts) if not text.startswith(REFERENCE_PREFIX)]


def _at(value: Any, path: SecretPath) -> Iterator[Any]:
    if not path:
        yield value
    elif isinstance(value, tuple):
        step, *remaining = path
        for name, inner in value:
            if step is None or step == name:
                yield from _at(inner, tuple(remaining))
    elif isinstance(value, list) and path[0] is None:
        for inner in value:
            yield from _at(inner, path[1:])
    elif not isinstance(value, list):
        # A string in place of an object may contain the secret.
        yield value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, tuple):
        value = [inner for _, inner in value]
    if isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)
