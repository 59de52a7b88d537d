"""
Compute how many subschemas one value may be checked against.

Alternatives multiply. Each `anyOf` below another one is tried for each alternative above it. If a
schema refers to itself, it is tried again for each level of the document.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from gatepost.documents.json_shape import NESTING, objects_in

MAX_BRANCHES = 10_000
"""Maximum number of subschemas that one value at the root may be checked against."""
OPTION_STEPS, FRACTION_STEPS = 10, 60
"""
The cost of comparing a value with an `enum` option that is not a string, and with a fraction. A
validator looks strings up, and compares all other values one by one.
"""
MULTIPLE_STEPS, RANGE_STEPS = 120, 30
"""The cost of dividing a number, and of comparing it with a fraction."""
RANGES = {
    "multipleOf": MULTIPLE_STEPS,
    "maximum": RANGE_STEPS,
    "minimum": RANGE_STEPS,
    "exclusiveMaximum": RANGE_STEPS,
    "exclusiveMinimum": RANGE_STEPS,
}
BACKTRACKING_STEPS = 16_000
"""The cost of a pattern that is not searched in linear time."""
MAX_STEPS_COUNTED = 10**7
"""The upper bound of all counts; a document with so many steps is never checked."""

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_ANY = (
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
)

_BACKTRACKS = re.compile(r"\(\?[=!<>(]|\\[1-9kgKG]|[*+?}]\+")
"""Lookaround, backreferences and atomic groups, which a finite automaton cannot match."""

CheckCounts = Mapping[int, int]
"""The number of times a value is checked against each node, by the node's id."""


class Branching(msgspec.Struct, frozen=True):
    """
    Maximum number of subschemas, members and steps that a value is checked against, by its depth.
    """

    subschemas: tuple[int, ...]
    members: tuple[int, ...]
    """Each subschema counts as one plus the number of properties it names."""
    steps: tuple[int, ...]
    """Each subschema counts as the cost of checking a small value against it."""

    def at(self, depth: int) -> tuple[int, int, int]:
        """Return the three maxima for any value of a document of this depth."""
        return _at(self.subschemas, depth), _at(self.members, depth), _at(self.steps, depth)


def _at(numbers: tuple[int, ...], depth: int) -> int:
    return numbers[min(depth, len(numbers) - 1)]


def branching_of(schema: Mapping[str, Any], *, discriminated: bool = False) -> Branching:
    """
    Compute the branching of *schema*; raises ValueError if one place has too many alternatives.

    With *discriminated*, a `oneOf` with a `discriminator` counts as one alternative, as pydantic
    tries only one, and all keywords cost the same.
    """
    graph = _Graph(schema, discriminated=discriminated)
    subschemas = graph.maxima(lambda node: 1)
    steps = subschemas if discriminated else graph.maxima(_steps)
    return Branching(subschemas, graph.maxima(_named_members), steps)


def _named_members(node: Mapping[str, Any]) -> int:
    names: set[str] = set()
    if isinstance(properties := node.get("properties"), Mapping):
        names.update(properties)
    for required in (node.get("required"), *_dependent(node)):
        if isinstance(required, list):
            names.update(name for name in required if isinstance(name, str))
    return 1 + len(names)


def _dependent(node: Mapping[str, Any]) -> Iterable[Any]:
    dependent = node.get("dependentRequired", node.get("dependencies"))
    return dependent.values() if isinstance(dependent, Mapping) else ()


def _steps(node: Mapping[str, Any]) -> int:
    options = node.get("enum")
    options = [*options] if isinstance(options, list) else []
    options += [node["const"]] if "const" in node else []
    steps = 1 + sum(map(_option_steps, options))
    steps += sum(
        cost if isinstance(node[keyword], float) or keyword == "multipleOf" else OPTION_STEPS
        for keyword, cost in RANGES.items()
        if keyword in node
    )
    return steps + BACKTRACKING_STEPS * (looks_around(node) > 0)


def looks_around(node: Mapping[str, Any]) -> int:
    """Return how many lookarounds, backreferences and the like a subschema's patterns have."""
    names = node.get("patternProperties")
    patterns = [node.get("pattern"), *(names if isinstance(names, Mapping) else ())]
    return sum(
        len(_BACKTRACKS.findall(pattern)) for pattern in patterns if isinstance(pattern, str)
    )


def _option_steps(option: Any) -> int:
    if isinstance(option, str | bool | None):
        return 0
    return FRACTION_STEPS if isinstance(option, float) else OPTION_STEPS


class _Graph:
    """The nodes that a validator visits from each node, for the value and for its members."""

    def __init__(self, root: Mapping[str, Any], *, discriminated: bool) -> None:
        self.root, self.discriminated = root, discriminated
        self._nodes: dict[int, Mapping[str, Any]] = {}
        self._targets: dict[str, Any] = {}
        self._index(root)
        self._counts: dict[int, CheckCounts] = {}
        self._counts_by_depth: dict[int, list[CheckCounts]] = {}
        self._instead: dict[int, list[int]] = {}
        """The alternatives of each node that are not tried beside the longest one."""

    def _index(self, node: Any) -> None:
        """Index the nodes by their names (`$anchor`, `$id`)."""
        for subschema in objects_in(node):
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(subschema.get(keyword), str):
                    self._targets["#" + subschema[keyword]] = subschema
            if isinstance(subschema.get("$id"), str):
                self._targets[subschema["$id"].rstrip("#")] = subschema

    def maxima(self, weight: Callable[[Any], int]) -> tuple[int, ...]:
        """Return the maximum for a value, by depth; the numbers never decrease."""
        heads = self._reached()
        weights = {head: self._weigh(self._at(head), weight) for head in heads}
        root = id(self._keep(self.root))
        maxima = [weights[root]]
        for _ in range(NESTING):
            next_weights = {
                head: max((_sum(level, weights) for level in self._members(head)), default=0)
                for head in heads
            }
            if next_weights == weights:
                break
            weights = next_weights
            maxima.append(max(maxima[-1], weights[root]))
        return tuple(maxima)

    def _weigh(self, level: CheckCounts, weight: Callable[[Any], int]) -> int:
        return min(
            sum(times * weight(self._nodes[node]) for node, times in level.items()),
            MAX_STEPS_COUNTED,
        )

    def _reached(self) -> list[int]:
        """Return all nodes where the check of some value starts."""
        unvisited = [id(self._keep(self.root))]
        visited = dict.fromkeys(unvisited)
        while unvisited:
            for level in self._members(unvisited.pop()):
                for node in level:
                    if node not in visited:
                        visited[node] = None
                        unvisited.append(node)
        return list(visited)

    def _keep(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        self._nodes[id(node)] = node
        return node

    def _at(self, node: int, inside: tuple[int, ...] = ()) -> CheckCounts:
        """Return the nodes that the value itself is checked against, starting at *node*."""
        cached = self._counts.get(node)
        if cached is not None:
            return cached
        if node in inside:
            raise ValueError("the schema refers to itself without going into a member")
        counts: Counter[int] = Counter({node: 1})
        for alternatives in self._same_value(self._nodes[node]):
            if not alternatives:
                continue
            levels = {
                alternative: self._at(alternative, (*inside, node)) for alternative in alternatives
            }
            longest = max(levels, key=lambda alternative: sum(levels[alternative].values()))
            self._instead[node] = [
                alternative for alternative in alternatives if alternative != longest
            ]
            counts.update(levels[longest])
        if sum(counts.values()) > MAX_BRANCHES:
            raise ValueError(f"the schema has more than {MAX_BRANCHES} alternatives at one place")
        self._counts[node] = counts
        return counts

    def _same_value(self, node: Mapping[str, Any]) -> Iterator[list[int]]:
        """Yield the nodes that check the same value; in a group of several, only one does."""
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(reference := node.get(keyword), str):
                yield from ([checked] for checked in self._ids([self._target(reference)]))
        for keyword in _LISTS:
            branches = node.get(keyword)
            if not isinstance(branches, list):
                continue
            if keyword == "oneOf" and self.discriminated and "discriminator" in node:
                yield self._ids(branches)
            else:
                yield from ([checked] for checked in self._ids(branches))
        yield from ([checked] for checked in self._ids(node.get(keyword) for keyword in _SINGLE))
        for keyword in ("dependentSchemas", "dependencies"):
            if isinstance(schemas := node.get(keyword), Mapping):
                yield from ([checked] for checked in self._ids(schemas.values()))

    def _members(self, head: int) -> list[CheckCounts]:
        """Return the nodes that the members and items of a value at *head* are checked against."""
        cached = self._counts_by_depth.get(head)
        if cached is not None:
            return cached
        by_name: dict[Any, Counter[int]] = {}
        every: Counter[int] = Counter()
        for node, times in self._at(head).items():
            for name, inner in _children(self._nodes[node]):
                for checked in self._ids([inner]):
                    level = every if name is None else by_name.setdefault(name, Counter())
                    level[checked] += times
        levels: list[CheckCounts] = [every + counts for counts in by_name.values()]
        levels += [every] if every else []
        self._counts_by_depth[head] = levels  # before the loop: a schema may refer to itself
        for node in self._at(head):
            for alternative in self._instead.get(node, ()):
                levels = [*levels, *self._members(alternative)]
        self._counts_by_depth[head] = levels
        return levels

    def _ids(self, nodes: Iterable[Any]) -> list[int]:
        return [id(self._keep(node)) for node in nodes if isinstance(node, Mapping)]

    def _target(self, reference: str) -> Any:
        """Return the target of a reference; the whole schema if it cannot be resolved."""
        if reference in self._targets:
            return self._targets[reference]
        base, _, pointer = reference.partition("#")
        node = self._targets.get(base, self.root) if base else self.root
        for step in unquote(pointer).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = node.get(name)
            elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
        return node if isinstance(node, Mapping) else self.root


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the subschemas of members and items with their name or index; None means any."""
    if isinstance(properties := schema.get("properties"), Mapping):
        yield from properties.items()
    if isinstance(patterns := schema.get("patternProperties"), Mapping):
        yield from ((None, subschema) for subschema in patterns.values())
    if isinstance(items := schema.get("prefixItems"), list):
        yield from enumerate(items)
    for keyword in _ANY:
        value = schema.get(keyword)
        yield from (
            (None, subschema) for subschema in (value if isinstance(value, list) else [value])
        )


def _sum(level: CheckCounts, worth: Mapping[int, int]) -> int:
    return min(sum(times * worth[node] for node, times in level.items()), MAX_STEPS_COUNTED)
