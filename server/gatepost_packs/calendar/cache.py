"""Caches fetched documents, so that a server need not send unchanged ones again."""

from collections import OrderedDict
from typing import NamedTuple

from gatepost import OutboundReply

MOST_BYTES = 32_000_000
"""Entries of all tenants in one process; the least recently used one is dropped first."""


class CacheKey(NamedTuple):
    """The tenant comes first: a server may show each tenant something else at the same address."""

    tenant: str
    url: str
    user: str


class CachedDocument(NamedTuple):
    """A document, and the server's validators for this version of it."""

    validators: tuple[tuple[str, str], ...]
    body: bytes


class DocumentCache:
    """
    A cached document is used only if the server confirms, now, that it is unchanged (HTTP 304).
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[CacheKey, CachedDocument] = OrderedDict()

    def asking(self, key: CacheKey) -> dict[str, str]:
        """Return the headers of a conditional request (RFC 9110 section 13.1)."""
        kept = self._kept.get(key)
        return dict(kept.validators) if kept is not None else {}

    def take(self, key: CacheKey, reply: OutboundReply) -> OutboundReply:
        """Return *reply*, or the cached document if the reply says that it is unchanged."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= len(kept.body)
        if reply.status == 304 and kept is not None:
            self._keep(key, kept)
            return OutboundReply(200, reply.headers, kept.body, False, reply.url)
        if reply.status == 200 and not reply.truncated:
            names = {"etag": "if-none-match", "last-modified": "if-modified-since"}
            validators = tuple(
                (asks, reply.headers[name]) for name, asks in names.items() if name in reply.headers
            )
            if validators:
                self._keep(key, CachedDocument(validators, reply.body))
        return reply

    def _keep(self, key: CacheKey, kept: CachedDocument) -> None:
        if len(kept.body) > self._most:
            return
        self._kept[key] = kept
        self._bytes += len(kept.body)
        while self._bytes > self._most:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.body)
