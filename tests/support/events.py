"""Event streams that a test reads while they last, and two endpoints that are one server."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from gatepost.mcp.endpoint import DEFAULT_LIMITS, EndpointLimits
from gatepost.storage.records import Records
from gatepost.tools.api import Tool
from gatepost_authz.caller import TenantContext
from gatepost_authz.middleware import CALLER
from tests.support.mcp import JSON, Client, Header, block_of, message

WITHIN_S = 20


class Live:
    """One exchange under way; what it sends is read piece by piece."""

    def __init__(
        self, client: Client, verb: str, body: bytes, headers: Iterable[Header], *, slow: bool
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._blocks: asyncio.Queue[dict[str, str] | None] = asyncio.Queue()
        self._left = b""
        self._hung_up = asyncio.Event()
        self._head = asyncio.Event()
        self._reads = asyncio.Event()
        self._took = asyncio.Event()
        self.taken = 0
        """Messages that the connection took."""
        if not slow:
            self._reads.set()
        self._unread = [{"type": "http.request", "body": body, "more_body": False}]
        scope = {
            "type": "http",
            "method": verb,
            "path": "/mcp",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            CALLER: client.caller,
            "gatepost.request_id": "request-1",
        }
        work = client.endpoint(scope, self._receive, self._send)
        self.task = asyncio.get_running_loop().create_task(_whole(work))

    async def _receive(self) -> dict[str, Any]:
        if self._unread:
            return self._unread.pop()
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, sent: Any) -> None:
        if self._hung_up.is_set():
            return  # as the real server does: what nobody gets is dropped
        if sent["type"] == "http.response.start":
            self.status = sent["status"]
            self.headers = {name.decode(): value.decode() for name, value in sent["headers"]}
            self._head.set()
            return
        await self._reads.wait()
        self.taken += 1
        self._took.set()
        self._took = asyncio.Event()
        *blocks, self._left = (self._left + sent.get("body", b"")).split(b"\n\n")
        for block in filter(None, map(block_of, blocks)):
            self._blocks.put_nowait(block)
        if not sent.get("more_body"):
            self._blocks.put_nowait(None)

    def read(self) -> None:
        """A slow client reads at last."""
        self._reads.set()

    async def opened(self) -> "Live":
        """Wait for the head of the answer."""
        await asyncio.wait_for(self._head.wait(), WITHIN_S)
        return self

    async def took(self, number: int) -> None:
        """Wait until the connection took so many messages."""
        async with asyncio.timeout(WITHIN_S):
            while self.taken < number:
                await self._took.wait()

    async def block(self) -> dict[str, str] | None:
        """The fields of the next block that is no comment; None when the answer has ended."""
        return await asyncio.wait_for(self._blocks.get(), WITHIN_S)

    async def event(self) -> tuple[str, Any]:
        """Id and JSON of the next message; an AssertionError when the stream has ended."""
        block = await self.block()
        while block is not None and not block.get("data"):
            block = await self.block()
        assert block is not None, "the stream has ended"
        return block.get("id", ""), json.loads(block["data"])

    async def rest(self) -> list[Any]:
        """All messages up to the end."""
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


async def _whole(work: Any) -> None:
    await work


class House:
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
        self.one = Client(tools, limits=limits, records=records, **more)
        self.two = Client(
            tools,
            limits=limits,
            relay=self.one.relay,
            records=self.one.records,
            keyring=self.one.keyring,
            **more,
        )
        self.version = version
        self.session = ""

    async def open(self, **capabilities: Any) -> "House":
        """Begin a session at the first process."""
        self.session = await self.one.open(self.version, capabilities=capabilities)
        return self

    def become(self, caller: TenantContext) -> None:
        """Call as somebody else from now on."""
        self.one.caller = self.two.caller = caller

    def call(
        self, client: Client, tool: str, *, identity: Any = 7, slow: bool = False, **arguments: Any
    ) -> Live:
        """Begin a `tools/call` at one of the two; it asks for progress."""
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": "p"}}
        return self.post(client, message("tools/call", params, identity=identity), slow=slow)

    def post(self, client: Client, body: bytes, *headers: Header, slow: bool = False) -> Live:
        """Begin any POST of the session."""
        return Live(client, "POST", body, [JSON, *self._named(), *headers], slow=slow)

    def get(self, client: Client, *headers: Header, slow: bool = False) -> Live:
        """Begin a GET of the session."""
        accept = ("accept", "text/event-stream")
        return Live(client, "GET", b"", [accept, *self._named(), *headers], slow=slow)

    def resume(self, client: Client, event_id: str) -> Live:
        """Begin a GET for what came after an event."""
        return self.get(client, ("last-event-id", event_id))

    async def tell(self, client: Client, method: str, params: Any = None) -> int:
        """Send a notification; the status."""
        sent = message(method, params, identity=None)
        return (await client.send(sent, [JSON, *self._named()])).status

    async def answer(self, client: Client, identity: Any, **member: Any) -> int:
        """Answer a question of the server's; the status."""
        sent = {"jsonrpc": "2.0", "id": identity, **member}
        return (await client.send(json.dumps(sent).encode(), [JSON, *self._named()])).status

    async def cancel(self, client: Client, identity: Any) -> int:
        """Take a request back; the status."""
        return await self.tell(client, "notifications/cancelled", {"requestId": identity})

    async def delete(self, client: Client) -> int:
        """End the session; the status."""
        return (await client.send(b"", self._named(), verb="DELETE")).status

    async def ping(self, client: Client) -> int:
        """Use the session; the status."""
        return (await client.send(message("ping"), [JSON, *self._named()])).status

    async def hears_no_more(self) -> None:
        """Both processes forget which sessions they know."""
        for client in (self.one, self.two):
            await client.server.register.aclose()

    def _named(self) -> list[Header]:
        return [("mcp-session-id", self.session)]
