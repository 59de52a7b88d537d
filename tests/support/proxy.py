"""A loopback reverse proxy that adds a token, for programs that cannot send one."""

import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import anyio
import httpx2
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.sockets import free_port, serving

HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


class TokenProxy:
    """
    Passes every request on with `Authorization` replaced, and every chunk back at once.

    A `Host` or `Origin` that names the proxy becomes the server's own; any other value stays, so
    that the server is what refuses it. When the client hangs up, the request upstream ends too.
    """

    def __init__(self, *, own: str, upstream: str, token: str) -> None:
        self.own = own.encode()
        self.upstream = upstream.encode()
        self.origin = upstream
        self.token = f"Bearer {token}".encode()
        self.client: httpx2.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        async with anyio.create_task_group() as group:
            request = self._request(scope, await _body_of(receive))
            group.start_soon(_until_hung_up, receive, group.cancel_scope)
            await self._exchange(request, send)
            group.cancel_scope.cancel()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        async with httpx2.AsyncClient(timeout=None, trust_env=False) as self.client:
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _request(self, scope: Scope, body: bytes) -> httpx2.Request:
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        headers = [
            (name, self._mapped(name, value))
            for name, value in scope["headers"]
            if name not in HOP_BY_HOP and name not in {b"authorization", b"content-length"}
        ]
        if body or scope["method"] == "POST":
            headers.append((b"content-length", str(len(body)).encode()))
        return httpx2.Request(
            scope["method"],
            f"{self.origin}{scope['raw_path'].decode()}{query}",
            headers=[*headers, (b"authorization", self.token)],
            content=body or None,
        )

    def _mapped(self, name: bytes, value: bytes) -> bytes:
        value = value.strip()  # no HTTP client would send the space around a value on
        if name == b"host" and value == self.own.partition(b"://")[2]:
            return self.upstream.partition(b"://")[2]
        return self.upstream if name == b"origin" and value == self.own else value

    async def _exchange(self, request: httpx2.Request, send: Send) -> None:
        assert self.client is not None
        answer = await self.client.send(request, stream=True, follow_redirects=False)
        try:
            headers = [(n, v) for n, v in answer.headers.raw if n.lower() not in HOP_BY_HOP]
            await send(
                {
                    "type": "http.response.start",
                    "status": answer.status_code,
                    "headers": [(name.lower(), value) for name, value in headers],
                }
            )
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            with anyio.CancelScope(shield=True):
                await answer.aclose()


async def _body_of(receive: Receive) -> bytes:
    body = b""
    while True:
        message: Message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _until_hung_up(receive: Receive, cancel: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel.cancel()


@contextlib.contextmanager
def with_token(endpoint: str, token: str) -> Iterator[str]:
    """Run a proxy in front of *endpoint*; yields the address to use instead, on `localhost`."""
    port = free_port()
    own = f"http://localhost:{port}"
    parts = urlsplit(endpoint)
    upstream = f"{parts.scheme}://{parts.netloc}"
    app: ASGIApp = TokenProxy(own=own, upstream=upstream, token=token)
    with serving(app, port=port, lifespan="on"):
        yield f"{own}{parts.path}"
