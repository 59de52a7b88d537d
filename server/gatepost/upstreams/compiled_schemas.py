"""Compile the schemas of upstreams' tools once, for the review and for the offers."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any

import msgspec

from gatepost.tools.authoring.schema import ValidateJson
from gatepost.tools.schemas.raw_schema import checker

MAX_KEPT = 2_000
MAX_KEPT_BYTES = 16_384
"""The largest schema that is kept, as JSON."""


_cached_checkers: OrderedDict[bytes, ValidateJson] = OrderedDict()
_lock = Lock()


def compiled(schema: Mapping[str, Any]) -> ValidateJson:
    """
    Return `checker(schema)`, which is kept: to compile a thousand schemas takes a second.

    Servers with equal schemas share the function, which keeps nothing of what it checks. Raises
    ValueError for a schema that cannot be used.
    """
    text = msgspec.json.encode(schema)
    if len(text) > MAX_KEPT_BYTES:
        return checker(schema)
    with _lock:
        cached_checker = _cached_checkers.get(text)
        if cached_checker is not None:
            _cached_checkers.move_to_end(text)
            return cached_checker
    compiled_checker = checker(schema)
    with _lock:
        _cached_checkers[text] = compiled_checker
        while len(_cached_checkers) > MAX_KEPT:
            _cached_checkers.popitem(last=False)
    return compiled_checker
