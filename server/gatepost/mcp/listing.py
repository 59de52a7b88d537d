"""What a caller is shown: the list of its tools, encoded once per permission set and revision."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from gatepost.mcp.era import MODERN
from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused
from gatepost.mcp.params import Params
from gatepost.tools.api import Tool
from gatepost.tools.registry import Registry, Visible
from gatepost_authz.caller import TenantContext

TTL_MS = 300_000
"""How long a client may keep a list; tools change when the server is configured anew."""

REMEMBERED_LISTS = 256

_encode = msgspec.json.encode


class Listing:
    """
    Lists tools in one page: a client needs them all before it can use any.

    *tail* are the encoded members that end every modern result.
    """

    def __init__(self, registry: Registry, *, tail: bytes) -> None:
        self._registry = registry
        self._tail = tail
        self._encoded: dict[tuple[Visible, str], bytes] = {}

    def tools(self, caller: TenantContext, params: Params, revision: str) -> bytes:
        """The result of `tools/list`; Refused for a cursor, since none was ever given out."""
        if params.cursor is not UNSET and params.cursor is not None:
            raise Refused(INVALID_PARAMS, "Invalid cursor")
        key = (self._registry.visible(caller), revision)
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = self._encode(key[0], revision)
            if len(self._encoded) >= REMEMBERED_LISTS:
                self._encoded.pop(next(iter(self._encoded)))
            self._encoded[key] = encoded
        return encoded

    def _encode(self, visible: Visible, revision: str) -> bytes:
        tools = _encode([described(tool, revision) for tool in visible.tools])
        if revision != MODERN:
            return b'{"tools":' + tools + b"}"
        # Private: what is listed depends on the caller's scopes.
        hints = b',"ttlMs":%d,"cacheScope":"private"' % TTL_MS
        return b'{"resultType":"complete","tools":' + tools + hints + self._tail + b"}"


def described(tool: Tool, revision: str) -> Mapping[str, Any]:
    """A tool as one revision knows it."""
    shown: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if tool.title and revision != "2025-03-26":
        shown["title"] = tool.title
    shown["inputSchema"] = tool.input_schema
    if tool.output_schema is not None and offers_output(tool.output_schema, revision):
        shown["outputSchema"] = tool.output_schema
    if annotations := msgspec.to_builtins(tool.annotations):
        shown["annotations"] = annotations
    return shown


def offers_output(schema: Mapping[str, Any], revision: str) -> bool:
    """Whether a revision can express this output schema: before 2026 only objects."""
    if revision == MODERN:
        return True
    return revision != "2025-03-26" and schema.get("type") == "object"
