"""Documents from issuers that are slow, huge, lying or in the wrong place."""

import asyncio
import contextlib
import gzip
import socket
import threading
import time
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest

from gatepost_authz import fetch
from gatepost_authz.fetch import Fetcher, FetchError, max_age_of
from gatepost_authz.issuer_key_sets import IssuerKeySets
from tests.support.issuers import Idp, Receive, Scope, Send, answer


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    fetcher = Fetcher(development=True)
    yield fetcher
    await fetcher.aclose()


async def begin_answer(send: Send, first: bytes = b"") -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": first, "more_body": True})


async def never_answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing until the caller hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def stalling(scope: Scope, receive: Receive, send: Send) -> None:
    """Begin an answer and stop in the middle."""
    await begin_answer(send, b'{"keys":')
    await never_answer(scope, receive, send)


async def dripping(scope: Scope, receive: Receive, send: Send) -> None:
    """Send a byte now and then, each well within any timeout for a single read."""
    await begin_answer(send, b'{"keys":[')
    gone = asyncio.ensure_future(never_answer(scope, receive, send))
    while not gone.done():
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        await asyncio.wait({gone}, timeout=0.02)


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """Send as fast as it is taken."""
    await begin_answer(send, b'{"keys":[')
    gone = asyncio.ensure_future(never_answer(scope, receive, send))
    while not gone.done():
        await send({"type": "http.response.body", "body": b" " * 65_536, "more_body": True})
        await asyncio.wait({gone}, timeout=0)


async def reason(fetcher: Fetcher, idp: Idp, app: Any, **options: Any) -> str:
    idp.replace("/document", app)
    with pytest.raises(FetchError) as failure:
        await fetcher.get_json(f"{idp.base}/document", **options)
    return failure.value.reason


@pytest.mark.requirement("N01")
@pytest.mark.parametrize("app", [never_answer, stalling, dripping])
async def test_a_slow_document_times_out(fetcher: Fetcher, idp: Idp, app: Any) -> None:
    """The deadline covers the whole document, and the event loop is not blocked meanwhile."""
    begun = time.monotonic()
    turns = 0
    fetching = asyncio.create_task(reason(fetcher, idp, app, timeout_s=0.5))
    while not fetching.done():
        await asyncio.wait({fetching}, timeout=0.01)
        turns += 1

    assert fetching.result() == "timeout"
    assert time.monotonic() - begun > 0.4
    assert turns > 5


GZIP_BOMB = gzip.compress(b'{"keys":[' + b" " * 50_000_000 + b"]}")
REFUSED_ANSWERS = [
    ("too_large", endless),
    ("too_large", answer(body=b'{"keys":[' + b" " * 10_000_000 + b"]}")),
    ("too_large", answer(body=b'{"a":"' + b"x" * 262_137 + b'"}')),
    ("encoding", answer(body=GZIP_BOMB, content_encoding="gzip")),
    ("encoding", answer(body=GZIP_BOMB, content_encoding="br")),
    ("json", answer(body=GZIP_BOMB)),
]


@pytest.mark.requirement("N04")
@pytest.mark.parametrize(("word", "app"), REFUSED_ANSWERS)
async def test_a_document_above_the_size_limit_is_refused(
    fetcher: Fetcher, idp: Idp, word: str, app: Any
) -> None:
    """262,144 bytes are read at most, and compressed answers are not accepted."""
    assert await reason(fetcher, idp, app) == word


async def test_a_document_of_exactly_the_size_limit_is_accepted(fetcher: Fetcher, idp: Idp) -> None:
    """Only a document of more bytes is too large."""
    idp.replace("/document", answer(body=b'{"a":"' + b"x" * 262_136 + b'"}'))

    document = await fetcher.get_json(f"{idp.base}/document")

    assert len(str(document.data["a"])) == 262_136


UNUSUAL_ANSWERS = [
    ("content_type", answer(body=b"<html>", content_type="text/html")),
    ("content_type", answer(body=b"{}", content_type="text/plain")),
    ("content_type", answer(body=b"{}", content_type="application/jsonp")),
    ("content_type", answer(body=b"{}", content_type="")),
    ("json", answer(body=b"<html>")),
    ("json", answer(body=b"[]")),
    ("json", answer(body=b"null")),
    ("json", answer(body=b"")),
    ("json", answer(body=b'{"keys":[],"keys":[]}')),
    ("json", answer(body=b'{"keys":' + b"[" * 1000 + b"]" * 1000 + b"}")),
    ("json", answer(body=b'{"keys":NaN}')),
    ("json", answer(body=b'{"keys":"\xff"}')),
    ("status", answer(500)),
    ("status", answer(404)),
    ("status", answer(429, retry_after="1")),
    ("status", answer(204)),
    ("status", answer(206)),
]


@pytest.mark.requirement("N05")
@pytest.mark.parametrize(("word", "app"), UNUSUAL_ANSWERS)
async def test_a_document_that_is_no_json_object_is_refused_with_a_fixed_reason(
    fetcher: Fetcher, idp: Idp, word: str, app: Any
) -> None:
    """The reason for the log contains nothing that the server sent."""
    assert await reason(fetcher, idp, app) == word


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/jwk-set+json"]
)
async def test_several_media_types_of_json_are_accepted(
    fetcher: Fetcher, idp: Idp, kind: str
) -> None:
    """Issuers use all of these for a key set."""
    idp.replace("/document", answer(body=b'{"keys":[]}', content_type=kind))

    assert (await fetcher.get_json(f"{idp.base}/document")).data == {"keys": []}


@pytest.mark.requirement("N06")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "target",
    ["{base}/elsewhere", "http://169.254.169.254/", "http://127.0.0.1/", "https://other.example/"],
)
async def test_a_redirect_is_not_followed(
    fetcher: Fetcher, idp: Idp, status: int, target: str
) -> None:
    """A redirect would bypass the checks of the configured URL."""
    app = answer(status, location=target.format(base=idp.base))

    assert await reason(fetcher, idp, app) == "redirect"
    assert idp.hits["/elsewhere"] == 0


@pytest.mark.requirement("N09")
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "data:application/json,{}",
        "ftp://127.0.0.1/",
        "http://id.example.com/",
        "https://user:pass@id.example.com/",
        "https://id.example.com:22/",
        "https://id.exаmple.com/",  # noqa: RUF001 - a Cyrillic letter
    ],
)
async def test_urls_with_other_schemes_ports_or_credentials_are_never_fetched(
    fetcher: Fetcher, url: str
) -> None:
    """A metadata document can name any URL."""
    with pytest.raises(FetchError) as failure:
        await fetcher.get_json(url)

    assert failure.value.reason == "url"


async def test_proxy_variables_and_cookies_are_ignored(
    fetcher: Fetcher, idp: Idp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetcher uses no proxy or credentials of the environment and sends no cookie."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    seen: list[dict[bytes, bytes]] = []

    async def remember(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(dict(scope["headers"]))
        await answer(set_cookie="session=1")(scope, receive, send)

    idp.replace("/document", remember)
    for _ in range(2):
        await fetcher.get_json(f"{idp.base}/document")

    assert all(b"cookie" not in headers and b"authorization" not in headers for headers in seen)
    assert seen[0][b"accept-encoding"] == b"identity"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", None),
        ("public", None),
        ("max-age=600", 600),
        ("public, MAX-AGE = 60, must-revalidate", 60),
        ('max-age="30"', 30),
        ("s-maxage=5", None),
        ("max-age=-1", None),
        ("max-age=600, no-store", 0),
        ("no-cache", 0),
    ],
)
def test_the_cache_lifetime_is_read_from_cache_control(header: str, seconds: float | None) -> None:
    """The values are those that issuers send (RFC 9111 section 5.2.2)."""
    assert max_age_of(header) == seconds


@pytest.mark.requirement("N23")
def test_an_unused_fetcher_opens_no_socket_and_no_thread() -> None:
    """Workers may fork after it was created and then share no connection."""
    with socket.socket() as probe:
        lowest_free = probe.fileno()
    threads = threading.active_count()

    fetcher = Fetcher(development=True)
    fetcher.transport(connections=5)
    IssuerKeySets(fetcher)

    with socket.socket() as probe:
        assert probe.fileno() == lowest_free
    assert threading.active_count() == threads


@pytest.mark.parametrize(("kept_s", "count"), [(60.0, 1), (0.0, 2)])
async def test_an_idle_connection_is_kept_for_a_limited_time(
    fetcher: Fetcher, idp: Idp, monkeypatch: pytest.MonkeyPatch, kept_s: float, count: int
) -> None:
    """A request must not meet the moment at which the server closes it."""
    monkeypatch.setattr(fetch, "KEPT_S", kept_s)
    connections: set[object] = set()

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        connections.add(scope["client"])
        await answer()(scope, receive, send)

    idp.replace("/introspect", note)
    transport = fetcher.transport(connections=1, secure=False)
    for _ in range(2):
        await fetcher.post_form(f"{idp.base}/introspect", {}, transport=transport)
    await transport.aclose()

    assert len(connections) == count


async def asked_twice(*, keeps: bool) -> tuple[list[Any], int]:
    """
    Ask a server that closes each connection at the second request, or at the first.

    Return the answers or reasons, and the number of requests that the server got.
    """
    requests = 0
    connections: list[asyncio.Task[Any] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        connections.append(asyncio.current_task())
        answers = 1 if keeps else 0
        with contextlib.suppress(asyncio.IncompleteReadError):
            while (await reader.readuntil(b"\r\n\r\n")) and (await reader.readexactly(7)):
                requests += 1
                if not answers:
                    break
                answers -= 1
                body = b'{"active":true}'
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d"
                writer.write(b"%b\r\n\r\n%b" % (head % len(body), body))
                await writer.drain()
        writer.close()
        await writer.wait_closed()

    fetcher = Fetcher(development=True)
    transport = fetcher.transport(allow_private=(ip_network("127.0.0.0/8"),), connections=10)
    results: list[Any] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/introspect"
        for _ in range(2):
            try:
                document = await fetcher.post_form(url, {"token": "x"}, transport=transport)
                results.append(document.data)
            except FetchError as failure:
                results.append(failure.reason)
        await transport.aclose()
        await asyncio.gather(*filter(None, connections))
    return results, requests


async def test_an_introspection_that_meets_the_end_of_a_kept_connection_is_repeated() -> None:
    """Otherwise the caller would get 503 now and then, because servers close idle connections."""
    assert await asked_twice(keeps=True) == ([{"active": True}] * 2, 3)


async def test_an_introspection_whose_new_connection_ends_is_not_repeated() -> None:
    """A server that ends every connection would get each token twice."""
    results, requests = await asked_twice(keeps=False)

    assert (len(set(results)), requests) == (1, 2)
    assert isinstance(results[0], str)
