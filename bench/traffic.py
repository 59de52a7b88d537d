"""Everything that clients do to a server which could leave something behind, one operation each."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

META = "io.modelcontextprotocol/"
MODERN_REVISION = "2026-07-28"
LEGACY_REVISION = "2025-11-25"
TASKS = {"extensions": {META + "tasks": {}}}
ACCEPTED_FORM = {"action": "accept", "content": {"name": "Ann"}}
MAX_LINE = 8_000_000
MAX_SHOWN = 20_000
"""Arguments that an approver can read; longer ones are refused."""
Fields = Sequence[tuple[str, str]]


class Unexpected(Exception):
    """The server answered something else than the operation expects."""


class TrafficConnection:
    """One request on a connection of its own, whose answer is read as it comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.status = 0
        self.fields: dict[str, str] = {}

    async def head(self) -> "TrafficConnection":
        """Read the head of the answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        self.status = int(first.split()[1])
        pairs = (line.partition(":") for line in lines)
        self.fields = {name.lower(): value.strip() for name, _, value in pairs}
        return self

    async def event(self) -> Any:
        """Read the next message of an event stream."""
        if self.fields.get("content-type") != "text/event-stream":
            raise Unexpected(f"{self.status} {str(await self.answer())[:500]}")
        while not (line := await self._reader.readline()).startswith(b"data: {"):
            if not line:
                raise Unexpected("the stream has ended")
        return json.loads(line.removeprefix(b"data: "))

    async def answer(self) -> Any:
        """Read the rest; the last message of an event stream, or the body as JSON."""
        if self.fields.get("content-type") == "text/event-stream":
            while "result" not in (message := await self.event()) and "error" not in message:
                pass
            return message
        body = await self._reader.readexactly(int(self.fields.get("content-length", 0)))
        return json.loads(body) if body else None

    def close(self) -> None:
        """Drop the connection, whatever is still to come."""
        self._writer.close()


class BenchTraffic:
    """
    One caller of one server; every operation sends a text of *size* characters as argument.

    *address* is where the server listens, *authority* and *path* are those of its endpoint.
    """

    def __init__(self, address: tuple[str, int], authority: str, path: str, token: str) -> None:
        self._address, self._authority, self._path = address, authority, path
        self._token = token
        self._numbers = count(1)
        self._opened: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self) -> None:
        """Open the connection of the next request in advance."""
        self._opened = await asyncio.open_connection(*self._address, limit=MAX_LINE)

    async def send(self, verb: str, fields: Fields, body: bytes = b"") -> TrafficConnection:
        """Send one request."""
        if self._opened is None:
            await self.connect()
        (reader, writer), self._opened = self._opened, None
        common = [
            ("Host", self._authority),
            ("Authorization", f"Bearer {self._token}"),
            ("Accept", "application/json, text/event-stream"),
            ("Connection", "close"),
            *((("Content-Type", "application/json"),) if body else ()),
            ("Content-Length", str(len(body))),
        ]
        lines = [f"{verb} {self._path} HTTP/1.1", *(f"{n}: {v}" for n, v in (*common, *fields))]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        await writer.drain()
        return TrafficConnection(reader, writer)

    async def begin(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        capabilities: Mapping[str, Any] | None = None,
        fields: Fields = (),
        **meta: Any,
    ) -> TrafficConnection:
        """Send one request of 2026-07-28."""
        meta_fields = {
            META + "protocolVersion": MODERN_REVISION,
            META + "clientCapabilities": capabilities or {},
        }
        name = params.get("name") or params.get("taskId")
        mirrored = [("MCP-Protocol-Version", MODERN_REVISION), ("Mcp-Method", method)]
        if name:
            mirrored.append(("Mcp-Name", str(name)))
        body = _message(method, {**params, "_meta": {**meta_fields, **meta}}, next(self._numbers))
        return await self.send("POST", [*mirrored, *fields], body)

    async def ask(self, method: str, params: Mapping[str, Any], **options: Any) -> Any:
        """Send one request of 2026-07-28 and return its result."""
        connection = await self.begin(method, params, **options)
        try:
            answer = await (await connection.head()).answer()
        finally:
            connection.close()
        if not isinstance(answer, dict) or "result" not in answer:
            raise Unexpected(f"{connection.status} {str(answer)[:500]}")
        return answer["result"]

    async def call(self, tool: str, size: int, **options: Any) -> Any:
        """Call a tool with a text of so many characters."""
        return await self.ask("tools/call", _arguments(tool, size), **options)

    async def objects(self) -> dict[str, int]:
        """Return the live objects of the server by type."""
        counts: dict[str, int] = (
            await self.ask("tools/call", {"name": "objects", "arguments": {}})
        )["structuredContent"]
        return counts

    async def calls(self, size: int) -> None:
        """Make a plain call."""
        await self.call("take", size)

    async def lists(self, size: int) -> None:
        """List the tools."""
        await self.ask("tools/list", {})

    async def progress(self, size: int) -> None:
        """Make a call that reports and logs more than goes out."""
        await self.call("report", size, progressToken="p", **{META + "logLevel": "debug"})

    async def nested(self, size: int) -> None:
        """Make a call that calls another tool, which reports."""
        await self.call("nest", size, progressToken="p")

    async def threads(self, size: int) -> None:
        """Make a call that runs in a thread."""
        await self.call("block", size, progressToken="p")

    async def failures(self, size: int) -> None:
        """Make calls that fail, with an unforeseen error and without progress."""
        await self.call("fail", size, progressToken="p")
        await self.call("fail", size)

    async def timeouts(self, size: int) -> None:
        """Make a call that takes too long, with and without progress."""
        await self.call("linger", size, progressToken="p")
        await self.call("linger", size)

    async def retried(self, size: int) -> None:
        """Make a call with an idempotency key twice."""
        key = [("Idempotency-Key", f"key-{next(self._numbers)}-{id(self)}")]
        for _ in range(2):
            await self.call("report", size, fields=key)

    async def tasks(self, size: int) -> None:
        """Make a call that becomes a task, and poll it until it has ended."""
        result = await self.call("compute", size, capabilities=TASKS)
        while result["resultType"] == "task" or result.get("status") == "working":
            if (identity := result.get("taskId")) is None:
                return
            result = await self.ask("tasks/get", {"taskId": identity}, capabilities=TASKS)
            await asyncio.sleep(0.02)

    async def elicitations(self, size: int) -> None:
        """Make a call that asks, and the next round with the answer."""
        able = {"elicitation": {}}
        needed = await self.call("ask", size, capabilities=able)
        answers = dict.fromkeys(needed["inputRequests"], ACCEPTED_FORM)
        answered = {"inputResponses": answers, "requestState": needed["requestState"]}
        await self.ask("tools/call", {**_arguments("ask", size), **answered}, capabilities=able)

    async def approvals(self, size: int) -> None:
        """Make a call that waits for an approval, and leave before it is decided."""
        params = _arguments("sign", min(size, MAX_SHOWN))
        # The same call would meet the same request, which may have been rejected meanwhile.
        params["arguments"]["text"] += f"{id(self)}-{next(self._numbers)}"
        connection = await self.begin("tools/call", params, progressToken="p")
        await (await connection.head()).event()
        connection.close()

    async def vanished(self, size: int) -> None:
        """Close the connection while its call runs, with and without progress."""
        connection = await self.begin("tools/call", _arguments("stay", size), progressToken="p")
        await (await connection.head()).event()
        connection.close()
        connection = await self.begin("tools/call", _arguments("take", size, wait_s=20.0))
        await asyncio.sleep(0.1)
        connection.close()

    async def half_sent(self, size: int) -> None:
        """Close the connection while the request is being sent."""
        connection = await self.send("POST", [("Content-Length", str(size + 10))], b"{")
        connection.close()

    async def subscriptions(self, size: int) -> None:
        """Open a stream of changes and close it."""
        filters = {"notifications": {"toolsListChanged": True}}
        connection = await self.begin("subscriptions/listen", filters)
        await (await connection.head()).event()
        connection.close()

    async def sessions_left(self, size: int) -> None:
        """Open a session, call and listen, and never end the session."""
        session = await self._open()
        await self._within(session, "tools/call", _arguments("report", size, with_progress=True))
        connection = await self.send("GET", [("Mcp-Session-Id", session)])
        await connection.head()
        connection.close()

    async def sessions_ended(self, size: int) -> None:
        """Open a session whose call asks, answer it, and end the session."""
        session = await self._open()
        body = _message("tools/call", _arguments("ask", size, with_progress=True), 7)
        connection = await self.send("POST", [("Mcp-Session-Id", session)], body)
        client_request = await (await connection.head()).event()
        while client_request.get("method") != "elicitation/create":
            client_request = await connection.event()
        answer = {"jsonrpc": "2.0", "id": client_request["id"], "result": ACCEPTED_FORM}
        await self._post(session, json.dumps(answer).encode())
        await connection.answer()
        connection.close()
        await self._end(session)

    async def cancelled(self, size: int) -> None:
        """Cancel a call, and end the session of another call."""
        session = await self._open()
        body = _message("tools/call", _arguments("stay", size, with_progress=True), 7)
        connection = await self.send("POST", [("Mcp-Session-Id", session)], body)
        await (await connection.head()).event()
        await self._post(session, _message("notifications/cancelled", {"requestId": 7}, None))
        connection.close()
        body = _message("tools/call", _arguments("stay", size, with_progress=True), 8)
        connection = await self.send("POST", [("Mcp-Session-Id", session)], body)
        await (await connection.head()).event()
        await self._end(session)
        connection.close()

    async def _open(self) -> str:
        params = {
            "protocolVersion": LEGACY_REVISION,
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "soak", "version": "1"},
        }
        connection = await self.send("POST", (), _message("initialize", params, 0))
        await (await connection.head()).answer()
        connection.close()
        if connection.status != 200:
            raise Unexpected(f"initialize: {connection.status}")
        return connection.fields["mcp-session-id"]

    async def _within(self, session: str, method: str, params: Mapping[str, Any]) -> Any:
        return await self._post(session, _message(method, params, 7))

    async def _post(self, session: str, body: bytes) -> Any:
        connection = await self.send("POST", [("Mcp-Session-Id", session)], body)
        try:
            return await (await connection.head()).answer()
        finally:
            connection.close()

    async def _end(self, session: str) -> None:
        connection = await self.send("DELETE", [("Mcp-Session-Id", session)])
        await connection.head()
        connection.close()


Operation = Callable[[BenchTraffic, int], Awaitable[None]]

OPERATIONS: Mapping[str, Operation] = {
    each.__name__: each
    for each in (
        BenchTraffic.calls,
        BenchTraffic.lists,
        BenchTraffic.progress,
        BenchTraffic.nested,
        BenchTraffic.threads,
        BenchTraffic.failures,
        BenchTraffic.timeouts,
        BenchTraffic.retried,
        BenchTraffic.tasks,
        BenchTraffic.elicitations,
        BenchTraffic.approvals,
        BenchTraffic.vanished,
        BenchTraffic.half_sent,
        BenchTraffic.subscriptions,
        BenchTraffic.sessions_left,
        BenchTraffic.sessions_ended,
        BenchTraffic.cancelled,
    )
}
"""What a client does, by name."""


def _arguments(
    tool: str, size: int, *, with_progress: bool = False, **further: Any
) -> dict[str, Any]:
    text = "x" * size
    params: dict[str, Any] = {"name": tool, "arguments": {"text": text, **further}}
    return params | ({"_meta": {"progressToken": "p"}} if with_progress else {})


def _message(method: str, params: Mapping[str, Any], identity: int | None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    if identity is not None:
        message["id"] = identity
    return json.dumps(message).encode()
