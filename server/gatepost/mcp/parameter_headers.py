"""Compare the `Mcp-Param-…` headers of a call with its arguments (H-10 to H-12)."""

import re
from typing import Any

import msgspec

from gatepost.documents.json_shape import decoded
from gatepost.mcp.jsonrpc import INVALID_PARAMS, JsonRpcError
from gatepost.mcp.request import (
    Exchange,
    Headers,
    Params,
    arguments_in,
    decode_value,
    mismatch,
    name_in,
)
from gatepost.mcp.tool_calls import unknown_tool
from gatepost.tools.calls.registry import Registry, UnknownTool
from gatepost.tools.offers.offer import Tool

_DECIMAL = re.compile(r"-?[0-9]{1,40}(?:\.0{1,40})?", re.ASCII)


def check_parameter_headers(registry: Registry, exchange: Exchange, params: Params) -> None:
    """Raise JsonRpcError unless the headers of a call match its arguments."""
    caller, name = exchange.caller, name_in(params)
    tool = registry.tool_of_tenant(caller, name)
    if tool is None or not tool.routed:
        return
    try:
        tool = registry.find(caller, name)
    except UnknownTool as unknown:
        # Check this before the headers: a mismatch would reveal that the tool exists.
        raise unknown_tool(unknown.name) from None
    _compare(exchange.headers, tool, arguments_in(params))


def _compare(headers: Headers, tool: Tool, arguments: bytes) -> None:
    try:
        values = decoded(arguments)
    except (msgspec.DecodeError, ValueError, RecursionError):
        # The tool's own parser might accept them: it reads 1e999 as infinity.
        raise JsonRpcError(INVALID_PARAMS, "params.arguments cannot be read") from None
    for routed in tool.routed:
        name = f"Mcp-Param-{routed.header}"
        value = _member_at(values, routed.path)
        header = headers.get(name.lower().encode())
        if value is None:
            if header is not None:
                # A proxy may have routed by this value, and the body does not have it.
                raise mismatch(name, ".".join(routed.path))
        elif isinstance(value, str | int | float) and (
            header is None or not _is_same(decode_value(header), value)
        ):
            raise mismatch(name, ".".join(routed.path))


def _member_at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(values, dict):
            return None
        values = values.get(name)
    return values


def _is_same(text: str | None, value: str | float) -> bool:
    if text is None or isinstance(value, str):
        return text == value
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    # `42` and `42.0` are the same integer (H-11). A float would lose digits.
    return bool(_DECIMAL.fullmatch(text)) and int(text.partition(".")[0]) == value
