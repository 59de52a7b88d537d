"""What every method answers from, and the request it answers."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from gatepost.changes import Feed
from gatepost.keyring import KeyRing
from gatepost.mcp.era import SERVED
from gatepost.mcp.legacy import Session
from gatepost.mcp.listing import PAGE_SIZE, TTL_MS, Listing
from gatepost.mcp.params import (
    CLIENT_CREDENTIALS,
    ENTERPRISE_MANAGED,
    SERVER_INFO,
    SKILLS,
    Params,
)
from gatepost.stores.api import Records, Relay
from gatepost.streams import Streams
from gatepost.tools.api import Retry
from gatepost.tools.client import NOBODY, Client
from gatepost.tools.registry import Registry, Unknown
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
    client: Client = NOBODY
    session: Session | None = None
    """Of the older revisions; None in the modern era."""
    retry: Retry | None = None


class Watched(Protocol):
    """Tasks, as far as a stream of changes needs to know them."""

    async def may_follow(self, caller: TenantContext, task_ids: Sequence[str]) -> list[str]:
        """Those of the ids that are tasks of this caller."""

    async def shown(self, caller: TenantContext, task_id: str) -> bytes | None:
        """
        The members of `notifications/tasks`, as JSON without its braces and without `_meta`; None
        when it is no task of this caller (any more).
        """


class Server:
    """What the methods answer from; everything that no request changes is encoded once."""

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        *,
        runner: Runner,
        registry: Registry,
        info: ServerInfo,
        keyring: KeyRing,
        records: Records,
        relay: Relay,
        feed: Feed,
        streams: Streams,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self.runner = runner
        self.registry = registry
        self.info = info
        self.keyring = keyring
        self.records = records
        self.relay = relay
        self.feed = feed
        self.streams = streams
        self.capabilities: dict[str, Any] = capabilities(registry)
        self.modern_capabilities = self.capabilities | extensions(registry)
        self.tasks: Watched | None = None
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
        declared["resources"] = {}
    if registry.prompts:
        declared["prompts"] = {}
    if registry.completes:
        declared["completions"] = {}
    return declared


def extensions(registry: Registry) -> dict[str, Any]:
    """What the newest revision negotiates beside its core (X-01)."""
    # Tokens of machines and those from an enterprise's own grant are checked like any other.
    declared: dict[str, Any] = {CLIENT_CREDENTIALS: {}, ENTERPRISE_MANAGED: {}}
    if registry.skills:
        declared[SKILLS] = {"directoryRead": True}
    return {"extensions": declared}
