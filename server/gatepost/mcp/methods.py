"""The method table: name → who may ask it in which era, and what answers."""

from collections.abc import Awaitable, Callable

import msgspec

from gatepost.mcp.calling import call_tool
from gatepost.mcp.server import Ask, Server

Handler = Callable[[Server, Ask], Awaitable[bytes]]


async def discover(server: Server, ask: Ask) -> bytes:
    """`server/discover`."""
    return server.discovery


async def ping(server: Server, ask: Ask) -> bytes:
    """`ping`: an empty object, with nothing in it at all."""
    return b"{}"


async def list_tools(server: Server, ask: Ask) -> bytes:
    """`tools/list`."""
    return server.listing.tools(ask.caller, ask.params, ask.revision)


class Method(msgspec.Struct, frozen=True):
    """One method: where it is served, and whether `Mcp-Name` repeats `params.name`."""

    name: str
    handler: Handler
    modern: bool = True
    legacy: bool = True
    named: bool = False


METHODS = (
    Method("server/discover", discover, legacy=False),
    Method("ping", ping, modern=False),
    Method("tools/list", list_tools),
    Method("tools/call", call_tool, named=True),
)
INITIALIZE = "initialize"
"""Served by the endpoint itself: its answer carries the session id."""

MODERN_METHODS = {method.name: method for method in METHODS if method.modern}
LEGACY_METHODS = {method.name: method for method in METHODS if method.legacy}
NAMED = frozenset(method.name for method in METHODS if method.named)
