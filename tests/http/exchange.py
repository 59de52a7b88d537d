"""One request to an ASGI app, with exactly the header fields a test writes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.types import ASGIApp, Message

HOST = (b"host", b"mcp.example.com")
NOTHING: Mapping[str, Any] = {}
Pairs = tuple[tuple[bytes, bytes], ...]


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name.encode(), b"").decode() or None

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def ask(
    app: ASGIApp,
    path: str = "/mcp",
    *,
    method: str = "POST",
    headers: Pairs = (HOST,),
    scheme: str = "https",
    peer: str = "198.51.100.7",
    more: Mapping[str, Any] = NOTHING,
) -> Answer:
    """Send one request without a body; *more* of its scope."""
    sent: list[Message] = []
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": list(headers),
        "scheme": scheme,
        "client": (peer, 4711),
        "server": ("127.0.0.1", 8000),
        "http_version": "1.1",
        **more,
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], sent[0]["headers"], body)
