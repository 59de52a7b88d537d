"""Cache known tokens, and the answers of issuers about them, within bounds."""

import hashlib
import random
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

import msgspec

GOOD_S = 30.0
"""The cache lifetime of an active token; a revoked token works no longer than this."""
BAD_S = 5.0
"""The cache lifetime of a refusal, which limits requests of a client in a loop."""
REMEMBERED = 10_000
LOOKED_AT = 2
"""The number of entries of a cache that are examined for each new one."""
# Not the shared generator of the process, which a tool may have seeded. The system's takes ten
# times as long, and attackers do not learn what is replaced.
DICE = random.Random()  # noqa: S311

AnswerKey = tuple[bytes, str, str, int]
"""The cache key: the digest of the whole token, issuer, resource and registry generation."""
K = TypeVar("K")
T = TypeVar("T")


class RandomCache(Generic[K, T]):
    """
    At most *capacity* entries; a new one replaces any other by chance.

    Because there is no order, a hit writes nothing. If slightly more tokens are used in turn than
    fit, most are still found; a cache that evicts the least recently used one would find none of
    them. An expired entry becomes None when it is read. It keeps its place until `tidy` finds it or
    another entry replaces it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: dict[K, T | None] = {}
        """Read these directly; `keep`, `end` and `drop` change them."""
        self._places: list[K] = []
        """The keys of all entries."""
        # Two threads that replace the same place would leave an entry that nothing removes.
        self._changing = Lock()

    def __len__(self) -> int:
        return len(self.entries)

    def keep(self, key: K, entry: T) -> None:
        """Add or replace an entry."""
        with self._changing:
            if key not in self.entries:
                if self.capacity < 1:
                    return
                if len(self._places) < self.capacity:
                    self._places.append(key)
                else:
                    place = int(DICE.random() * len(self._places))
                    del self.entries[self._places[place]]
                    self._places[place] = key
            self.entries[key] = entry

    def tidy(self, is_over: Callable[[T], bool]) -> None:
        """
        Look at a few entries by chance, and remove those that count no more.

        Called once for each new entry, this leaves at most as many that count no more as others.
        """
        with self._changing:
            places = self._places
            for _ in range(min(LOOKED_AT, len(places))):
                # `randrange` takes two calls in Python, more than all else here.
                place = int(DICE.random() * len(places))
                key = places[place]
                entry = self.entries[key]
                if entry is None or is_over(entry):
                    del self.entries[key]
                    last = places.pop()
                    if place < len(places):
                        places[place] = last

    def end(self, key: K, entry: T) -> None:
        """Let an entry count no more, unless another thread has replaced it."""
        with self._changing:
            if self.entries.get(key) is entry:
                self.entries[key] = None

    def drop(self, which: Callable[[T], bool]) -> None:
        """Remove these entries, and those that are no longer valid."""
        with self._changing:
            kept = self.entries.items()
            self.entries = {key: one for key, one in kept if one is not None and not which(one)}
            self._places = list(self.entries)


class CachedAnswer(msgspec.Struct, Generic[T], frozen=True):
    """A cache entry with start and end of its validity."""

    value: T
    since: float
    until: float


class Memory(RandomCache[AnswerKey, CachedAnswer[T]]):
    """A `RandomCache` of answers that each have an end."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        super().__init__(capacity)

    def get(self, key: AnswerKey, now: float) -> T | None:
        """Return the entry if it is valid at this time."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        if not entry.since <= now < entry.until:
            self.end(key, entry)
            return None
        return entry.value

    def forget(self, which: Callable[[T], bool]) -> None:
        """Remove the entries of these callers."""
        self.drop(lambda entry: which(entry.value))

    def put(self, key: AnswerKey, value: T, *, now: float, until: float) -> None:
        """Store *value* until then, unless it has already expired."""
        if until > now:
            self.tidy(lambda entry: entry.until <= now)
            self.keep(key, CachedAnswer(value, now, until))


def digest_of(token: str) -> bytes:
    """Return the digest that is stored instead of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
