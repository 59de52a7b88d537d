"""An MCP server that costs as little as possible, behind the gateways: every path is one server."""

import json
from typing import Any

import msgspec

from bench.servers.floor import Receive, Send
from bench.servers.settings import Settings, serve
from bench.workload import REVISION, TEXT

SESSION_REVISION = "2025-11-25"
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
CONTENT: dict[str, Any] = {"content": [{"type": "text", "text": TEXT}], "isError": False}
NO_METHOD = {"error": {"code": -32601, "message": "Method not found"}}


class UpstreamMessage(msgspec.Struct):
    """What decides the answer to a message."""

    method: str
    id: msgspec.Raw = msgspec.Raw()


def results(tools: int) -> dict[str, bytes]:
    """Return the encoded members of each answer, by method."""
    info = {"name": "upstream", "version": "1"}
    names = ["echo", *(f"tool_{number:03}" for number in range(1, tools))]
    definitions = [
        {
            "name": name,
            "description": "Answer the text that was sent.",
            "inputSchema": SCHEMA,
            "annotations": {"readOnlyHint": True},
        }
        for name in names
    ]
    cacheable = {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "private"}
    discovered = {
        "supportedVersions": [REVISION],
        "capabilities": {"tools": {}},
        "_meta": {"io.modelcontextprotocol/serverInfo": info},
    }
    opened = {
        "protocolVersion": SESSION_REVISION,
        "capabilities": {"tools": {}},
        "serverInfo": info,
    }
    values = {
        "server/discover": discovered | cacheable,
        "initialize": opened,
        "tools/list": {"tools": definitions} | cacheable,
        "tools/call": {"resultType": "complete"} | CONTENT,
        "ping": {},
    }
    return {method: members({"result": value}) for method, value in values.items()}


def members(value: dict[str, Any]) -> bytes:
    """Return the members of an object without its opening brace."""
    return json.dumps(value, separators=(",", ":")).encode()[1:]


class UpstreamApp:
    """Answers constants; only the id is that of the request."""

    def __init__(self, tools: int) -> None:
        self._results = results(tools)
        self._unknown = members(NO_METHOD)
        self._read = msgspec.json.Decoder(UpstreamMessage).decode

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await respond(send, 405, b"")
            return
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        request = self._read(body)
        identity = bytes(request.id)
        if not identity:
            await respond(send, 202, b"")
            return
        members = self._results.get(request.method, self._unknown)
        await respond(send, 200, b'{"jsonrpc":"2.0","id":' + identity + b"," + members)


async def respond(send: Send, status: int, body: bytes) -> None:
    """Send a whole answer."""
    length = (b"content-length", str(len(body)).encode())
    headers = [(b"content-type", b"application/json"), length]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    settings = Settings.read()
    serve(UpstreamApp(settings.tools), settings, lifespan="off")
