"""Documents from issuers that are slow, huge, lying or in the wrong place."""

import asyncio
import gzip
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from gatepost_authz.fetch import Fetcher, FetchError, max_age_of
from gatepost_authz.issuer_key_sets import IssuerKeySets
from tests.support.issuers import Idp, Receive, Scope, Send, answer


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    with Idp() as running:
        yield running


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    fetcher = Fetcher(development=True)
    yield fetcher
    await fetcher.aclose()


async def begin(send: Send, first: bytes = b"") -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": first, "more_body": True})


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer nothing until the caller hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def stalling(scope: Scope, receive: Receive, send: Send) -> None:
    """Begin an answer and stop in the middle."""
    await begin(send, b'{"keys":')
    await silent(scope, receive, send)


async def dripping(scope: Scope, receive: Receive, send: Send) -> None:
    """Send a byte now and then, each well within any timeout for a single read."""
    await begin(send, b'{"keys":[')
    gone = asyncio.ensure_future(silent(scope, receive, send))
    while not gone.done():
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        await asyncio.wait({gone}, timeout=0.02)


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """Send as fast as it is taken."""
    await begin(send, b'{"keys":[')
    gone = asyncio.ensure_future(silent(scope, receive, send))
    while not gone.done():
        await send({"type": "http.response.body", "body": b" " * 65_536, "more_body": True})
        await asyncio.wait({gone}, timeout=0)


async def reason(fetcher: Fetcher, idp: Idp, app: Any, **options: Any) -> str:
    idp.replace("/document", app)
    with pytest.raises(FetchError) as failure:
        await fetcher.get_json(f"{idp.base}/document", **options)
    return failure.value.reason


@pytest.mark.requirement("N01")
@pytest.mark.parametrize("app", [silent, stalling, dripping])
async def test_a_slow_document_ends_with_its_deadline(fetcher: Fetcher, idp: Idp, app: Any) -> None:
    """Over all of it, not over each read; and the loop is free meanwhile."""
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
async def test_a_huge_document_is_given_up_at_the_limit(
    fetcher: Fetcher, idp: Idp, word: str, app: Any
) -> None:
    """262144 bytes as they are read, and no compression that could hide more."""
    assert await reason(fetcher, idp, app) == word


async def test_the_limit_itself_is_allowed(fetcher: Fetcher, idp: Idp) -> None:
    """One byte less than too large is a document."""
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
async def test_what_is_not_a_json_object_is_refused_with_a_word(
    fetcher: Fetcher, idp: Idp, word: str, app: Any
) -> None:
    """A fixed word for the log; nothing of what the server sent."""
    assert await reason(fetcher, idp, app) == word


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/jwk-set+json"]
)
async def test_json_has_several_names(fetcher: Fetcher, idp: Idp, kind: str) -> None:
    """Issuers write all of these for a key set."""
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
    """It would lead past every check of the URL that was configured."""
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
async def test_an_odd_url_is_never_asked_for(fetcher: Fetcher, url: str) -> None:
    """Whatever brought it past the configuration: a metadata document can name any URL."""
    with pytest.raises(FetchError) as failure:
        await fetcher.get_json(url)

    assert failure.value.reason == "url"


async def test_environment_and_cookies_have_no_say(
    fetcher: Fetcher, idp: Idp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No proxy, no credentials from the environment; no cookie of an issuer is sent again."""
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
def test_how_long_a_document_may_be_kept(header: str, seconds: float | None) -> None:
    """Cache-Control as issuers write it (RFC 9111 section 5.2.2)."""
    assert max_age_of(header) == seconds


@pytest.mark.requirement("N23")
def test_a_fetcher_opens_nothing_before_it_is_used() -> None:
    """So workers may fork after it was made and share no connection."""
    with socket.socket() as probe:
        lowest_free = probe.fileno()
    threads = threading.active_count()

    fetcher = Fetcher(development=True)
    fetcher.transport(connections=5)
    IssuerKeySets(fetcher)

    with socket.socket() as probe:
        assert probe.fileno() == lowest_free
    assert threading.active_count() == threads
