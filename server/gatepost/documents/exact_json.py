"""JSON whose numbers stay as they were written, for people who decide about them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gatepost_authz.strict_json import constant, members


class ExactNumber(str):
    """A number as it was written, so that the approver sees every digit."""

    __slots__ = ()


def decoded(encoded: bytes) -> Any:
    """Decode JSON with numbers as `ExactNumber`; ValueError, also for a repeated member name."""
    try:
        return json.loads(
            encoded,
            parse_int=ExactNumber,
            parse_float=ExactNumber,
            parse_constant=constant,
            object_pairs_hook=members,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def compact(value: Any, gap: str = " ") -> str:
    """Encode a value as JSON on one line, with numbers as written and *gap* after separators."""
    match value:
        case ExactNumber():
            return str(value)
        case Mapping():
            pairs = (f"{quoted(k)}:{gap}{compact(v, gap)}" for k, v in value.items())
            return f"{{{f',{gap}'.join(pairs)}}}"
        case str() | None | bool() | int() | float():
            return quoted(value)
        case Sequence():
            return f"[{f',{gap}'.join(compact(item, gap) for item in value)}]"
    raise TypeError(f"{type(value).__name__} is no JSON")


def encoded(value: Any) -> bytes:
    """Encode a value without gaps, in UTF-8; UnicodeEncodeError for half a surrogate pair."""
    return compact(value, "").encode()


def quoted(value: Any) -> str:
    """Encode a value with Python's own encoder."""
    return json.dumps(value, ensure_ascii=False)
