"""Documents that were fetched before, so that a server need not send again what has not changed."""

from collections import OrderedDict
from typing import NamedTuple

from gatepost.tools.surroundings import Reply

MOST_BYTES = 32_000_000
"""Of all tenants, in one process; what was used longest ago is forgotten first."""


class Key(NamedTuple):
    """Whose it is comes first: an address that two tenants know may show each something else."""

    tenant: str
    url: str
    user: str


class Kept(NamedTuple):
    """A document and what its server calls this version of it."""

    validators: tuple[tuple[str, str], ...]
    body: bytes


class Shelf:
    """Nothing of it is answered unless the server says, now, that it is still so (HTTP 304)."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[Key, Kept] = OrderedDict()

    def asking(self, key: Key) -> dict[str, str]:
        """The headers that ask for news only (RFC 9110 section 13.1)."""
        kept = self._kept.get(key)
        return dict(kept.validators) if kept is not None else {}

    def take(self, key: Key, reply: Reply) -> Reply:
        """*reply*, or the document that it says has not changed."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= len(kept.body)
        if reply.status == 304 and kept is not None:
            self._keep(key, kept)
            return Reply(200, reply.headers, kept.body, False, reply.url)
        if reply.status == 200 and not reply.truncated:
            names = {"etag": "if-none-match", "last-modified": "if-modified-since"}
            validators = tuple(
                (asks, reply.headers[name]) for name, asks in names.items() if name in reply.headers
            )
            if validators:
                self._keep(key, Kept(validators, reply.body))
        return reply

    def _keep(self, key: Key, kept: Kept) -> None:
        if len(kept.body) > self._most:
            return
        self._kept[key] = kept
        self._bytes += len(kept.body)
        while self._bytes > self._most:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.body)
