"""Read JSON-RPC messages of an upstream strictly and bounded."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.documents.json_shape import (
    NESTING,
    decoded,
    excess,
    levels_of,
    too_deep,
    with_emptied_strings,
)
from gatepost.upstreams.connection import (
    UpstreamError,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)

MAX_VALUES = 200_000
"""
Maximum number of values of one message: a page of a thousand tools with long schemas has half as
many.
"""
DEFINITIONS_NESTING = 500
"""How deep a list may nest its definitions; a single definition that is too deep is left out."""
DEFINITIONS = frozenset({"tools", "resources", "resourceTemplates", "prompts"})
"""The members of results that list definitions."""
MAX_BATCH = 50
LONG_BYTES = 131_072
"""Data from this size on takes milliseconds to tenths of a second."""
TOO_DEEP = "sent a message that is nested too deeply"
MAX_ID = 1_024
MAX_METHOD = 255
MAX_ERROR = 10_000
"""Characters of an error's message that are kept."""


class InvalidMessage(ValueError):
    """The received data is no message; the text is the rest of a sentence about the server."""


class UpstreamResponse(msgspec.Struct, frozen=True):
    """The response to a request of ours."""

    id: int | str | None
    """None for an error whose request the server could not read."""
    outcome: UpstreamResult | UpstreamError


ReceivedMessage = UpstreamResponse | UpstreamRequest | UpstreamNotification


async def received_messages(data: bytes, *, batches: bool = False) -> list[ReceivedMessage]:
    """Return what `read_messages` does; long data is read in a thread."""
    if len(data) <= LONG_BYTES:
        return read_messages(data, batches=batches)
    return await asyncio.to_thread(read_messages, data, batches=batches)


def read_messages(data: bytes, *, batches: bool = False) -> list[ReceivedMessage]:
    """Return the message in *data*, or the messages of a batch where the revision has them."""
    value = read_json(data)
    if isinstance(value, list) and batches and 0 < len(value) <= MAX_BATCH:
        return [_message(item) for item in value]
    return [_message(value)]


def read_json(data: bytes) -> Any:
    """Decode JSON of bounded depth and number of values; raises InvalidMessage."""
    shape = data if len(data) <= 2 * MAX_VALUES else with_emptied_strings(data)
    if excess(shape, MAX_VALUES, size=len(data)) is not None:
        raise InvalidMessage("sent a message with too many values or digits")
    is_deep = too_deep(shape)
    if is_deep and too_deep(shape, DEFINITIONS_NESTING):
        raise InvalidMessage(TOO_DEEP)
    try:
        value = decoded(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise InvalidMessage("sent a message that is not JSON") from None
    if is_deep and any(depth > NESTING for depth, _ in enumerate(levels_of(_bare(value)))):
        raise InvalidMessage(TOO_DEEP)
    return value


def _bare(value: Any) -> Any:
    """Return a message without the definitions that it lists: these are judged one by one."""
    result = value.get("result") if isinstance(value, dict) else None
    if not isinstance(result, dict):
        return value
    bare = {name: item for name, item in result.items() if name not in DEFINITIONS}
    return {**value, "result": bare}


def _message(value: Any) -> ReceivedMessage:
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        raise InvalidMessage("sent a message that is not JSON-RPC 2.0")
    if "method" in value:
        return _request_or_notification(value)
    if ("result" in value) == ("error" in value):
        raise InvalidMessage("sent a response with neither or both of a result and an error")
    if "error" in value:
        return UpstreamResponse(_id(value.get("id"), none=True), _error(value["error"]))
    result = value["result"]
    if not isinstance(result, dict):
        raise InvalidMessage("sent a result that is not an object")
    return UpstreamResponse(_id(value.get("id")), UpstreamResult(result))


def _request_or_notification(value: Mapping[str, Any]) -> UpstreamRequest | UpstreamNotification:
    method, params = value["method"], value.get("params", {})
    if not isinstance(method, str) or not 0 < len(method) <= MAX_METHOD:
        raise InvalidMessage("sent a message without a usable method")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise InvalidMessage("sent parameters that are not an object")
    if "id" not in value:
        return UpstreamNotification(method, params)
    identity = _id(value["id"])
    assert identity is not None  # noqa: S101 - none=False
    return UpstreamRequest(identity, method, params)


def _id(value: Any, *, none: bool = False) -> int | str | None:
    if value is None and none:
        return None
    if isinstance(value, str) and len(value) <= MAX_ID:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)  # JSON has one kind of number
    raise InvalidMessage("sent a message whose id is neither a string nor an integer")


def _error(value: Any) -> UpstreamError:
    if not isinstance(value, dict):
        raise InvalidMessage("sent an error that is not an object")
    code, message = value.get("code"), value.get("message", "")
    if isinstance(code, bool) or not isinstance(code, int) or abs(code) > 2**53:
        raise InvalidMessage("sent an error without a usable code")
    if not isinstance(message, str):
        raise InvalidMessage("sent an error without a usable message")
    return UpstreamError(code, message[:MAX_ERROR], value.get("data"))
