"""What was found by giving packs pages and descriptions that are made to take long."""

import random

import pytest

from gatepost.openapi.document import Document
from gatepost.openapi.reading import canonical
from gatepost.packs.openapi import lookup
from gatepost.packs.web.page import readable
from gatepost.tools.api import ToolFailure
from tests.support.steps import steps

DICE = random.Random(4)  # the same words in every run


def test_links_within_links_cost_no_more_than_others() -> None:
    """Each paragraph of a page with a hundred open links was written a hundred times over."""
    step = "<table><tr><td><a href=http://example.com/>x"
    taken = steps(lambda: readable(step * 1_500, "http://example.com/y", marks=True))
    assert taken < 1_500 * 800


def test_a_link_in_a_link_is_its_text() -> None:
    """Markdown has none; what it says stays."""
    source = "<div><a href=/one>first <table><tr><td><a href=/two>second</a></table> third</a>"
    page = readable(source, "http://example.com/", marks=True)
    assert "(http://example.com/one)" in page.text
    assert "second" in page.text
    assert "/two" not in page.text


def _word() -> str:
    return "/" + "".join(DICE.choices("ab", k=120))


async def test_paths_that_are_hard_to_compare_are_not_all_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two thousand templates of two letters kept the server busy for eight seconds."""
    monkeypatch.setattr(lookup, "MOST_LIKE", 3)
    paths = {_word(): {"get": {"summary": "x"}} for _ in range(200)}
    text = str({"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths})
    document = Document(canonical(text.encode()))
    path = _word()
    compared = steps(lambda: lookup._near(document.entries, path))
    assert compared < 400_000
    with pytest.raises(ToolFailure, match="There is no GET"):
        await lookup.described(document, path, "GET", api="it")


def test_what_comes_near_is_still_named() -> None:
    """A slip of the pen finds the template that was meant."""
    paths = {f"/things/{name}": {"get": {}} for name in ("colour", "shape", "weight")}
    text = str({"openapi": "3.1.0", "info": {}, "paths": paths})
    document = Document(canonical(text.encode()))
    assert lookup._near(document.entries, "/things/color") == ["/things/colour"]
    assert lookup._near(document.entries, "/thing/wieght") == ["/things/weight"]
