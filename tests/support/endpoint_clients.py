"""Further clients of endpoints in this process: open answers, any revision, and REST."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gatepost.mcp.endpoint import DEFAULT_LIMITS, EndpointLimits
from gatepost.rest.exchange import RestExchange, RestLimits
from gatepost.rest.routes import RestRoutes
from gatepost.storage.records import Records
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.offers.offer import Tool
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.middleware import CALLER
from gatepost_authz.protected_resource import Resource, SiblingPaths
from tests.support.endpoint import (
    JSON,
    META,
    URL,
    VERSION,
    EndpointClient,
    Header,
    Response,
    block_of,
    exchange,
    http_scope,
    message,
)

WITHIN_S = 20
SUBSCRIPTION = META + "subscriptionId"
COMMENT = "comment"


class OpenExchange:
    """One exchange under way; what it sends is read piece by piece."""

    def __init__(
        self,
        client: EndpointClient,
        verb: str,
        body: bytes,
        headers: Iterable[Header],
        *,
        slow: bool = False,
        caller: TenantContext | None = None,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._blocks: asyncio.Queue[dict[str, str] | str | None] = asyncio.Queue()
        self._left = b""
        self._hung_up = asyncio.Event()
        self._head = asyncio.Event()
        self.reading = asyncio.Event()
        """Cleared: the client reads nothing."""
        self.is_waiting = False
        """Whether the endpoint waits for the client to hang up."""
        self._took = asyncio.Event()
        self.taken = 0
        """Messages that the connection took."""
        if not slow:
            self.reading.set()
        self._unread = [{"type": "http.request", "body": body, "more_body": False}]
        more = {CALLER: caller or client.caller, "gatepost.request_id": "request-1"}
        self.scope = http_scope(verb, "/mcp", headers, more)
        """It lasts as long as the exchange."""
        work = client.endpoint(self.scope, self._receive, self._send)
        self.task = asyncio.get_running_loop().create_task(_run(work))

    async def _receive(self) -> dict[str, Any]:
        if self._unread:
            return self._unread.pop()
        self.is_waiting = True
        try:
            await self._hung_up.wait()
        finally:
            self.is_waiting = False
        return {"type": "http.disconnect"}

    async def _send(self, sent: Any) -> None:
        if self._hung_up.is_set():
            return  # as the real server does: an event without a reader is dropped
        if sent["type"] == "http.response.start":
            self.status = sent["status"]
            self.headers = {name.decode(): value.decode() for name, value in sent["headers"]}
            self._head.set()
            return
        await self.reading.wait()
        self.taken += 1
        self._took.set()
        self._took = asyncio.Event()
        *blocks, self._left = (self._left + sent.get("body", b"")).split(b"\n\n")
        for block in filter(None, blocks):
            self._blocks.put_nowait(block_of(block) or COMMENT)
        if not sent.get("more_body"):
            self._blocks.put_nowait(None)

    async def opened(self) -> "OpenExchange":
        """Wait for the head of the answer."""
        await asyncio.wait_for(self._head.wait(), WITHIN_S)
        return self

    async def wait_for_sends(self, number: int) -> None:
        """Wait until the connection took so many messages."""
        async with asyncio.timeout(WITHIN_S):
            while self.taken < number:
                await self._took.wait()

    async def block(self) -> dict[str, str] | None:
        """Return the fields of the next block that is no comment; None after the last."""
        while isinstance(block := await asyncio.wait_for(self._blocks.get(), WITHIN_S), str):
            pass
        return block

    async def frame(self) -> Any:
        """Return the next message; COMMENT for a keep-alive comment, None for the stream's end."""
        block = await asyncio.wait_for(self._blocks.get(), WITHIN_S)
        if block is None or isinstance(block, str):
            return block
        assert (block.keys(), block["event"]) == ({"event", "data"}, "message")
        return json.loads(block["data"])

    async def next(self) -> Any:
        """Return the next message after any keep-alive comments; None for the end."""
        while (found := await self.frame()) == COMMENT:
            pass
        return found

    async def acknowledged(self) -> Any:
        """Return the filter as it is honoured, which comes first."""
        first = await self.next()
        assert first["method"] == "notifications/subscriptions/acknowledged"
        return first["params"]["notifications"]

    async def event(self) -> tuple[str, Any]:
        """Return id and JSON of the next message; assert that the stream has not ended."""
        block = await self.block()
        while block is not None and not block.get("data"):
            block = await self.block()
        assert block is not None, "the stream has ended"
        return block.get("id", ""), json.loads(block["data"])

    async def rest(self) -> list[Any]:
        """Return all messages up to the end."""
        found = []
        while (block := await self.block()) is not None:
            if block.get("data"):
                found.append(json.loads(block["data"]))
        return found

    def hang_up(self) -> None:
        """Drop the connection."""
        self._hung_up.set()
        self._blocks.put_nowait(None)

    async def over(self) -> None:
        """Wait until the server is through with the exchange."""
        await asyncio.wait_for(asyncio.shield(self.task), WITHIN_S)


async def _run(work: Any) -> None:
    await work


class EndpointPair:
    """Two processes behind one name: what one keeps, the other finds."""

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        limits: EndpointLimits = DEFAULT_LIMITS,
        version: str = "2025-11-25",
        records: Records | None = None,
        **more: Any,
    ) -> None:
        tools = [*tools]
        self.one = EndpointClient(tools, limits=limits, records=records, **more)
        self.two = EndpointClient(
            tools,
            limits=limits,
            shared_store=self.one.shared_store,
            records=self.one.records,
            keyring=self.one.keyring,
            **more,
        )
        self.version = version
        self.session = ""

    async def open(self, **capabilities: Any) -> "EndpointPair":
        """Begin a session at the first process."""
        self.session = await self.one.open(self.version, capabilities=capabilities)
        return self

    def become(self, caller: TenantContext) -> None:
        """Call as another caller from now on."""
        self.one.caller = self.two.caller = caller

    def call(
        self,
        client: EndpointClient,
        tool: str,
        *,
        identity: Any = 7,
        slow: bool = False,
        **arguments: Any,
    ) -> OpenExchange:
        """Begin a `tools/call` at one of the two; it asks for progress."""
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": "p"}}
        return self.post(client, message("tools/call", params, identity=identity), slow=slow)

    def post(
        self, client: EndpointClient, body: bytes, *headers: Header, slow: bool = False
    ) -> OpenExchange:
        """Begin any POST of the session."""
        return OpenExchange(client, "POST", body, [JSON, *self._named(), *headers], slow=slow)

    def get(self, client: EndpointClient, *headers: Header, slow: bool = False) -> OpenExchange:
        """Begin a GET of the session."""
        accept = ("accept", "text/event-stream")
        return OpenExchange(client, "GET", b"", [accept, *self._named(), *headers], slow=slow)

    def resume(self, client: EndpointClient, event_id: str) -> OpenExchange:
        """Begin a GET for what came after an event."""
        return self.get(client, ("last-event-id", event_id))

    async def tell(self, client: EndpointClient, method: str, params: Any = None) -> int:
        """Send a notification; the status."""
        sent = message(method, params, identity=None)
        return (await client.send(sent, [JSON, *self._named()])).status

    async def answer(self, client: EndpointClient, identity: Any, **member: Any) -> int:
        """Answer a question of the server's; the status."""
        sent = {"jsonrpc": "2.0", "id": identity, **member}
        return (await client.send(json.dumps(sent).encode(), [JSON, *self._named()])).status

    async def cancel(self, client: EndpointClient, identity: Any) -> int:
        """Take a request back; the status."""
        return await self.tell(client, "notifications/cancelled", {"requestId": identity})

    async def delete(self, client: EndpointClient) -> int:
        """End the session; the status."""
        return (await client.send(b"", self._named(), verb="DELETE")).status

    async def ping(self, client: EndpointClient) -> int:
        """Use the session; the status."""
        return (await client.send(message("ping"), [JSON, *self._named()])).status

    async def forget_sessions(self) -> None:
        """Let both processes forget which sessions they know."""
        for client in (self.one, self.two):
            client.server.session_registry.close()

    def _named(self) -> list[Header]:
        return [("mcp-session-id", self.session)]


@asynccontextmanager
async def open_subscription(
    client: EndpointClient,
    wanted: Mapping[str, Any],
    *,
    identity: Any = 7,
    caller: TenantContext | None = None,
    meta: Mapping[str, Any] | None = None,
    **params: Any,
) -> AsyncIterator[OpenExchange]:
    """Yield a stream for *wanted* (`params.notifications`); hang up at the end of the block."""
    known = {META + "protocolVersion": VERSION, META + "clientCapabilities": {}, **(meta or {})}
    asked = {"notifications": wanted, "_meta": known, **params}
    body = message("subscriptions/listen", asked, identity=identity)
    headers = [
        JSON,
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", VERSION),
        ("mcp-method", "subscriptions/listen"),
    ]
    stream = OpenExchange(client, "POST", body, headers, caller=caller)
    await stream.opened()
    try:
        yield stream
    finally:
        stream.hang_up()
        stream.reading.set()
        await stream.over()


REVISIONS = [VERSION, "2025-11-25", "2025-06-18", "2025-03-26"]


async def ask(client: EndpointClient, revision: str, method: str, **params: Any) -> Response:
    """Send one request in the form of a revision."""
    if revision == VERSION:
        return await client.ask(method, params)
    return await client.within(await client.open(revision), message(method, params))


async def result_of(
    client: EndpointClient, revision: str, method: str, **params: Any
) -> dict[str, Any]:
    """Send one request in the form of a revision, and return its result."""
    result: dict[str, Any] = (await ask(client, revision, method, **params)).json["result"]
    return result


class RestEndpoint:
    """Talks to the routes of tools over this runner and registry."""

    def __init__(
        self, runner: Runner, registry: Registry, *, limits: RestLimits | None = None
    ) -> None:
        exchange = RestExchange(
            challenge=Challenge(),
            resource_of=SiblingPaths(Resource(URL)),
            limits=limits or RestLimits(),
            requests=runner.requests,
        )
        self.routes = RestRoutes(runner, registry, exchange)

    async def tools(self, caller: TenantContext) -> Response:
        more = {CALLER: caller, "path_params": {}}
        return await exchange(self.routes.list_tools, more, verb="GET", path="/tools")

    async def call(
        self, caller: TenantContext, tool: str, arguments: Mapping[str, Any] | None = None
    ) -> Response:
        return await self.post(caller, tool, json.dumps(arguments or {}).encode())

    async def post(self, caller: TenantContext, tool: str, body: bytes) -> Response:
        """Call a tool with exactly these bytes."""
        more = {CALLER: caller, "path_params": {"name": tool}}
        path = f"/tool/{tool}/call"
        return await exchange(self.routes.call_tool, more, body=body, path=path)
