"""The method table: name → who may ask it in which era, and what answers."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import UNSET

from gatepost.mcp.era import SERVED
from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused
from gatepost.mcp.listing import TTL_MS, Listing
from gatepost.mcp.params import SERVER_INFO, Params
from gatepost.mcp.project import call_result
from gatepost.tools.api import Call, ProgressSink
from gatepost.tools.registry import Registry, UnknownTool
from gatepost.tools.runner import Runner
from gatepost_authz.caller import TenantContext

_encode = msgspec.json.encode


class ServerInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the server introduces itself (schema Implementation)."""

    name: str
    version: str
    title: str | None = None


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One request, ready for its method."""

    caller: TenantContext
    request_id: str
    revision: str
    params: Params
    report: ProgressSink | None = None


class Server:
    """What the methods answer from; everything that no request changes is encoded once."""

    def __init__(self, runner: Runner, registry: Registry, info: ServerInfo) -> None:
        self.runner = runner
        self.registry = registry
        self.info = info
        self.capabilities: dict[str, Any] = {"tools": {}} if registry.tools else {}
        self.tail = b',"_meta":' + _encode({SERVER_INFO: info})
        self.listing = Listing(registry, tail=self.tail)
        shown = {
            "resultType": "complete",
            "supportedVersions": SERVED,
            "capabilities": self.capabilities,
            "ttlMs": TTL_MS,
            "cacheScope": "private",
            "_meta": {SERVER_INFO: info},
        }
        self.discovery = _encode(shown)

    def introduction(self, version: str) -> bytes:
        """The result of `initialize`."""
        shown: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": self.capabilities,
            "serverInfo": {"name": self.info.name, "version": self.info.version},
        }
        if self.info.title and version != "2025-03-26":
            shown["serverInfo"]["title"] = self.info.title
        return _encode(shown)


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


async def call_tool(server: Server, ask: Ask) -> bytes:
    """`tools/call`; AuthError from the runner is the endpoint's to answer."""
    call = Call(
        caller=ask.caller,
        tool=tool_name(ask.params),
        arguments=tool_arguments(ask.params),
        request_id=ask.request_id,
        report=ask.report,
    )
    try:
        outcome = await server.runner.run(call)
    except UnknownTool as unknown:
        raise unknown_tool(unknown.name) from None
    return call_result(outcome, ask.revision, server.tail)


def tool_name(params: Params) -> str:
    """The tool a call names; raises Refused."""
    if params.name is UNSET:
        raise Refused(INVALID_PARAMS, "params.name is required")
    return params.name


def tool_arguments(params: Params) -> bytes:
    """The arguments of a call as JSON of an object; raises Refused."""
    raw = b"{}" if params.arguments is UNSET else bytes(params.arguments)
    if raw[:1] == b"{":
        return raw
    if raw == b"null":
        return b"{}"
    raise Refused(INVALID_PARAMS, "params.arguments must be an object")


def unknown_tool(name: str) -> Refused:
    """The same words for a tool that is not there and one that this caller cannot reach."""
    return Refused(INVALID_PARAMS, f"Unknown tool: {name[:64]}")


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
