"""An HTTP server that records requests and answers what a function returns."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from tests.support.asgi_server import AsgiServer


class RecordedRequest(msgspec.Struct, frozen=True):
    """One request."""

    method: str
    path: str
    """As it was sent, percent-encoded."""
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes

    def first(self, name: str, default: str = "") -> str:
        """A parameter of the query."""
        return self.query.get(name, [default])[0]

    @property
    def json(self) -> Any:
        """What was sent as JSON."""
        return json.loads(self.body)


class StubResponse(msgspec.Struct, frozen=True):
    """What is sent back."""

    status: int
    body: Any = None
    """JSON, unless it is bytes."""
    headers: Mapping[str, str] = {}


class HttpServer:
    """
    Serves *answer* on loopback, and keeps what was asked in `asked`.

    None is no answer at all, for as long as somebody waits for one.
    """

    def __init__(self, answer: Callable[[RecordedRequest], StubResponse | None]) -> None:
        self._answer = answer
        self.asked: list[RecordedRequest] = []
        self.server = AsgiServer(self._serve)

    def __enter__(self) -> "HttpServer":
        self.server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.stop()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def place(self) -> str:
        """As `network.allow_hosts` names it."""
        return f"127.0.0.1:{self.server.port}"

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        asked = RecordedRequest(
            scope["method"],
            scope["raw_path"].decode(),
            parse_qs(scope["query_string"].decode(), keep_blank_values=True),
            {name.decode(): value.decode("latin-1") for name, value in scope["headers"]},
            body,
        )
        self.asked.append(asked)
        answer = self._answer(asked)
        if answer is None:
            await asyncio.wait_for(receive(), 20)
            return
        headers = {"content-type": "application/json; charset=utf-8"} | dict(answer.headers)
        content = (
            answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        )
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [(n.encode(), v.encode("latin-1")) for n, v in headers.items()],
            }
        )
        await send(
            {"type": "http.response.body", "body": b"" if asked.method == "HEAD" else content}
        )
