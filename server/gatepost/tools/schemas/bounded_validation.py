"""Validate within bounds, and describe validation errors in sentences that an agent can act on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isqrt
from typing import Any

import jsonschema_rs
import msgspec
from msgspec import UNSET

from gatepost.documents import json_shape
from gatepost.documents.json_shape import levels_of, objects_in, values_bound
from gatepost.execution.failure import ToolFailure
from gatepost.tools.schemas.argument_size import LONG_BYTES, is_quoted
from gatepost.tools.schemas.schema_branches import RANGES, Branching, looks_around
from gatepost.tools.schemas.secret import SecretPath

SHOWN_VALUE_CHARACTERS = 40
# A longer list of choices would not help an agent.
SHOWN_CHOICES = 50
LONGEST_SENTENCE = 400

_encode = msgspec.json.encode


class HiddenArguments:
    """
    The arguments that hold secrets, by the first step of their paths.

    Validation errors in one of them, or in the arguments as a whole, are described without values,
    because messages go into answers and logs.
    """

    def __init__(self, paths: Sequence[SecretPath]) -> None:
        self._first = frozenset(path[0] for path in paths)

    def __bool__(self) -> bool:
        """Return whether any argument holds a secret."""
        return bool(self._first)

    def hides(self, path: Sequence[Any]) -> bool:
        """Return whether the value at that path must not be shown."""
        if not self._first:
            return False
        return not path or path[0] in self._first or None in self._first


NOTHING_HIDDEN = HiddenArguments(())
EVERYTHING_HIDDEN = HiddenArguments([(None,)])


def described_error(
    error: jsonschema_rs.ValidationError, hidden: HiddenArguments
) -> tuple[str, str]:
    """Return the argument at fault (empty if not a single one) and a sentence that says how."""
    kind = error.kind.as_dict()
    path = list(error.instance_path)
    name = error.kind.name
    if name == "required":
        field = path_of([*path, kind["property"]])
        return field, f"`{field}` is required."
    if name in ("additionalProperties", "unevaluatedProperties"):
        fields = [path_of([*path, extra]) for extra in kind["unexpected"][:SHOWN_CHOICES]]
        names = ", ".join(f"`{field}`" for field in fields)
        return fields[0], f"{names} cannot be given here."
    field = path_of(path)
    subject = f"`{field}`" if field else "The arguments"
    if name == "enum":
        choices = [_encode(option).decode() for option in kind["options"][:SHOWN_CHOICES]]
        ellipsis = ", …" if len(kind["options"]) > SHOWN_CHOICES else ""
        sentence = f"{subject} should be one of: {', '.join(choices)}{ellipsis}"
    elif name == "const":
        sentence = f"{subject} should be {_encode(kind['expected_value']).decode()}"
    elif name == "type":
        sentence = f"{subject} should be of type {' or '.join(kind['types'])}"
    elif hidden.hides(path):
        return field, f"{subject} does not satisfy `{name}`."
    else:
        # The library's message quotes the value, which may be long.
        text = error.message
        excerpt = text if len(text) <= LONGEST_SENTENCE else f"…{text[-LONGEST_SENTENCE:]}"
        return field, f"{subject}: {excerpt}."
    return field, f"{sentence}{'' if hidden.hides(path) else received(error.instance)}."


def received(value: Any) -> str:
    """Return the value that was sent, if it is short enough to help."""
    if isinstance(value, str | int | float | bool):
        text = _encode(value) if not isinstance(value, int) else str(value).encode()
        if len(text) <= SHOWN_VALUE_CHARACTERS:
            return f" (got {text.decode()})"
    return ""


def path_of(parts: Sequence[Any]) -> str:
    """Join the steps of a path: `rows`, 0, `amount` become `rows[0].amount`."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


MAX_SEARCHED = 8_000_000
"""Bytes of a document, times the lookarounds of a pattern: each may search a text to its end."""
TOO_MUCH_TO_SEARCH = (
    "The arguments are too long for the lookarounds in a pattern of the tool's schema. Send less "
    "at once."
)
MAX_STEPS = 1_000_000
"""Values times the subschemas that each is checked against; each takes under 0.1 microseconds."""
MAX_COPIED = 40_000
"""Values that all validation errors together may copy; each takes half a microsecond."""
EXACT = 2**53
MAX_EXTREME = 1_000
"""
Numbers too large for an exact double that `multipleOf` and range keywords may check; each takes up
to 20 microseconds.
"""
SHOWN_ITEMS = (20, 3)
SHOWN_CHARACTERS = 2_000
"""
How much of each list, object and text of a long document is checked to describe a validation error.
A validation error that the cut itself may have caused is not reported.
"""

STRUCTURE = frozenset(
    {
        "$ref",
        "const",
        "enum",
        "maxItems",
        "maxLength",
        "minItems",
        "minLength",
        "required",
        "type",
    }
)
"""
The keywords, apart from those with subschemas, that mean the same to pydantic and to JSON Schema.
Those of numbers are omitted: a validator takes longer to compare a number than pydantic takes to
report a validation error.
"""

Explain = Callable[[Any, HiddenArguments], ToolFailure | None]
"""Returns what is wrong with the beginning of a document, apart from what the cut removed."""


class _TooLong(Exception):
    """Raised if even the beginning of a document is too long."""


class Bounds:
    """
    Keeps long documents from a check that builds all validation errors, unless there can be only a
    few.

    A long document is first checked with *validator*, which stops at the first error and builds
    none. If it fails, *explain* describes the validation errors in the document's beginning. At
    most *most_errors* are built. *most_steps* limits the values times the alternatives for each, in
    schemas with alternatives. *copying* says that each validation error copies the object or list
    it is about.
    """

    def __init__(  # noqa: PLR0913
        self,
        schema: Mapping[str, Any],
        branching: Branching,
        validator: Callable[[], Any],
        explain: Explain,
        *,
        most_errors: int,
        most_steps: int = MAX_STEPS,
        copying: bool = False,
        hidden: HiddenArguments,
    ) -> None:
        self._branching, self._explain, self._make = branching, explain, validator
        self._most_errors, self._most_steps, self._hidden = most_errors, most_steps, hidden
        self._copying = copying
        self._divides = copying and any(RANGES.keys() & node.keys() for node in objects_in(schema))
        self._looks = max(map(looks_around, objects_in(schema)), default=0)
        self._names = frozenset(_names_in(schema))
        self._validator: Any = None
        self._harmless = min(
            self._share(branching.members[-1]),
            MAX_STEPS // branching.steps[-1],
            MAX_EXTREME if self._divides else MAX_STEPS,
        )
        subschemas, steps = branching.subschemas[-1], branching.steps[-1]
        self._unrefused = min(self._max_steps(subschemas) // subschemas, MAX_STEPS // steps)
        if self._divides:
            self._unrefused = 0  # a few large numbers may be too many
        self.harmless_bytes = 2 * self._harmless
        """A document of this length cannot have too many values: each takes two bytes."""

    def _share(self, members: int) -> int:
        """Return how many values a document may have if all its validation errors are built."""
        share = self._most_errors // members
        return min(share, isqrt(MAX_COPIED // members)) if self._copying else share

    def hidden(self, arguments: bytes) -> HiddenArguments:
        """Return what messages about these arguments must not show."""
        is_shown = is_quoted(arguments, with_secrets=bool(self._hidden))
        return self._hidden if is_shown else EVERYTHING_HIDDEN

    def passes(self, arguments: bytes, value: Any = UNSET) -> bool:
        """
        Return True if the document satisfies the schema, False if the full check must decide.

        Raises ToolFailure if the document is invalid or too large to check. *value* is the decoded
        document, if the caller has it.
        """
        is_long = len(arguments) > LONG_BYTES  # a validation error would copy all of it
        max_values = values_bound(arguments)
        if not is_long and max_values <= self._harmless:
            return False
        if len(arguments) * self._looks > MAX_SEARCHED:
            raise ToolFailure("validation", TOO_MUCH_TO_SEARCH)
        if value is UNSET:
            value = decoded(arguments)
        if max_values <= self._unrefused and self.validator.is_valid(value):
            return True  # most long documents, without counting their values
        values, depth = _size(value)
        subschemas, members, steps = self._branching.maxima_at(depth)
        self._bound(value, values, subschemas, steps)
        if not is_long and values <= self._share(members):
            return False
        if not self.validator.is_valid(value):
            raise self._explained(value, subschemas, members, self.hidden(arguments))
        return True

    def _max_steps(self, subschemas: int) -> int:
        return MAX_STEPS if subschemas == 1 else self._most_steps

    def _bound(self, value: Any, values: int, subschemas: int, steps: int) -> None:
        """Refuse a document that would take too many steps."""
        max_steps = self._max_steps(subschemas)
        if values * subschemas > max_steps or values * steps > MAX_STEPS:
            raise ToolFailure(
                "validation",
                f"The arguments hold {values} values, and the tool's schema needs up to {steps} "
                "steps for each, which is too much to check. Send less at once, or nest it less "
                "deeply.",
            )
        if self._divides and _has_extremes(value):
            raise ToolFailure(
                "validation",
                f"The arguments hold more than {MAX_EXTREME} numbers of more than 15 digits, "
                "which is too much to check. Send less at once.",
            )

    @property
    def validator(self) -> Any:
        """Return the validator, created at first use because most tools never need it."""
        if self._validator is None:
            self._validator = self._make()
        return self._validator

    def _explained(
        self, value: Any, subschemas: int, members: int, hidden: HiddenArguments
    ) -> ToolFailure:
        if failure := self.of_beginning(value, members, hidden):
            return failure
        if subschemas == 1:
            # Without alternatives, only the first error is built.
            try:
                self.validator.validate(value)
            except jsonschema_rs.ValidationError as error:
                field, sentence = described_error(error, hidden)
                return ToolFailure("validation", sentence, field=field or None)
        return ToolFailure(
            "validation",
            "The arguments are not what the tool's schema allows, and too long to say where. Send "
            "less at once.",
        )

    def of_beginning(self, value: Any, members: int, hidden: HiddenArguments) -> ToolFailure | None:
        """
        Return a validation error in the beginning of a long document; None if there is none to
        name.
        """
        for max_items in SHOWN_ITEMS:
            budget = [self._share(members)]
            with suppress(_TooLong):
                beginning = _beginning(value, max_items, self._names, budget)
                if failure := self._explain(beginning, hidden):
                    return failure
        return None


def structure_of(schema: Any) -> Any:
    """Return the part of a generated schema that means the same to pydantic and JSON Schema."""
    if not isinstance(schema, Mapping):
        return schema
    structure: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs"):
            structure[keyword] = {
                name: structure_of(subschema) for name, subschema in value.items()
            }
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            # If several alternatives match, pydantic takes the best, so `oneOf` is too strict.
            target = "anyOf" if keyword == "oneOf" else keyword
            structure[target] = [structure_of(subschema) for subschema in value]
        elif keyword in ("items", "additionalProperties"):
            structure[keyword] = structure_of(value)
        elif keyword in STRUCTURE:
            structure[keyword] = value
    return structure


def decoded(arguments: bytes) -> Any:
    """Decode the arguments; raises ToolFailure."""
    try:
        return json_shape.decoded(arguments)
    except (msgspec.DecodeError, ValueError, RecursionError):
        message = "The arguments are not valid JSON, or hold a number that is out of range."
        raise ToolFailure("validation", message) from None


def _size(value: Any) -> tuple[int, int]:
    """Return the number of values and the depth of nesting."""
    sizes = [*map(len, levels_of(value))]
    return sum(sizes), len(sizes) - 1


def _has_extremes(value: Any) -> bool:
    """Return whether there are many numbers that take long to divide."""
    extremes = sum(
        isinstance(item, int | float) and not -EXACT < item < EXACT
        for level in levels_of(value)
        for item in level
    )
    return extremes > MAX_EXTREME


def _names_in(schema: Any) -> Iterator[str]:
    """Yield the names of members in a schema."""
    for node in objects_in(schema):
        if isinstance(properties := node.get("properties"), Mapping):
            yield from properties
        if isinstance(required := node.get("required"), list):
            yield from (name for name in required if isinstance(name, str))


def _beginning(value: Any, max_items: int, names: frozenset[str], budget: list[int]) -> Any:
    """Return the first items of each list, and the known and some other members of each object."""
    budget[0] -= 1
    if budget[0] < 0:
        raise _TooLong
    if isinstance(value, list):
        return [_beginning(item, max_items, names, budget) for item in value[:max_items]]
    if isinstance(value, str):
        return value[:SHOWN_CHARACTERS]
    if not isinstance(value, dict):
        return value
    selected, optional_left = [], max_items
    for name in value:
        if name in names:
            selected.append(name)
        elif optional_left:
            optional_left -= 1
            selected.append(name)
    return {name: _beginning(value[name], max_items, names, budget) for name in selected}
