"""What every method answers from, and the request it answers."""

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec
from starlette.types import Scope

from gatepost.changes import Feed
from gatepost.keyring import KeyRing
from gatepost.mcp.era import SERVED
from gatepost.mcp.keeper import Keeper
from gatepost.mcp.legacy import Session
from gatepost.mcp.listing import PAGE_SIZE, TTL_MS, Listing
from gatepost.mcp.params import (
    CLIENT_CREDENTIALS,
    ENTERPRISE_MANAGED,
    SERVER_INFO,
    SKILLS,
    TASKS,
    Params,
)
from gatepost.mcp.register import Register
from gatepost.streams import Streams
from gatepost.tools.api import Retry, Tool
from gatepost.tools.client import NOBODY, Client
from gatepost.tools.registry import Registry, Unknown
from gatepost.tools.runner import Runner
from gatepost.tools.underway import Underway
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
    client: Client = NOBODY
    session: Session | None = None
    """Of the older revisions; None in the modern era."""
    retry: Retry | None = None
    correlation: str | None = None
    """The caller's own id for what this is part of."""
    holder: Scope | None = None
    """See `Exchange`; None also where the answer is a stream, which waits by itself."""
    peer: str = ""
    """See `Head`."""


class Server:
    """What the methods answer from; everything that no request changes is encoded once."""

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        *,
        runner: Runner,
        registry: Registry,
        info: ServerInfo,
        keyring: KeyRing,
        feed: Feed,
        streams: Streams,
        keeper: Keeper,
        register: Register,
        underway: Underway | None = None,
        page_size: int = PAGE_SIZE,
        asking: Collection[str] = (),
    ) -> None:
        self.runner = runner
        self.registry = registry
        self.info = info
        self.keyring = keyring
        self.feed = feed
        self.streams = streams
        self.asking = frozenset(asking)
        """The tools whose calls may have to wait until a person has decided."""
        lasting = frozenset(name for name, tool in registry.tools.items() if may_last(tool))
        self.lengthy = lasting | self.asking
        """The tools whose calls may become tasks."""
        self.tasks = keeper
        self.register = register
        self.underway = Underway() if underway is None else underway
        self.capabilities: dict[str, Any] = capabilities(registry)
        negotiated = extensions(registry, tasks=bool(self.lengthy))
        self.modern_capabilities = self.capabilities | negotiated
        self.tail = b',"_meta":' + _encode({SERVER_INFO: info})
        self.listing = Listing(registry, keyring=keyring, tail=self.tail, page_size=page_size)
        shown = {
            "resultType": "complete",
            "supportedVersions": SERVED,
            "capabilities": self.modern_capabilities,
            "ttlMs": TTL_MS,
            "cacheScope": "private",
            "_meta": {SERVER_INFO: info},
        }
        self.discovery = _encode(shown)

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the server is about to stop, so that nothing should be waited for."""
        return self.streams.stopping

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

    def may_read(self, caller: TenantContext, uri: str) -> bool:
        """Whether the caller may read the document of this URI, and so hear that it changed."""
        try:
            offer = self.registry.offer("document", uri, caller)
        except Unknown:
            return False
        return offer.scopes <= caller.scopes


def capabilities(registry: Registry) -> dict[str, Any]:
    """What is declared in both eras: exactly what has handlers that work (V-08)."""
    declared: dict[str, Any] = {"logging": {}}
    if registry.tools:
        declared["tools"] = {"listChanged": True}
    if registry.documents or registry.templates:
        declared["resources"] = {"subscribe": True, "listChanged": True}
    if registry.prompts:
        declared["prompts"] = {"listChanged": True}
    if registry.completes:
        declared["completions"] = {}
    return declared


def may_last(tool: Tool) -> bool:
    """Whether calls of this tool may become tasks."""
    return tool.task_support != "forbidden"


def extensions(registry: Registry, *, tasks: bool) -> dict[str, Any]:
    """What the newest revision negotiates beside its core (X-01)."""
    # Tokens of machines and those from an enterprise's own grant are checked like any other.
    declared: dict[str, Any] = {CLIENT_CREDENTIALS: {}, ENTERPRISE_MANAGED: {}}
    if registry.skills:
        declared[SKILLS] = {"directoryRead": True}
    if tasks:
        declared[TASKS] = {}
    return {"extensions": declared}
