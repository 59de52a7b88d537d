"""
Bound the cost of validation with one of pydantic's core schemas.

Validation is one step in C that cannot be interrupted, so all other calls wait for it. Its usual
cost is bounded by the number of values. This module bounds the other costs that a caller can cause.
"""

import re
from cmath import isfinite
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_core import SchemaValidator
from pydantic_core.core_schema import any_schema, no_info_after_validator_function

from gatepost.documents.json_shape import (
    MAX_VALUES,
    levels_of,
    objects_in,
    values_bound,
)
from gatepost.execution.failure import ToolFailure

MAX_COMPARED = 2_000_000
"""The limit of compared pairs in the worst case, over all lists and objects; 15 ns each."""
FEW_VALUES = 1_000
"""A document with this many values is not checked, even if all are in one set."""
MAX_LONG_NUMBERS = 1_000
"""
Numbers of more than LONG_DIGITS digits that may be divided; each takes up to 10 microseconds.
"""
LONG_DIGITS = 20
_LONG = 10**LONG_DIGITS
_BEYOND_DOUBLE = 2**1024

_SETS = ("set", "frozenset")
_COLLECTIONS = ("dict", "list", "tuple", *_SETS)
_NAMED = ("fields", "choices")
"""The keywords that contain schemas by names that an author chose."""
_NO_SCHEMAS = ("config", "default", "expected", "metadata", "serialization")
_NUMERIC = re.compile(r"[-+0-9._eE]+")
_RANDOM = frozenset({"bool", "bytes", "date", "datetime", "enum", "literal", "none", "str", "url"})
"""Types of pydantic's schemas with few values, or with hashes keyed by a secret of the process."""

_FINITE = frozenset(
    {
        *("bool", "bytes", "enum", "int", "literal", "none", "str", "url", "uuid"),
        *("default", "definition-ref", "definitions", "nullable", "tagged-union", "union"),
        *("dataclass", "dataclass-args", "dataclass-field", "dict", "frozenset", "list"),
        *("model", "model-field", "model-fields", "set", "tuple", "typed-dict", "typed-dict-field"),
    }
)
"""Types of pydantic's schemas that read no number themselves, or only a finite one."""

CheckBound = Callable[[Any], None]
"""Raises ToolFailure if a decoded document would take too long to validate."""


def bounds_of(core_schema: Any) -> list[CheckBound]:
    """Return what must be asked of a long document before it is validated with this schema."""
    parts = [*objects_in(core_schema)]
    bounds: list[tuple[bool, CheckBound]] = [
        (any(map(_makes_table, parts)), bound_tables),
        (any(part.get("type") == "json" for part in parts), bound_texts),
        (any("multiple_of" in part for part in parts), bound_long_numbers),
    ]
    return [bound for is_needed, bound in bounds if is_needed]


def reads_floats(core_schema: Any) -> bool:
    """
    Return whether validation may read a number as infinity, in a document with `1e999`.

    pydantic refuses that only where the type is a float and its own configuration says so.
    """
    return any(
        (isinstance(kind := part.get("type"), str) and kind not in _FINITE)
        or "allow" in (part.get("extra_behavior"), part.get("extra_fields_behavior"))
        for part in objects_in(core_schema)
    )


def refuse_infinity(core_schema: Any, document: Any) -> None:
    """Refuse a decoded document with an integer that this schema may read as infinity."""
    is_long = any(
        isinstance(node, int) and abs(node) >= _BEYOND_DOUBLE
        for level in levels_of(document)
        for node in level
    )
    # The configuration of a model decides whether its floats may be infinite.
    if is_long and any(part.get("type") == "float" for part in objects_in(core_schema)):
        raise ToolFailure("validation", "The arguments hold a number that is out of range.")


def failing_fast(core_schema: Any) -> SchemaValidator:
    """
    Return the validator of the schema with lists and objects that are left at their first error.

    pydantic otherwise builds a validation error for each of 40,000 items, with an exception for
    each if the item's type or validator is written in Python.
    """
    schema = _rewritten(
        core_schema,
        lambda part: part | {"fail_fast": True} if part.get("type") in _COLLECTIONS else part,
    )
    # The validators inside a prebuilt one would continue after their first error.
    return SchemaValidator(schema, _use_prebuilt=False)


def _reads_numbers_in_texts(core_schema: Any) -> bool:
    """Return whether validation may read a number in a text, where `reads_floats` finds none."""
    return any(
        part.get("type") in ("complex", "json")
        or ("keys_schema" in part and not _is_random(part["keys_schema"]))
        for part in objects_in(core_schema)
    )


def finite_only(adapter: TypeAdapter[Any]) -> tuple[Any, SchemaValidator]:
    """Return the schema and the validator of arguments, which take no infinity and NaN in texts."""
    if not _reads_numbers_in_texts(adapter.core_schema):
        return adapter.core_schema, cast("SchemaValidator", adapter.validator)
    schema = _rewritten(adapter.core_schema, _finite)
    # The validators inside a prebuilt one would be those of the schema before.
    return schema, SchemaValidator(schema, _use_prebuilt=False)


def _finite(part: dict[str, Any]) -> dict[str, Any]:
    # Not a validator before the one of a text: a union would then prefer the text to its JSON.
    match part.get("type"):
        case "float":
            return part | {"allow_inf_nan": False}
        case "json":
            return part if "schema" in part else part | {"schema": _finite_any()}
        case "any":
            return _finite_any(part)
        case "complex":
            return _with_check(_finite_value, part)
        case "model" | "typed-dict" | "dataclass" if _takes_extras(part):
            return _with_check(_finite_extras, part)
    return part


def _takes_extras(part: Mapping[str, Any]) -> bool:
    config = part.get("config", {})
    return "allow" in (part.get("extra_behavior"), config.get("extra_fields_behavior"))


def _finite_any(part: Any = None) -> dict[str, Any]:
    return _with_check(_finite_value, part or any_schema())


def _with_check(check: Callable[[Any], Any], part: Any) -> dict[str, Any]:
    part = dict(part)
    # References lead to the schema with its check.
    ref = {"ref": part.pop("ref")} if "ref" in part else {}
    return dict(no_info_after_validator_function(check, part)) | ref


def _finite_value(value: Any) -> Any:
    """Return the value of some JSON, or a number; raises ValueError if it holds infinity or NaN."""
    for level in levels_of(value):
        for node in level:
            if isinstance(node, float | complex) and not isfinite(node):
                raise ValueError("the number is out of range")
    return value


def _finite_extras(value: Any) -> Any:
    """Return an object whose members without a type are finite; raises as `_finite_value`."""
    if isinstance(value, dict):
        return _finite_value(value)
    extras = getattr(value, "__pydantic_extra__", None)
    if extras is None:
        members, declared = vars(value), value.__dataclass_fields__
        extras = {name: members[name] for name in members if name not in declared}
    _finite_value(extras)
    return value


def _rewritten(core_schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return the schema with *change* applied to it and to each schema in it."""
    if isinstance(core_schema, list | tuple):
        return type(core_schema)(_rewritten(part, change) for part in core_schema)
    if not isinstance(core_schema, dict):
        return core_schema
    return change(
        {
            key: (
                {name: _rewritten(subschema, change) for name, subschema in value.items()}
                if key in _NAMED and isinstance(value, dict)
                else value
                if key in _NO_SCHEMAS
                else _rewritten(value, change)
            )
            for key, value in core_schema.items()
        }
    )


def bound_tables(value: Any) -> None:
    """Refuse a document whose lists and objects are too long for hash tables."""
    compared = sum(
        len(node) ** 2
        for level in levels_of(value)
        for node in level
        if isinstance(node, dict | list)
    )
    if compared > MAX_COMPARED:
        raise ToolFailure(
            "validation",
            "The arguments hold too long a list or object for this tool, which makes sets of what "
            f"it is given: at most {int(MAX_COMPARED**0.5)} items are taken in one. Send less at "
            "once.",
        )


def bound_texts(value: Any) -> None:
    """Refuse a document whose texts contain too much JSON, for a tool that parses them."""
    inner = sum(
        values_bound(text.encode("utf-8", "replace"), within_texts=True) for text in _texts(value)
    )
    if inner > MAX_VALUES:
        raise ToolFailure(
            "validation",
            f"The JSON in the texts of the arguments holds more than {MAX_VALUES} values. Send "
            "less at once.",
        )


def bound_long_numbers(value: Any) -> None:
    """Refuse a document with too many long numbers, for a tool that divides its arguments."""
    long_numbers = sum(
        len(text) > LONG_DIGITS and _NUMERIC.fullmatch(text) is not None for text in _texts(value)
    ) + sum(
        isinstance(node, int | float) and abs(node) >= _LONG
        for level in levels_of(value)
        for node in level
    )
    if long_numbers > MAX_LONG_NUMBERS:
        raise ToolFailure(
            "validation",
            f"The arguments hold more than {MAX_LONG_NUMBERS} numbers of more than {LONG_DIGITS} "
            "digits. Send less at once.",
        )


def _texts(value: Any) -> Iterator[str]:
    for node in chain.from_iterable(levels_of(value)):
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            yield from node


def _makes_table(part: Mapping[str, Any]) -> bool:
    """Return whether validation hashes values that a caller chooses."""
    kind = part.get("type")
    if kind == "dict" and "keys_schema" in part:
        return not _is_random(part["keys_schema"])
    return kind in _SETS and not _is_random(part.get("items_schema"))


def _is_random(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") in _RANDOM
