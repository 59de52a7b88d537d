"""What was fetched is kept within bounds, each tenant's apart."""

import pytest

from gatepost.packs.calendar.shelf import Key, Shelf
from gatepost.tools.surroundings import Reply

pytestmark = pytest.mark.requirement("P7")


def reply(status: int, body: bytes = b"", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, named, body, False, "https://a.example/")


def key(tenant: str) -> Key:
    return Key(tenant, "https://a.example/", "")


def test_news_are_asked_for_by_what_the_server_called_the_last() -> None:
    """By its tag, its date, or not at all where it named neither."""
    shelf = Shelf()
    shelf.take(key("tag"), reply(200, b"1", etag='"1"', last_modified="yesterday"))
    shelf.take(key("none"), reply(200, b"1"))

    assert shelf.asking(key("tag")) == {
        "if-none-match": '"1"',
        "if-modified-since": "yesterday",
    }
    assert shelf.asking(key("none")) == {}
    assert shelf.take(key("tag"), reply(304)).body == b"1"
    assert shelf.take(key("none"), reply(304)).status == 304


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    """And what is larger than all the room is not kept."""
    shelf = Shelf(most_bytes=10)
    for tenant in ("one", "two"):
        shelf.take(key(tenant), reply(200, b"12345", etag='"1"'))
    shelf.take(key("one"), reply(304))
    shelf.take(key("three"), reply(200, b"12345", etag='"1"'))
    shelf.take(key("four"), reply(200, b"1234567890+", etag='"1"'))

    kept = [name for name in ("one", "two", "three", "four") if shelf.asking(key(name))]
    assert kept == ["one", "three"]
