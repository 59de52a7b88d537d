"""The token-injecting proxy changes nothing but what it must: else it would hide faults."""

import threading
from collections.abc import Iterator

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from tests.support.issuers import AsgiServer
from tests.support.proxies import with_token

WITHIN_S = 10


class ProxiedApp:
    """Answers what it was sent; `/stream` sends one chunk and waits to be hung up on."""

    def __init__(self) -> None:
        self.hung_up = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"x-saw-" + name, value) for name, value in scope["headers"]]
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        if scope["path"] != "/stream":
            body = (await receive()).get("body", b"")
            await send({"type": "http.response.body", "body": scope["method"].encode() + body})
            return
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.hung_up.set()


@pytest.fixture
def upstream() -> ProxiedApp:
    return ProxiedApp()


@pytest.fixture
def proxy(upstream: ProxiedApp) -> Iterator[tuple[str, str]]:
    with AsgiServer(upstream) as server, with_token(f"{server.url}/mcp", "the-token") as url:
        yield url, server.url


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_the_proxy_changes_only_credentials_and_its_own_name(
    proxy: tuple[str, str], method: str
) -> None:
    """Method, body, status and headers pass; a Host or Origin naming the proxy is translated."""
    url, origin = proxy
    own = url.removesuffix("/mcp")
    headers = {"Authorization": "Basic eDp5", "Origin": own, "Mcp-Name": "echo", "Accept": "a, b"}

    answer = httpx2.request(method, url, headers=headers, content=b"" if method != "POST" else b"x")

    assert answer.status_code == 202
    assert answer.content == method.encode() + (b"x" if method == "POST" else b"")
    assert answer.headers["x-saw-authorization"] == "Bearer the-token"
    assert answer.headers["x-saw-host"] == origin.removeprefix("http://")
    assert answer.headers["x-saw-origin"] == origin
    assert answer.headers["x-saw-mcp-name"] == "echo"
    assert answer.headers["x-saw-accept"] == "a, b"


def test_a_foreign_host_name_is_forwarded_unchanged(proxy: tuple[str, str]) -> None:
    """The server itself has to refuse a rebound name."""
    url, _ = proxy

    answer = httpx2.get(url, headers={"Host": "evil.example", "Origin": "http://evil.example"})

    assert answer.headers["x-saw-host"] == "evil.example"
    assert answer.headers["x-saw-origin"] == "http://evil.example"


def test_chunks_pass_at_once_and_hanging_up_reaches_the_server(
    proxy: tuple[str, str], upstream: ProxiedApp
) -> None:
    """A listener gets each event when it is sent, and its going away ends the request upstream."""
    url, _ = proxy
    stream = url.replace("/mcp", "/stream")

    with httpx2.stream("GET", stream, timeout=WITHIN_S) as answer:
        first = next(answer.iter_raw())

    assert first == b"first"
    assert upstream.hung_up.wait(WITHIN_S)
