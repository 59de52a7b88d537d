"""The floor of a gateway: one POST to the upstream for each request, by the same HTTP library."""

from contextlib import AsyncExitStack
from typing import Any

import httpx2

from bench.servers.floor import Receive, Send
from bench.servers.settings import Settings, serve
from bench.servers.upstream import respond

LIMITS = httpx2.Limits(max_connections=128, max_keepalive_connections=32, keepalive_expiry=4)
"""Those of Gatepost's connections to one upstream."""
PASSED = frozenset({b"accept", b"content-type", b"mcp-protocol-version", b"mcp-method"})


class ForwardApp:
    """Checks nothing; sends the body on with the headers that an MCP server needs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx2.AsyncClient(limits=LIMITS, timeout=30, trust_env=False)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        headers = [(name, value) for name, value in scope["headers"] if name in PASSED]
        answer = await self._client.post(
            self._url, content=body, headers=[*headers, (b"mcp-name", b"echo")]
        )
        await respond(send, answer.status_code, answer.content)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._client.aclose)
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    settings = Settings.read()
    serve(ForwardApp(settings.upstream), settings, lifespan="on")
