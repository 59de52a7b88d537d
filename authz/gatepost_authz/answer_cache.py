"""Caches what issuers say about tokens."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

GOOD_S = 30.0
"""The cache lifetime of an active token; a revoked token works no longer than this."""
BAD_S = 5.0
"""The cache lifetime of a refusal, which limits requests of a client in a loop."""
REMEMBERED = 10_000

Key = tuple[bytes, str, str, int]
"""The cache key: the digest of the whole token, issuer, resource and registry generation."""
T = TypeVar("T")


class CachedAnswer(msgspec.Struct, Generic[T], frozen=True):
    """A cache entry with start and end of its validity."""

    value: T
    since: float
    until: float


class Memory(Generic[T]):
    """A cache of at most *capacity* entries; the least recently used is evicted first."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self.capacity = capacity
        self._kept: OrderedDict[Key, CachedAnswer[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key, now: float) -> T | None:
        """Return the entry if it is valid at this time."""
        entry = self._kept.get(key)
        if entry is None:
            return None
        if not entry.since <= now < entry.until:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return entry.value

    def forget(self, which: Callable[[T], bool]) -> None:
        """Remove the entries of these callers."""
        for key in [key for key, entry in self._kept.items() if which(entry.value)]:
            del self._kept[key]

    def put(self, key: Key, value: T, *, now: float, until: float) -> None:
        """Store *value* until then, unless it has already expired."""
        if until > now:
            self._kept[key] = CachedAnswer(value, now, until)
            if len(self._kept) > self.capacity:
                self._kept.popitem(last=False)


def digest_of(token: str) -> bytes:
    """Return the digest that is stored instead of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
