"""The state that all methods share, and the request that a method answers."""

from collections.abc import Awaitable, Callable, Collection
from functools import wraps
from typing import Any

import msgspec

from gatepost.http.body import RunningRequests
from gatepost.http.open_streams import OpenStreams
from gatepost.mcp.change_notifications import ChangePubSub
from gatepost.mcp.jsonrpc import JsonRpcError
from gatepost.mcp.listing import PAGE_SIZE, TTL_MS, OfferLists
from gatepost.mcp.request import (
    CLIENT_CREDENTIALS,
    ENTERPRISE_MANAGED,
    SERVER_INFO,
    SKILLS,
    TASKS,
    Params,
)
from gatepost.mcp.responses import MethodResult, rate_limited
from gatepost.mcp.revisions import SERVED
from gatepost.mcp.sessions.channel import SessionRegistry
from gatepost.mcp.sessions.session import McpSession
from gatepost.mcp.tasks.task_runner import TaskRunner
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.calls.registry import Registry, Unknown
from gatepost.tools.calls.runner import Runner
from gatepost.tools.calls.tool_search import CALL
from gatepost.tools.context.client import NO_CLIENT, Client
from gatepost.tools.offers.offer import Call, IdempotencyKey, OfferKind, Tool
from gatepost_authz.caller import TenantContext

_encode = msgspec.json.encode


class ServerInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server's name and version (schema Implementation)."""

    name: str
    version: str
    title: str | None = None


class McpRequest(msgspec.Struct, frozen=True):
    """One request, checked and ready for its method."""

    caller: TenantContext
    request_id: str
    revision: str
    params: Params
    client: Client = NO_CLIENT
    session: McpSession | None = None
    """A session of an older revision; None in the modern era and for a request without one."""
    idempotency_key: IdempotencyKey | None = None
    correlation: str | None = None
    """The caller's correlation id."""
    peer: str = ""
    """The client's address (`Exchange.peer`)."""

    def call(
        self, kind: OfferKind, name: str, arguments: bytes, client: Client = NO_CLIENT
    ) -> Call:
        """Return the call of an offer other than a tool, which *client* can follow."""
        return Call(
            caller=self.caller,
            name=name,
            arguments=arguments,
            request_id=self.request_id,
            kind=kind,
            client=client,
            peer=self.peer,
        )


class McpServer:
    """
    The state that all methods share, with encoded answers that are the same for every request.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        *,
        runner: Runner,
        registry: Registry,
        info: ServerInfo,
        keyring: KeyRing,
        pubsub: ChangePubSub,
        streams: OpenStreams,
        task_runner: TaskRunner,
        session_registry: SessionRegistry,
        running_requests: RunningRequests | None = None,
        page_size: int = PAGE_SIZE,
        approval_tools: Collection[str] = (),
        needs_approval: Callable[[Tool], bool] = lambda tool: False,
    ) -> None:
        self.runner = runner
        self.registry = registry
        self.info = info
        self.keyring = keyring
        self.pubsub = pubsub
        self.streams = streams
        self.stopping = streams.stopping
        """Set when the server is about to stop; waits then end early."""
        # With `call_tool`, an agent can call any tool.
        any_tool = frozenset() if registry.source is None else frozenset({CALL})
        self.approval_tools = any_tool.union(approval_tools)
        """The tools whose calls may have to wait for an approval; see `may_ask` for the others."""
        self._needs_approval = needs_approval
        lasting = frozenset(name for name, tool in registry.tools.items() if may_last(tool))
        self.lengthy = lasting | self.approval_tools
        """The tools whose calls may become tasks; see `is_lengthy` for those of tenants."""
        self.tasks = task_runner
        self.session_registry = session_registry
        self.running_requests = RunningRequests() if running_requests is None else running_requests
        self.capabilities: dict[str, Any] = capabilities(registry)
        negotiated = extensions(registry, tasks=bool(self.lengthy))
        self.modern_capabilities = self.capabilities | negotiated
        self.meta = b',"_meta":' + _encode({SERVER_INFO: info})
        self.listing = OfferLists(registry, keyring=keyring, meta=self.meta, page_size=page_size)
        discovery = {
            "resultType": "complete",
            "supportedVersions": SERVED,
            "capabilities": self.modern_capabilities,
            "ttlMs": TTL_MS,
            "cacheScope": "private",
            "_meta": {SERVER_INFO: info},
        }
        self._discovery = discovery
        self._discovery_json = _encode(discovery)

    def may_ask(self, caller: TenantContext, name: str) -> bool:
        """Return whether calls of the tenant's own tool may have to wait for an approval."""
        tool = self.registry.tool_of_tenant(caller, name)
        return tool is not None and self._needs_approval(tool)

    def is_lengthy(self, caller: TenantContext, name: str) -> bool:
        """Return whether calls of the tenant's own tool may become tasks."""
        tool = self.registry.tool_of_tenant(caller, name)
        return tool is not None and (may_last(tool) or self._needs_approval(tool))

    async def count(self, caller: TenantContext) -> None:
        """Count a request against its caller's rate limit; raises JsonRpcError above it."""
        limited = await self.runner.requests.spend(caller)
        if limited is not None and limited.failure is not None:
            raise rate_limited(limited.failure)

    def count_message(self, caller: TenantContext) -> None:
        """Count a notification or a response; raises JsonRpcError above the rate limit."""
        limited = self.runner.requests.spend_message(caller)
        if limited is not None and limited.failure is not None:
            raise rate_limited(limited.failure)

    async def counted(self, caller: TenantContext, refusal: JsonRpcError) -> JsonRpcError:
        """Count a refused request; return *refusal*, or the rate limit's if it is exceeded."""
        if not refusal.is_counted:
            try:
                await self.count(caller)
            except JsonRpcError as limited:
                refusal.forget()
                return limited
        return refusal

    def discovery(self, caller: TenantContext) -> bytes:
        """Return the result of `server/discover`; raises StoreUnavailable."""
        instructions = self._instructions(caller)
        if not instructions:
            return self._discovery_json
        return _encode(self._discovery | {"instructions": instructions})

    def _instructions(self, caller: TenantContext) -> str:
        registry = self.registry
        return registry.visible(caller).instructions if registry.source is not None else ""

    def introduction(self, version: str, caller: TenantContext) -> bytes:
        """Return the result of `initialize`; raises StoreUnavailable."""
        introduction: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": self.capabilities,
            "serverInfo": {"name": self.info.name, "version": self.info.version},
        }
        if self.info.title and version != "2025-03-26":
            introduction["serverInfo"]["title"] = self.info.title
        if instructions := self._instructions(caller):
            introduction["instructions"] = instructions
        return _encode(introduction)

    def may_read(self, caller: TenantContext, uri: str) -> bool:
        """Return whether the caller may read this document, and so be notified of its changes."""
        try:
            offer = self.registry.offer("document", uri, caller)
        except (Unknown, StoreUnavailable):
            return False
        return offer.scopes <= caller.scopes


def capabilities(registry: Registry) -> dict[str, Any]:
    """
    Return the capabilities of both eras: only those with a working handler (V-08).

    With a source, a tenant may get offers of every kind at any time.
    """
    declared: dict[str, Any] = {"logging": {}}
    has_source = registry.source is not None
    if registry.tools or has_source:
        declared["tools"] = {"listChanged": True}
    if registry.documents or registry.templates or has_source:
        declared["resources"] = {"subscribe": True, "listChanged": True}
    if registry.prompts or has_source:
        declared["prompts"] = {"listChanged": True}
    if registry.completes or has_source:
        declared["completions"] = {}
    return declared


def may_last(tool: Tool) -> bool:
    """Return whether calls of this tool may become tasks."""
    return tool.task_support != "forbidden"


def extensions(registry: Registry, *, tasks: bool) -> dict[str, Any]:
    """Return the extensions that the newest revision negotiates (X-01)."""
    # Tokens from client credentials and from an enterprise's grant are checked like all others.
    declared: dict[str, Any] = {CLIENT_CREDENTIALS: {}, ENTERPRISE_MANAGED: {}}
    if registry.skills:
        declared[SKILLS] = {"directoryRead": True}
    if tasks:
        declared[TASKS] = {}
    return {"extensions": declared}


MethodHandler = Callable[[McpServer, McpRequest], Awaitable[MethodResult]]


def counted(handler: MethodHandler) -> MethodHandler:
    """Wrap *handler* to count its refusals, unless they are marked as counted already."""

    @wraps(handler)
    async def answer(server: McpServer, ask: McpRequest) -> MethodResult:
        try:
            return await handler(server, ask)
        except JsonRpcError as refusal:
            raise await server.counted(ask.caller, refusal) from None

    return answer
