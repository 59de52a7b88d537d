"""`web_fetch` answers what a page says, and why it cannot, by both protocols."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gatepost_packs.child import process
from gatepost_packs.web import robots
from tests.packs.conftest import PackCaller, PackServer, by_mcp, by_rest, open_server
from tests.support.internet import Internet, Page, page_answer, redirect_answer


@pytest.fixture(scope="module")
def server(
    shared_internet: Internet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PackServer]:
    """Yield a server with some settings of its operator."""
    settings = {"max_bytes": 200_000, "deny_domains": ["denied.web.test"], "timeout_s": 5}
    with open_server(
        tmp_path_factory.mktemp("office"),
        ["web"],
        network=shared_internet.network(),
        packs={"web": settings},
        prepare=shared_internet.resolves_for,
    ) as server:
        yield server


SITE = "https://www.web.test"

ARTICLE = """<!doctype html><html><head><title>Tea &amp; time</title></head><body>
<nav><a href="/">Home</a></nav><main><h1>Tea</h1><p>Drink it <a href="soon">soon</a>.</p></main>
<footer>About us</footer></body></html>"""
MARKDOWN = "# Tea\n\nDrink it [soon](https://www.web.test/a/soon)."


class FetchCase(NamedTuple):
    """A site's pages by path, what is asked for, and what is answered."""

    pages: dict[str, Page]
    arguments: dict[str, Any]
    answer: Any


def answer(text: str, url: str = f"{SITE}/a/b", title: str = "", **more: Any) -> dict[str, Any]:
    usual = {"title": title, "url": url, "text": text, "truncated": False, "next_offset": None}
    return usual | more


FETCH_CASES = {
    "markdown": FetchCase({"/a/b": page_answer(ARTICLE)}, {}, answer(MARKDOWN, title="Tea & time")),
    "text": FetchCase(
        {"/a/b": page_answer(ARTICLE)},
        {"format": "text"},
        answer("Tea\n\nDrink it soon.", title="Tea & time"),
    ),
    "raw": FetchCase({"/a/b": page_answer(ARTICLE)}, {"format": "raw"}, answer(ARTICLE)),
    "a part": FetchCase(
        {"/a/b": page_answer(ARTICLE)},
        {"max_chars": 5},
        answer("# Tea", title="Tea & time", truncated=True, next_offset=5),
    ),
    "the rest": FetchCase(
        {"/a/b": page_answer(ARTICLE)},
        {"offset": 7, "max_chars": 8},
        answer("Drink it", title="Tea & time", truncated=True, next_offset=15),
    ),
    "redirected": FetchCase(
        {"/a/b": redirect_answer("//other.web.test/c?d#e"), "/c": page_answer("<p>x")},
        {},
        answer("x", "https://other.web.test/c?d"),
    ),
    "json": FetchCase(
        {"/a/b": page_answer('{"a": 1}', "application/json")}, {}, answer('{"a": 1}')
    ),
    "plain": FetchCase({"/a/b": page_answer("<b>x</b>", "text/plain")}, {}, answer("<b>x</b>")),
    "feed": FetchCase({"/a/b": page_answer("<rss/>", "application/rss+xml")}, {}, answer("<rss/>")),
    "unsaid html": FetchCase({"/a/b": page_answer(" <!DOCTYPE html><p>x", "")}, {}, answer("x")),
    "unsaid text": FetchCase({"/a/b": page_answer("x <y>", "")}, {}, answer("x <y>")),
    "empty": FetchCase({"/a/b": page_answer("")}, {}, answer("")),
    "no content": FetchCase({"/a/b": page_answer("", status=204)}, {}, answer("")),
    "packed": FetchCase(
        {"/a/b": page_answer(gzip.compress(b"<p>x"), content_encoding="gzip")}, {}, answer("x")
    ),
    "charset of the header": FetchCase(
        {
            "/a/b": page_answer(
                "<p>ü".encode("cp1251", "replace") + "ж".encode("cp1251"),
                "text/html; charset=windows-1251",
            )
        },
        {},
        answer("?ж"),
    ),
    "charset of the page": FetchCase(
        {"/a/b": page_answer("<meta charset='shift_jis'><p>日本".encode("cp932"))},
        {},
        answer("日本"),
    ),
    "charset of the mark": FetchCase(
        {"/a/b": page_answer(b"\xff\xfe" + "<p>ü".encode("utf-16-le"), "text/html; charset=ascii")},
        {},
        answer("ü"),
    ),
    "no charset": FetchCase({"/a/b": page_answer("<p>ü".encode("cp1252"))}, {}, answer("ü")),
    "no such charset": FetchCase(
        {"/a/b": page_answer("<p>ü", "text/html; charset=unicode_escape")}, {}, answer("ü")
    ),
}


@pytest.mark.requirement("P9")
@pytest.mark.parametrize("name", FETCH_CASES)
@by_mcp
def test_a_page_is_answered_as_text(agent: PackCaller, internet: Internet, name: str) -> None:
    """Title, where it was, its text, and whether there is more."""
    case = FETCH_CASES[name]
    internet.site.pages |= case.pages

    reply = agent.call("web_fetch", url=f"{SITE}/a/b", **case.arguments)

    assert (reply.failure, reply.value) == (None, case.answer)


FAILING_FETCHES = {
    "404": FetchCase({"/a/b": page_answer("", status=404)}, {}, ("not_found", "no such page")),
    "410": FetchCase({"/a/b": page_answer("", status=410)}, {}, ("not_found", "no such page")),
    "401": FetchCase({"/a/b": page_answer("", status=401)}, {}, ("denied", "without signing in")),
    "403": FetchCase({"/a/b": page_answer("", status=403)}, {}, ("denied", "without signing in")),
    "418": FetchCase(
        {"/a/b": page_answer("", status=418)}, {}, ("validation", "refuses the request")
    ),
    "429": FetchCase(
        {"/a/b": page_answer("", status=429, retry_after="7")}, {}, ("rate_limit", "wait")
    ),
    "500": FetchCase(
        {"/a/b": page_answer("", status=500)}, {}, ("upstream_unavailable", "fails at the moment")
    ),
    "loop": FetchCase(
        {"/a/b": redirect_answer("/a/b")}, {}, ("validation", "redirects too often: 5 redirects")
    ),
    "down": FetchCase(
        {"/a/b": redirect_answer("http://www.web.test/c")}, {}, ("validation", "unencrypted one")
    ),
    "inside": FetchCase(
        {"/a/b": redirect_answer("https://127.0.0.1/")}, {}, ("denied", "may not reach")
    ),
    "scheme": FetchCase(
        {"/a/b": redirect_answer("file:///etc/passwd")}, {}, ("denied", "http or https")
    ),
    "pdf": FetchCase(
        {"/a/b": page_answer("%PDF-", "application/pdf")}, {}, ("validation", "a PDF document")
    ),
    "image": FetchCase(
        {"/a/b": page_answer("GIF", "image/gif")}, {}, ("validation", "'image/gif', and")
    ),
    "bytes": FetchCase(
        {"/a/b": page_answer(b"\0\1", "")}, {}, ("validation", "bytes that are not text")
    ),
    "lying": FetchCase(
        {"/a/b": page_answer(b"\0\1", "text/plain")}, {}, ("validation", "'text/plain'")
    ),
    "damaged": FetchCase(
        {"/a/b": page_answer("no gzip", content_encoding="gzip")},
        {},
        ("upstream_unavailable", "decompressed"),
    ),
    "beyond": FetchCase(
        {"/a/b": page_answer("<p>x")}, {"offset": 9}, ("validation", "text ends at 1")
    ),
    "offset": FetchCase({}, {"offset": -1}, ("validation", "offset")),
    "max_chars": FetchCase({}, {"max_chars": 0}, ("validation", "max_chars")),
    "format": FetchCase({}, {"format": "pdf"}, ("validation", "format")),
    "no url": FetchCase({}, {"url": "www.web.test"}, ("denied", "http or https URL")),
    "nobody": FetchCase(
        {}, {"url": "https://nobody.example/"}, ("upstream_unavailable", "reached")
    ),
    "denied domain": FetchCase(
        {},
        {"url": "https://a.denied.web.test./"},
        ("denied", "This server's settings do not allow"),
    ),
    "to a denied domain": FetchCase(
        {"/a/b": redirect_answer("https://denied.web.test/")},
        {},
        ("denied", "This server's settings do not allow"),
    ),
}


@pytest.mark.requirement("P9")
@pytest.mark.parametrize("name", FAILING_FETCHES)
@by_rest
def test_a_failure_explains_the_problem_to_the_model(
    agent: PackCaller, internet: Internet, name: str
) -> None:
    """It is a sentence for a model."""
    case = FAILING_FETCHES[name]
    internet.site.pages |= case.pages
    kind, message = case.answer

    reply = agent.call("web_fetch", **({"url": f"{SITE}/a/b"} | case.arguments))

    assert reply.failure is not None
    assert re.search(message, reply.failure), reply.failure
    assert reply.kind in (None, kind)


@pytest.mark.requirement("P9")
def test_a_page_cut_at_the_byte_limit_says_so(agent: PackCaller, internet: Internet) -> None:
    """A page longer than the settings allow ends with a remark."""
    internet.site.pages["/"] = page_answer("<p>" + "word " * 60_000)

    reply = agent.call("web_fetch", url=f"{SITE}/", max_chars=200_000)
    part = agent.call("web_fetch", url=f"{SITE}/", max_chars=100)

    assert reply.value["text"].endswith("[Cut: only the first 200000 bytes of the page were read.]")
    assert (reply.value["truncated"], reply.value["next_offset"]) == (True, None)
    assert (part.value["truncated"], part.value["next_offset"]) == (True, 100)


@pytest.mark.requirement("P9")
def test_robots_txt_is_obeyed(agent: PackCaller, internet: Internet) -> None:
    """The rules are asked for once, for each tenant, and for each site of a redirect."""
    internet.site.pages |= {
        "/robots.txt": page_answer("User-agent: *\nDisallow: /private\n", "text/plain"),
        "/": page_answer("<p>x"),
        "/away": redirect_answer("https://other.web.test/private"),
    }

    for path, kind in (("/", None), ("/private/a", "denied"), ("/away", "denied")):
        reply = agent.call("web_fetch", url=f"{SITE}{path}")
        assert (reply.failure is None) == (kind is None)
        assert reply.kind in (None, kind)

    paths = [f"{seen.host}{seen.path}" for seen in internet.site.seen]
    assert paths == [
        "www.web.test/robots.txt",
        "www.web.test/",
        "www.web.test/away",
        "other.web.test/robots.txt",
    ]


@pytest.mark.requirement("P9")
@pytest.mark.parametrize("size", [0, robots.READ_CHARACTERS], ids=["small", "large"])
def test_only_a_large_robots_txt_needs_a_process(
    agent: PackCaller, internet: Internet, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A process takes as long as everything else; both ways of reading decide alike."""
    asked: list[str] = []

    async def ask(worker: Path, request: dict[str, Any], *, timeout_s: float) -> Any:
        asked.append(request["url"])
        return await process.ask(worker, request, timeout_s=timeout_s)

    monkeypatch.setattr(robots, "ask", ask)
    rules = f"User-agent: *\nDisallow: /private\n{'#' * size}"
    internet.site.pages |= {
        "/robots.txt": page_answer(rules, "text/plain"),
        "/": page_answer("x", "text/plain"),
    }

    for path, allowed in (("/", True), ("/private/a", False)):
        assert (agent.call("web_fetch", url=f"{SITE}{path}").failure is None) is allowed
    assert len(asked) == (2 if size else 0)


@pytest.mark.requirement("P9")
@pytest.mark.parametrize(
    ("status", "allowed"), [(404, True), (403, True), (500, False), (429, False)]
)
def test_a_missing_robots_txt_allows_all_and_a_failing_one_nothing(
    agent: PackCaller, internet: Internet, status: int, allowed: bool
) -> None:
    """A site without rules allows everything; a failing site allows nothing (RFC 9309, 2.3.1)."""
    internet.site.pages |= {"/robots.txt": page_answer("", status=status), "/": page_answer("<p>x")}

    reply = agent.call("web_fetch", url=f"{SITE}/")

    assert (reply.failure is None) is allowed
    assert reply.kind in (None, "upstream_unavailable")


@pytest.mark.requirement("P9")
def test_a_request_has_gatepost_as_user_agent_and_no_data_of_the_caller(
    agent: PackCaller, internet: Internet
) -> None:
    """robots.txt is evaluated for that user agent."""
    agent.call("web_fetch", url=f"{SITE}/")

    for seen in internet.site.seen:
        assert seen.headers["user-agent"].startswith("gatepost/")
        assert not seen.headers.keys() & {"authorization", "cookie", "referer", "x-forwarded-for"}
