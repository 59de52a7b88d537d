"""Names for tools out of operations: legal everywhere, unique, the same at every start."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from gatepost.openapi.document import Entry

LONGEST = 64
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
OTHER = re.compile(r"[^a-z0-9]+", re.ASCII)


def tool_names(entries: Sequence[Entry], prefix: str = "") -> Mapping[tuple[str, str], str]:
    """
    A name for each operation, by path and method.

    The operationId in snake case, or method and path where there is none or several have it. Of
    all that still have one name each gets a suffix made from its own path and method, so that no
    name depends on what stands beside it, or on which operations are offered.
    """
    ids = Counter(_snake(entry.operation_id) for entry in entries)
    plain = {
        (entry.path, entry.method): prefix
        + (
            _snake(entry.operation_id)
            if entry.operation_id and ids[_snake(entry.operation_id)] == 1
            else ""
        )
        for entry in entries
    }
    named = {
        place: name if name != prefix else prefix + _snake(f"{place[1]} {place[0]}")
        for place, name in plain.items()
    }
    counted = Counter(_cut(name) for name in named.values())
    return {
        place: name if len(name) <= LONGEST and counted[name] == 1 else _suffixed(name, place)
        for place, name in named.items()
    }


def argument_name(name: str) -> str:
    """A name for an argument: models take letters, digits, `_`, `.` and `-`, at most 64."""
    return re.sub(r"[^a-zA-Z0-9_.-]+", "_", name).strip("_")[:LONGEST] or "value"


def _snake(text: str) -> str:
    return OTHER.sub("_", HUMP.sub("_", text).lower()).strip("_")


def _cut(name: str) -> str:
    return name[:LONGEST]


def _suffixed(name: str, place: tuple[str, str]) -> str:
    digest = hashlib.sha256(" ".join(place).encode()).hexdigest()[:6]
    return f"{name[: LONGEST - 7].rstrip('_')}_{digest}"
