"""Loopback reverse proxies: one that balances, and one that adds a token."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import anyio
import httpx2
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.sockets import free_port, serving

HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"}


class Balancer:
    """
    Sends each request to the next of several servers, and every chunk back at once.

    Round robin, no affinity: what one server began, the other has to go on with. A server that
    does not accept connections is passed over. When the client hangs up, the request upstream ends
    too.
    """

    def __init__(self, upstreams: Sequence[str]) -> None:
        self.upstreams = upstreams
        self.turn = itertools.count()
        self.client: httpx2.AsyncClient | None = None

    def headers(self, scope: Scope, upstream: str) -> list[tuple[bytes, bytes]]:
        """The headers to send on, the body's length aside."""
        return list(scope["headers"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        body = await _body_of(receive)
        async with anyio.create_task_group() as group:
            group.start_soon(_until_hung_up, receive, group.cancel_scope)
            await self._exchange(scope, body, send)
            group.cancel_scope.cancel()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        # A connection kept open to a server that died meanwhile would lose the next request.
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(timeout=None, trust_env=False, limits=limits) as self.client:
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _request(self, scope: Scope, body: bytes, upstream: str) -> httpx2.Request:
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        headers = [
            (name, value)
            for name, value in self.headers(scope, upstream)
            if name not in HOP_BY_HOP and name != b"content-length"
        ]
        if body or scope["method"] == "POST":
            headers.append((b"content-length", str(len(body)).encode()))
        url = f"{upstream}{scope['raw_path'].decode()}{query}"
        return httpx2.Request(scope["method"], url, headers=headers, content=body or None)

    async def _answer(self, scope: Scope, body: bytes) -> httpx2.Response | None:
        assert self.client is not None
        for _ in self.upstreams:
            upstream = self.upstreams[next(self.turn) % len(self.upstreams)]
            request = self._request(scope, body, upstream)
            try:
                return await self.client.send(request, stream=True, follow_redirects=False)
            except httpx2.ConnectError:
                continue
            except httpx2.TransportError:
                return None  # it may have been taken up, so nobody else gets it
        return None

    async def _exchange(self, scope: Scope, body: bytes, send: Send) -> None:
        answer = await self._answer(scope, body)
        if answer is None:
            await send({"type": "http.response.start", "status": 502, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
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
        except httpx2.TransportError:
            return  # the server died: the client's connection ends just as abruptly
        finally:
            with anyio.CancelScope(shield=True):
                await answer.aclose()


class TokenProxy(Balancer):
    """
    Stands before one server and replaces `Authorization`, for programs that cannot send a token.

    A `Host` or `Origin` that names the proxy becomes the server's own; any other value stays, so
    that the server is what refuses it.
    """

    def __init__(self, *, own: str, upstream: str, token: str) -> None:
        super().__init__([upstream])
        self.own = own.encode()
        self.token = f"Bearer {token}".encode()

    def headers(self, scope: Scope, upstream: str) -> list[tuple[bytes, bytes]]:
        """See `Balancer`."""
        kept = [(n, v) for n, v in scope["headers"] if n != b"authorization"]
        mapped = [(name, self._mapped(name, value, upstream.encode())) for name, value in kept]
        return [*mapped, (b"authorization", self.token)]

    def _mapped(self, name: bytes, value: bytes, upstream: bytes) -> bytes:
        value = value.strip()  # no HTTP client would send the space around a value on
        if name == b"host" and value == self.own.partition(b"://")[2]:
            return upstream.partition(b"://")[2]
        return upstream if name == b"origin" and value == self.own else value


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


@contextlib.contextmanager
def balanced(upstreams: Sequence[str], port: int) -> Iterator[str]:
    """Run a balancer in front of these origins, on a port of one's choice; yields its origin."""
    with serving(Balancer(upstreams), port=port, lifespan="on") as origin:
        yield origin
