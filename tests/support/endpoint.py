"""The MCP endpoint in this process, driven as ASGI, with any caller before it."""

import asyncio
import base64
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.types import ASGIApp

from gatepost.http.open_streams import OpenStreams
from gatepost.mcp.change_notifications import ChangeNotification, ChangePubSub
from gatepost.mcp.endpoint import DEFAULT_LIMITS, Endpoint, EndpointLimits
from gatepost.mcp.server import McpServer, ServerInfo
from gatepost.mcp.sessions.channel import SessionRegistry
from gatepost.mcp.sessions.session import McpSessions
from gatepost.mcp.tasks.store import DEFAULT_TASK_LIMITS, TaskLimits, TaskStore
from gatepost.mcp.tasks.task_runner import TaskRunner
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.idempotency.stage import IdempotencyStage
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.storage.shared_store import MemorySharedStore, SharedStore
from gatepost.storage.tasks import TERMINAL
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.calls.stage import Stage
from gatepost.tools.context.call_context import ToolServices
from gatepost.tools.offers.offer import Call, CallContext, Offer
from gatepost.tools.offers.tenant_offers import OfferSource
from gatepost.workspace import TenantWorkspace, Workspaces
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.middleware import CALLER
from gatepost_authz.protected_resource import Resource
from gatepost_packs import demo
from tests.support.measuring import ManualClock

URL = "https://mcp.example.com/mcp"
VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
CAPABILITIES: dict[str, Any] = {}
Header = tuple[str, str]
JSON: Header = ("content-type", "application/json")


def a_caller(**changes: Any) -> TenantContext:
    """Return Alice of acme, with *changes*."""
    known: dict[str, Any] = {
        "tenant_id": "acme",
        "issuer": "https://id.example.com",
        "subject": "alice",
        "subject_kind": "user",
        "resource": URL,
        "expires_at": 2_000_000_000,
        "client_id": "some-client",
        "scopes": frozenset({"files:write"}),
    }
    return TenantContext(**{**known, **changes})


class Response(msgspec.Struct):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the body, which must be JSON and say so."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, int]:
        """Return HTTP status and JSON-RPC code."""
        return self.status, self.json["error"]["code"]

    @property
    def events(self) -> list[Any]:
        """Return the messages of an event stream, in order; each is one `data:` line."""
        assert self.headers["content-type"] == "text/event-stream"
        blocks = [block_of(block) for block in self.body.split(b"\n\n")]
        return [json.loads(block["data"]) for block in blocks if block.get("event") == "message"]


def block_of(block: bytes) -> dict[str, str]:
    """Return the fields of one block of an event stream, each of which is there once."""
    lines = [
        line.partition(": ") for line in block.decode().split("\n") if line[:1] not in ("", ":")
    ]
    fields = {name: value for name, _, value in lines}
    assert len(fields) == len(lines), block
    return fields


def http_scope(
    verb: str, path: str, headers: Iterable[Header | tuple[bytes, bytes]], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the scope of a request of ASGI; *more* is what the server adds."""
    usual = {"type": "http", "method": verb, "path": path, "query_string": b""}
    fields = [
        (name.lower().encode(), value.encode()) if isinstance(name, str) else (name, value)
        for name, value in headers
    ]
    return {**usual, "raw_path": path.encode(), "headers": fields, **more}


async def exchange(
    app: ASGIApp,
    more: Mapping[str, Any],
    headers: Iterable[Header | tuple[bytes, bytes]] = (JSON,),
    body: bytes = b"",
    *,
    verb: str = "POST",
    path: str = "/mcp",
    hang_up: asyncio.Event | None = None,
    written: asyncio.Event | None = None,
) -> Response:
    """
    Send one request to an application in this process, and return its response.

    *more* is what the server says of the request, *hang_up* ends the connection when it is set, and
    *written* is set when the answer begins. Status 0: there was no answer.
    """
    waiting = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await (hang_up or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if written is not None:
            written.set()

    await app(http_scope(verb, path, headers, more), receive, send)
    if not sent:
        return Response(0, {}, b"")
    start, *parts = sent
    fields = {name.decode(): value.decode() for name, value in start["headers"]}
    assert len(fields) == len(start["headers"]), "a header came twice"
    return Response(start["status"], fields, b"".join(part.get("body", b"") for part in parts))


class EndpointClient:
    """Talks to one endpoint in this process."""

    def __init__(
        self,
        tools: Iterable[Offer] = (),
        *,
        obtainable: frozenset[str] | None = None,
        suspended: frozenset[str] = frozenset(),
        limits: EndpointLimits = DEFAULT_LIMITS,
        workspaces: Workspaces | None = None,
        max_result_bytes: int = 4_000_000,
        page_size: int = 500,
        keyring: KeyRing | None = None,
        shared_store: SharedStore | None = None,
        records: Records | None = None,
        streams: OpenStreams | None = None,
        task_limits: TaskLimits = DEFAULT_TASK_LIMITS,
        tool_services: ToolServices | None = None,
        stages: Sequence[Stage] = (),
        approval_tools: Collection[str] = (),
        source: OfferSource | None = None,
    ) -> None:
        self.tool_services = tool_services
        self.clock = ManualClock()
        self.caller = a_caller()
        self.scope: dict[str, Any] = {}
        """What else the server says of each request."""
        self.workspaces = workspaces
        self.registry = Registry(
            [*tools] or demo.pack.tools.values(), obtainable=obtainable, source=source
        )
        self.keyring = keyring or KeyRing.ephemeral()
        self.records = records or MemoryRecords()
        self.shared_store = shared_store or MemorySharedStore()
        self.runner = self._runner(stages, max_result_bytes)
        self.pubsub = ChangePubSub(self.shared_store)
        self.streams = OpenStreams(clock=self.clock) if streams is None else streams
        task_store = TaskStore(self.records, self.pubsub, task_limits, clock=self.clock)
        self.task_runner = TaskRunner(task_store, lambda: self.runner)
        self.server = self._server(page_size, approval_tools)
        self.endpoint = Endpoint(
            self.server,
            challenge=Challenge(),
            resource=Resource(URL),
            sessions=McpSessions(self.keyring, clock=self.clock),
            suspended=suspended,
            limits=limits,
        )

    def _runner(self, stages: Sequence[Stage], max_result_bytes: int) -> Runner:
        runs = RunningCalls(self.records, self.shared_store, clock=self.clock)
        idempotency = IdempotencyStage(runs, timeout_s=30.0, max_result_bytes=max_result_bytes)
        return Runner(
            self.registry,
            context_for=self._context,
            stages=(idempotency, *stages),
            max_result_bytes=max_result_bytes,
            clock=self.clock,
        )

    def _server(self, page_size: int, approval_tools: Collection[str]) -> McpServer:
        return McpServer(
            runner=self.runner,
            registry=self.registry,
            info=ServerInfo("gatepost", "1.0"),
            keyring=self.keyring,
            page_size=page_size,
            pubsub=self.pubsub,
            streams=self.streams,
            task_runner=self.task_runner,
            session_registry=SessionRegistry(self.records, self.shared_store, clock=self.clock),
            approval_tools=approval_tools,
        )

    def _context(self, call: Call) -> CallContext:
        tenant = call.caller.tenant_id
        space = (
            self.workspaces.for_tenant(tenant) if self.workspaces else TenantWorkspace(-1, tenant)
        )
        return CallContext(
            caller=call.caller,
            request_id=call.request_id,
            workspace=space,
            correlation=call.correlation,
            depth=call.depth,
            lasting=call.lasting,
            idempotency_key=call.idempotency_key,
            client=call.client,
            changes=self.pubsub.notifier_for(tenant),
            services=self.tool_services,
        )

    async def send(
        self,
        body: bytes,
        headers: Iterable[Header] = (JSON,),
        *,
        verb: str = "POST",
        hang_up: asyncio.Event | None = None,
        written: asyncio.Event | None = None,
    ) -> Response:
        """Send exactly these bytes; *hang_up* ends the connection when it is set."""
        scope = {CALLER: self.caller, "gatepost.request_id": "request-1", **self.scope}
        return await exchange(
            self.endpoint, scope, headers, body, verb=verb, hang_up=hang_up, written=written
        )

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        drop: Iterable[str] = (),
        **headers: str,
    ) -> Response:
        """Send a modern request, id 7; *headers* replace (`mcp_name=…`), *drop* omits fields."""
        known = {META + "protocolVersion": VERSION, META + "clientCapabilities": CAPABILITIES}
        given = {**(params or {}), "_meta": {**known, **(meta or {})}}
        mirrored = {"mcp-protocol-version": VERSION, "mcp-method": method}
        named = given.get(MIRRORED_PARAMETERS.get(method, ""))
        if isinstance(named, str):
            mirrored["mcp-name"] = in_header(named)
        mirrored |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = [JSON, *((name, value) for name, value in mirrored.items() if name not in drop)]
        return await self.send(message(method, given), sent)

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Response:
        """Send a modern `tools/call`."""
        return await self.ask("tools/call", {"name": tool, "arguments": arguments or {}})

    async def open(self, version: str = "2025-11-25", **params: Any) -> str:
        """Open a new session and return its id."""
        asked = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT, **params}
        response = await self.send(message("initialize", asked, identity=0))
        assert response.json["result"]["protocolVersion"] == version
        return response.headers["mcp-session-id"]

    async def within(self, session: str, body: bytes, *headers: Header) -> Response:
        """Send one POST of a session."""
        return await self.send(body, [JSON, ("mcp-session-id", session), *headers])


CLIENT = {"name": "test", "version": "1"}
MIRRORED_PARAMETERS = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that `Mcp-Name` repeats."""


def in_header(value: str) -> str:
    """Return a value as a header carries it (H-06)."""
    if value.isascii() and value.isprintable() and value == value.strip():
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def message(method: str, params: Any = None, *, identity: Any = 7) -> bytes:
    """Return a JSON-RPC request; without an id when *identity* is None."""
    shown: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if identity is not None:
        shown["id"] = identity
    if params is not None:
        shown["params"] = params
    return json.dumps(shown).encode()


TASKS = META + "tasks"
TASK_CAPABILITIES = {"elicitation": {}, "sampling": {}, "extensions": {TASKS: {}}}
DECLARED_META = {META + "clientCapabilities": TASK_CAPABILITIES}
WITHIN_S = 20.0


class EndpointTaskClient(EndpointClient):
    """As `EndpointClient`, declaring the extension with every request unless told otherwise."""

    meta: Mapping[str, Any] = DECLARED_META

    async def start(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Start a call that must become a task, and return its result."""
        response = await self.call_with(tool, arguments)
        assert response.json["result"]["resultType"] == "task"
        return response.json["result"]

    async def call_with(
        self, tool: str, arguments: Mapping[str, Any] | None = None, **params: Any
    ) -> Response:
        """Send a call with further parameters."""
        asked = {"name": tool, "arguments": arguments or {}, **params}
        return await self.ask("tools/call", asked, meta=self.meta)

    async def about(self, method: str, task_id: str, **params: Any) -> Response:
        """Send a request about one task."""
        asked = {"taskId": task_id, **params}
        return await self.ask(f"tasks/{method}", asked, meta=self.meta, mcp_name=task_id)

    async def get(self, task_id: str) -> Any:
        """Return what `tasks/get` shows."""
        return (await self.about("get", task_id)).json["result"]

    async def answer(self, task_id: str, **responses: Any) -> Response:
        """Send `tasks/update` with these answers."""
        return await self.about("update", task_id, inputResponses=responses)

    async def until(self, task_id: str, *statuses: str) -> Any:
        """Wait until the task is in one of these states (default: ended); return `tasks/get`."""
        return await self.when(task_id, lambda task: task["status"] in (statuses or TERMINAL))

    async def when(self, task_id: str, condition: Callable[[Any], object]) -> Any:
        """Wait until *condition* holds of what `tasks/get` shows, and return that."""
        moved = asyncio.Event()

        def hear(change: ChangeNotification) -> None:
            moved.set()

        interest = await self.pubsub.follow(self.caller.tenant_id, hear)
        try:
            async with asyncio.timeout(WITHIN_S):
                while not condition(shown := await self.get(task_id)):
                    await moved.wait()
                    moved.clear()
        finally:
            interest.end()
        return shown
