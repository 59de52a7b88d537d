"""What was found by giving packs pages and descriptions that are made to take long."""

import random

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost_packs.openapi import lookup
from gatepost_packs.openapi.description.document import ApiDescription
from gatepost_packs.openapi.description.reading import canonical
from gatepost_packs.web.page_worker import answer
from tests.support.measuring import count_lines

RANDOM_BYTES = random.Random(4)  # the same words in every run


def _text_of(source: str) -> str:
    text = answer({"source": source, "url": "http://example.com/y", "markdown": True})["text"]
    return str(text)


def test_nested_links_do_not_multiply_the_text_of_a_page() -> None:
    """Each paragraph of a page with a hundred open links was written a hundred times."""
    step = "<table><tr><td><a href=http://example.com/>x"
    assert len(_text_of(step * 1_500)) < 1_500 * len(step)


def test_a_link_inside_a_link_is_written_as_its_text() -> None:
    """Markdown has no nested links."""
    source = "<div><a href=/one>first <table><tr><td><a href=/two>second</a></table> third</a>"
    text = _text_of(source)
    assert "(http://example.com/one)" in text
    assert "second" in text
    assert "/two" not in text


def _word() -> str:
    return "/" + "".join(RANDOM_BYTES.choices("ab", k=120))


async def test_the_number_of_compared_path_templates_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two thousand similar templates kept the server busy for eight seconds."""
    monkeypatch.setattr(lookup, "MAX_LIKE", 3)
    paths = {_word(): {"get": {"summary": "x"}} for _ in range(200)}
    text = str({"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths})
    document = ApiDescription(canonical(text.encode()))
    path = _word()
    compared = count_lines(lambda: lookup._similar_templates(document.entries, path))
    assert compared < 400_000
    with pytest.raises(ToolFailure, match="There is no GET"):
        await lookup.described(document, path, "GET", api="it")


def test_a_mistyped_path_is_answered_with_the_similar_path() -> None:
    """The error names the template that differs by a few letters."""
    paths = {f"/things/{name}": {"get": {}} for name in ("colour", "shape", "weight")}
    text = str({"openapi": "3.1.0", "info": {}, "paths": paths})
    document = ApiDescription(canonical(text.encode()))
    assert lookup._similar_templates(document.entries, "/things/color") == ["/things/colour"]
    assert lookup._similar_templates(document.entries, "/thing/wieght") == ["/things/weight"]
