"""Makes tool names from operations: valid everywhere, unique, the same at every start."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from gatepost_packs.openapi.description.document import OperationSummary

LONGEST = 64
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
OTHER = re.compile(r"[^a-z0-9]+", re.ASCII)


def tool_names(
    entries: Sequence[OperationSummary], prefix: str = ""
) -> Mapping[tuple[str, str], str]:
    """
    Return a name for each operation, by path and method.

    The name is the operationId in snake case, or method and path if the operationId is missing or
    not unique. Names that are still equal each get a suffix made from path and method, so that no
    name depends on the other operations, or on which operations are offered.
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
    """
    Return a name for an argument: letters, digits, `_`, `.` and `-`, at most 64, as models take it.
    """
    return re.sub(r"[^a-zA-Z0-9_.-]+", "_", name).strip("_")[:LONGEST] or "value"


def _snake(text: str) -> str:
    return OTHER.sub("_", HUMP.sub("_", text).lower()).strip("_")


def _cut(name: str) -> str:
    return name[:LONGEST]


def _suffixed(name: str, place: tuple[str, str]) -> str:
    digest = hashlib.sha256(" ".join(place).encode()).hexdigest()[:6]
    return f"{name[: LONGEST - 7].rstrip('_')}_{digest}"
