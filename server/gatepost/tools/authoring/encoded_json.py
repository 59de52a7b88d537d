"""Check the JSON that authors give as encoded, as `Raw`, anywhere in a value."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from gatepost.documents.json_shape import decoded

_encode = msgspec.json.encode


def holds_encoded(value: Any) -> bool:
    """
    Return whether a value holds a `Raw`; True also for one that has no JSON.

    A `Raw` is written as it is: it may be no JSON, end the value around it, or hold line breaks,
    infinity or half characters. A secret in what is no JSON would not be redacted.
    """
    try:
        # It refuses a `Raw`, in a tenth of the time that it takes to search the JSON for one.
        msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError):
        return True
    return False


def checked_value(value: Any, enc_hook: Callable[[Any], Any] | None = None) -> Any:
    """
    Return a value in which a `Raw` has become what its JSON says; the same object without one.

    *enc_hook* converts objects without JSON. Raises TypeError, ValueError or RecursionError for a
    value without valid JSON.
    """
    return decoded(_encode(value, enc_hook=enc_hook)) if holds_encoded(value) else value


def checked_blocks(blocks: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return blocks without a `Raw`; raises as `checked_value` does."""
    return tuple(map(checked_value, blocks))


def checked_json(value: Any) -> bytes:
    """Return the JSON of a value on one line; raises as `checked_value` does."""
    return _encode(checked_value(value))
