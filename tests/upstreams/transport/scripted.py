"""An MCP server over HTTP that a test scripts message by message, and what it was sent."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from tests.support.issuers import Receive, Scope, Send


class Posted(msgspec.Struct, frozen=True):
    """One request that arrived."""

    verb: str
    headers: Mapping[str, str]
    body: Any
    receive: Receive

    @property
    def method(self) -> str:
        """The JSON-RPC method, or the verb of a request without one."""
        return self.body.get("method", "response") if isinstance(self.body, dict) else self.verb

    @property
    def id(self) -> Any:
        return self.body.get("id")


Answer = Callable[[Posted, Send], Awaitable[None]]
JSON, EVENTS = "application/json", "text/event-stream"


async def begin(send: Send, status: int = 200, kind: str = JSON, **headers: str) -> None:
    fields = {"content-type": kind} | {n.replace("_", "-"): v for n, v in headers.items()}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def more(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def finish(send: Send, data: bytes = b"") -> None:
    await send({"type": "http.response.body", "body": data})


def raw(data: bytes, status: int = 200, kind: str = JSON, **headers: str) -> Answer:
    """An answer of exactly these bytes."""

    async def answer(posted: Posted, send: Send) -> None:
        await begin(send, status, kind, **headers)
        await finish(send, data)

    return answer


def result(value: Mapping[str, Any], **headers: str) -> Answer:
    """A JSON answer with a result."""

    async def answer(posted: Posted, send: Send) -> None:
        body = {"jsonrpc": "2.0", "id": posted.id, "result": value}
        await raw(msgspec.json.encode(body), **headers)(posted, send)

    return answer


def error(code: int, message: str, status: int = 200, data: Any = None) -> Answer:
    """A JSON answer with an error."""

    async def answer(posted: Posted, send: Send) -> None:
        body = {"code": code, "message": message, "data": data}
        whole = {"jsonrpc": "2.0", "id": posted.id, "error": body}
        await raw(msgspec.json.encode(whole), status)(posted, send)

    return answer


def event(value: Any, identity: str = "") -> bytes:
    """A message as one event of a stream."""
    line = f"id: {identity}\n".encode() if identity else b""
    return line + b"data: " + msgspec.json.encode(value) + b"\n\n"


def final(posted: Posted, value: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": posted.id, "result": value or {"content": []}}


async def until(condition: Callable[[], object], within: float = 20) -> None:
    """Return once *condition* holds, of which another thread or process takes care."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - no event crosses to this loop
            await asyncio.sleep(0.01)


async def stall(posted: Posted) -> None:
    """Answer nothing until the client goes."""
    while (await posted.receive())["type"] != "http.disconnect":
        pass


DESCRIPTION = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {"listChanged": True}},
    "resultType": "complete",
}
HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "logging": {}},
    "serverInfo": {"name": "scripted", "version": "1"},
}


class ScriptedServer:
    """Answers by JSON-RPC method, or by verb; it is modern unless told otherwise."""

    def __init__(self) -> None:
        self.seen: list[Posted] = []
        self.answers: dict[str, Answer] = {
            "server/discover": result(DESCRIPTION),
            "tools/list": result({"tools": []}),
        }
        self.changed = asyncio.Event()

    def has_sessions(self, *ids: str, revision: str = "2025-11-25") -> None:
        """Speak an older revision; each handshake opens the next session of *ids*."""
        left = list(ids)

        async def initialize(posted: Posted, send: Send) -> None:
            headers = {"mcp_session_id": left.pop(0)} if left else {}
            await result(HANDSHAKE | {"protocolVersion": revision}, **headers)(posted, send)

        self.answers["server/discover"] = error(-32601, "no such method", 404)
        self.answers["initialize"] = initialize
        for method in ("notifications/initialized", "notifications/cancelled", "response"):
            self.answers[method] = raw(b"", 202)
        self.answers["DELETE"] = raw(b"", 200)
        self.answers["GET"] = raw(b"", 405)

    def of(self, method: str) -> list[Posted]:
        """What arrived for a method."""
        return [one for one in self.seen if one.method == method]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, unfinished = b"", True
        while unfinished:
            message = await receive()
            body += message.get("body", b"")
            unfinished = message.get("more_body", False)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        posted = Posted(
            scope["method"], headers, msgspec.json.decode(body) if body else None, receive
        )
        self.seen.append(posted)
        await self.answers.get(posted.method, error(-32601, "no such method", 404))(posted, send)
