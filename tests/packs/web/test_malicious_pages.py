"""Pages that were written to break their reader are read in time, in bounds, or not at all."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_packs.web.page_worker import CHARACTERS
from gatepost_packs.web.page_worker import answer as read_page
from gatepost_packs.web.robots_worker import answer as allowed
from gatepost_packs.web.text_decoding import decoded
from gatepost_packs.web.tools import READ_S
from tests.support.measuring import each

URL = "https://www.web.test/"

# Each grows with its number, and would break a reader that recurses or looks back.
GROWING_PAGES = {
    "nested div": lambda n: "<div>" * n,
    "nested div with text": lambda n: "<div>" * n + "x",
    "nested b": lambda n: "<b>" * n + "x",
    "nested marks": lambda n: "<b><i><code><s>" * n + "x" + "</b>" * n,
    "nested links": lambda n: "<a href=x>x" * n,
    "nested lists": lambda n: "<ul><li>x" * n,
    "nested quotations": lambda n: "<blockquote>x" * n,
    "nested tables": lambda n: "<table><tr><td>x" * n,
    "cells": lambda n: "<table>" + "<td>x" * n,
    "rows": lambda n: "<table>" + "<tr><td>x<td>y" * n,
    "paragraphs": lambda n: "<p>x" * n,
    "ends": lambda n: "</p>" * n,
    "ends of others": lambda n: "<div><td>" + "<b>" * n + "</div>" * n,
    "less": lambda n: "<" * n,
    "comments": lambda n: "<!--" * n,
    "comments that end": lambda n: "<!-->" * n,
    "sections": lambda n: "<![CDATA[" * n,
    "instructions": lambda n: "<?" * n,
    "attributes": lambda n: "<a " + " ".join(f"a{at}=1" for at in range(n)) + ">x",
    "attributes without end": lambda n: "<a " + "x='" * n,
    "spaces": lambda n: "<a" + " " * n + "x" + " " * n,
    "slashes": lambda n: "<a" + "/" * n,
    "name": lambda n: "<" + "a" * n,
    "equals": lambda n: "<a =" + "=" * n,
    "references": lambda n: "&amp" * n,
    "a long reference": lambda n: "&" + "a" * n,
    "a huge reference": lambda n: "&#" + "9" * n + ";",
    "scripts": lambda n: "<script>" * n,
    "script ends": lambda n: "<script>" + "</scrip" * n,
    "titles": lambda n: "<title>" * n,
    "empty titles": lambda n: "<title> </title>" * n,
    "empty headings": lambda n: "<h1> </h1>" * n,
    "unfinished headings": lambda n: "<h1>x" * n,
    "a wide row": lambda n: "<table><tr>" + "<td>x" * 40 + "<tr><td>y" * n,
    "ticks": lambda n: "<code>" + "`x" * n,
    "code": lambda n: "<pre>`" * n,
    "articles": lambda n: "<article>x" * n,
    "lines": lambda n: "x<br>" * n,
    "line ends": lambda n: "x\n" * n,
    "hidden": lambda n: "<p hidden>x" * n,
}


@contextmanager
def worker_limits() -> Iterator[None]:
    """Assert that the block takes less processor time than a worker may."""
    before = time.process_time()
    yield
    assert time.process_time() - before < READ_S


def page_result(source: str, *, markdown: bool = True) -> dict[str, Any]:
    """Return the worker's answer for a page."""
    return read_page({"source": source, "url": URL, "markdown": markdown})


@pytest.mark.requirement("P9")
@each("name", GROWING_PAGES)
def test_a_page_of_many_repeated_elements_is_read_within_limits(name: str) -> None:
    """Within the worker's time and memory, as Markdown and as text."""
    grow = GROWING_PAGES[name]
    source = grow(60_000 // max(len(grow(2)) - len(grow(1)), 1))
    with worker_limits():
        for markdown in (True, False):
            assert len(page_result(source, markdown=markdown)["text"]) <= CHARACTERS


@pytest.mark.requirement("P9")
def test_a_long_charset_declaration_is_read_in_time() -> None:
    """Many spaces before a charset would keep some regular expressions busy for ever."""
    spaces = " " * 100_000

    assert decoded(b"x", f"text/html; charset={spaces}", html=True) == "x"
    assert decoded(b"<meta charset =" + spaces.encode() + b">", "", html=True).startswith("<meta")


@pytest.mark.requirement("P9")
def test_a_long_base_url_does_not_multiply_the_text_of_links() -> None:
    """A base of two thousand characters before each of many links is written so often only."""
    page = page_result(f"<base href='/{'x' * 1900}/'>" + "<a href=y>z</a>" * 20_000)

    assert page["cut"] is True
    assert len(page["text"]) <= CHARACTERS


@pytest.mark.requirement("P9")
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["<", ">", "/", "'", '"', "=", " ", "!--", "-->", "&", "#", "x", "\0"]),
            st.sampled_from(["p", "b", "a", "li", "ul", "td", "tr", "table", "pre", "script"]).map(
                lambda name: f"<{name}>"
            ),
            st.sampled_from(["p", "b", "a", "li", "ul", "td", "tr", "table", "pre"]).map(
                lambda name: f"</{name}>"
            ),
            st.sampled_from(["<a href='x'>", "<main>", "<article>", "<nav>", "<p hidden>", "<br>"]),
            st.text(max_size=5),
        ),
        max_size=60,
    ).map("".join)
)
def test_any_page_gets_an_answer(source: str) -> None:
    """The worker answers for any content."""
    for marks in (True, False):
        page_result(source, markdown=marks)


@pytest.mark.requirement("P9")
@given(st.binary(max_size=200), st.text(max_size=30))
def test_any_bytes_are_decoded(body: bytes, content_type: str) -> None:
    """The worker decodes any bytes under any declared charset."""
    decoded(body, content_type, html=True)
    decoded(b"<meta charset=" + body, f"text/html; charset={content_type}", html=True)


@pytest.mark.requirement("P9")
def test_robots_rules_with_many_wildcards_are_evaluated() -> None:
    """They would keep a regular expression busy for ever (RFC 9309 section 2.2.3)."""
    rules = "User-agent: *\n" + f"Disallow: {'/*a' * 100}b$\n" * 500
    url = f"{URL}{'a/' * 4_000}"

    with worker_limits():
        assert allowed({"rules": rules, "url": url, "agent": "gatepost"})
