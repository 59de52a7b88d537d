"""What every method answers from, and the request it answers."""

from typing import Any

import msgspec

from gatepost.changes import Feed
from gatepost.keyring import KeyRing
from gatepost.mcp.era import SERVED
from gatepost.mcp.legacy import Session
from gatepost.mcp.listing import TTL_MS, Listing
from gatepost.mcp.params import SERVER_INFO, Params
from gatepost.stores.api import Records, Relay
from gatepost.streams import Streams
from gatepost.tools.api import Retry
from gatepost.tools.client import NOBODY, Client
from gatepost.tools.registry import Registry
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
    ) -> None:
        self.runner = runner
        self.registry = registry
        self.info = info
        self.keyring = keyring
        self.records = records
        self.relay = relay
        self.feed = feed
        self.streams = streams
        self.capabilities: dict[str, Any] = {"logging": {}}
        if registry.tools:
            self.capabilities["tools"] = {}
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
