"""What was fetched is kept within bounds, each tenant's apart."""

import pytest

from gatepost.tools.context.interfaces import OutboundReply
from gatepost_packs.calendar.calendar_source import CacheKey, DocumentCache

pytestmark = pytest.mark.requirement("P7")


def reply(status: int, body: bytes = b"", **headers: str) -> OutboundReply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return OutboundReply(status, named, body, False, "https://a.example/")


def key(tenant: str) -> CacheKey:
    return CacheKey(tenant, "https://a.example/", "")


def test_a_request_is_conditional_on_the_last_etag_and_date() -> None:
    """A response without either is requested again in full."""
    cache = DocumentCache()
    cache.take(key("tag"), reply(200, b"1", etag='"1"', last_modified="yesterday"))
    cache.take(key("none"), reply(200, b"1"))

    assert cache.conditions(key("tag")) == {
        "if-none-match": '"1"',
        "if-modified-since": "yesterday",
    }
    assert cache.conditions(key("none")) == {}
    assert cache.take(key("tag"), reply(304)).body == b"1"
    assert cache.take(key("none"), reply(304)).status == 304


def test_the_least_recently_used_document_is_dropped_first() -> None:
    """A document larger than the whole cache is not stored."""
    cache = DocumentCache(max_bytes=10)
    for tenant in ("one", "two"):
        cache.take(key(tenant), reply(200, b"12345", etag='"1"'))
    cache.take(key("one"), reply(304))
    cache.take(key("three"), reply(200, b"12345", etag='"1"'))
    cache.take(key("four"), reply(200, b"1234567890+", etag='"1"'))

    names = [name for name in ("one", "two", "three", "four") if cache.conditions(key(name))]
    assert names == ["one", "three"]
