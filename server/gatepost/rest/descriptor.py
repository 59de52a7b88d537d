"""What `GET /tools` shows: tool descriptors, encoded once per permission set."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.rest.draft import as_draft_07
from gatepost.rest.projection import Refusal
from gatepost.tools.api import Tool
from gatepost.tools.registry import Registry, Visible
from gatepost_authz.caller import TenantContext

MOST_TOOLS = 100
"""How many tools this protocol lists (O10); MCP pages instead."""

REMEMBERED_LISTS = 256

_encode = msgspec.json.encode


class Descriptors:
    """The lists of a registry, each tool described once and each list encoded once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._described: dict[str, bytes] = {}
        self._lists: dict[Visible, bytes] = {}

    def of(self, caller: TenantContext) -> bytes:
        """The JSON array of the tools within the caller's reach, by name; raises Refusal."""
        visible = self._registry.visible(caller)
        encoded = self._lists.get(visible)
        if encoded is None:
            if len(visible.tools) > MOST_TOOLS:
                raise too_many(visible)
            encoded = b"[" + b",".join(self._one(tool) for tool in visible.tools) + b"]"
            if len(self._lists) >= REMEMBERED_LISTS:
                self._lists.pop(next(iter(self._lists)))
            self._lists[visible] = encoded
        return encoded

    def _one(self, tool: Tool) -> bytes:
        encoded = self._described.get(tool.name)
        if encoded is None:
            encoded = self._described[tool.name] = _encode(described(tool))
        return encoded


def described(tool: Tool) -> Mapping[str, Any]:
    """One tool descriptor object, with the four members of the protocol."""
    shown: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": as_draft_07(tool.input_schema),
    }
    # An answer that is no object comes wrapped in one, which its schema does not describe.
    if tool.output_schema is not None and tool.output_schema.get("type") == "object":
        shown["outputSchema"] = as_draft_07(tool.output_schema)
    return shown


def too_many(visible: Visible) -> Refusal:
    """The refusal of a list that clients would cut themselves, at a place of their own."""
    packs = Counter(tool.pack for tool in visible.tools if tool.pack)
    named = ", ".join(f"pack:{pack} ({count})" for pack, count in sorted(packs.items()))
    return Refusal(
        409,
        "too_many_tools",
        f"{len(visible.tools)} tools are within reach, and this protocol lists {MOST_TOOLS} at "
        "most. Give the agent fewer capabilities (`pack:NAME` for a pack, `mcp:ID` for another "
        f"server), or list them over MCP. In reach are: {named or 'tools of no pack'}.",
    )
