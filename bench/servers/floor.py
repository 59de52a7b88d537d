"""The floor: a bare ASGI app that reads each request and answers a constant."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from bench.servers.settings import Settings, serve
from bench.workload import DOCUMENT, MANY_TOOLS, STEPS, TEXT

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON = (b"content-type", b"application/json")
CHALLENGE = (
    b'Bearer resource_metadata="http://127.0.0.1:8000/mcp/.well-known/oauth-protected-resource", '
    b'error="invalid_token", error_description="The access token is invalid"'
)


def answer(
    status: int, text: str, size: int, *headers: tuple[bytes, bytes]
) -> tuple[dict[str, Any], ...]:
    """Return the two messages of a whole answer: *text* in a body of at least *size* bytes."""
    body = text.encode().ljust(size)
    length = (b"content-length", str(len(body)).encode())
    return (
        {"type": "http.response.start", "status": status, "headers": [JSON, length, *headers]},
        {"type": "http.response.body", "body": body},
    )


class FloorApp:
    """Sends an answer of the kind and size that the path names: `/call`, `/list` …."""

    def __init__(self, sizes: dict[str, int]) -> None:
        # Texts that the harness looks for in every server's answers.
        tools = '"inputSchema"' * MANY_TOOLS
        reports = "notifications/progress " * STEPS
        document = json.dumps(DOCUMENT)
        self._answers = {
            "/call": answer(200, TEXT, sizes["call"]),
            "/document": answer(200, document, sizes["document"]),
            "/progress": answer(200, reports, sizes["progress"]),
            "/list": answer(200, tools, sizes["list"]),
            "/refusal": answer(401, "", sizes["refusal"], (b"www-authenticate", CHALLENGE)),
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        # Every server has to take the whole body in; a floor that left a document unread would
        # cost a fifth less for a small call, and half for 64 KiB.
        while (await receive()).get("more_body"):
            pass
        start, body = self._answers[scope["path"]]
        await send(start)
        await send(body)


if __name__ == "__main__":
    settings = Settings.read()
    serve(FloorApp(settings.sizes), settings, lifespan="off")
