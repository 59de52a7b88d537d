"""JSON whose numbers stay as they were written, from the agent to the page and from there on."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


class Number(str):
    """A number as it was written: no digit of it may get lost on the way to a person."""

    __slots__ = ()


def decoded(encoded: bytes) -> Any:
    """A JSON document, its numbers as `Number`; ValueError, also for a name that comes twice."""
    try:
        return json.loads(
            encoded,
            parse_int=Number,
            parse_float=Number,
            parse_constant=_refused,
            object_pairs_hook=_members,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def compact(value: Any, gap: str = " ") -> str:
    """A value as JSON on one line, its numbers as they were written, *gap* between its parts."""
    match value:
        case Number():
            return str(value)
        case Mapping():
            members = (f"{quoted(k)}:{gap}{compact(v, gap)}" for k, v in value.items())
            return f"{{{f',{gap}'.join(members)}}}"
        case str() | None | bool() | int() | float():
            return quoted(value)
        case Sequence():
            return f"[{f',{gap}'.join(compact(one, gap) for one in value)}]"
    raise TypeError(f"{type(value).__name__} is no JSON")


def encoded(value: Any) -> bytes:
    """The same without gaps, in UTF-8; UnicodeEncodeError for half a surrogate pair."""
    return compact(value, "").encode()


def quoted(value: Any) -> str:
    """A text, or anything else that Python's own encoder writes, as JSON."""
    return json.dumps(value, ensure_ascii=False)


def _refused(constant: str) -> Any:
    # Python writes it, and JSON has none (RFC 8259 section 6).
    raise ValueError(f"{constant} is no number")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(members := dict(pairs)) < len(pairs):
        # One reader takes the first of two, another the last (RFC 8259 section 4).
        raise ValueError("a name is there twice")
    return members
