"""Cache known tokens, and the answers of issuers about them, within bounds."""

import hashlib
import random
from array import array
from collections.abc import Callable
from math import inf
from threading import Lock
from typing import Generic, TypeVar

import msgspec

ACTIVE_S = 30.0
"""The cache lifetime of an active token; a revoked token works no longer than this."""
REFUSED_S = 5.0
"""The cache lifetime of a refusal, which limits requests of a client in a loop."""
REMEMBERED = 10_000
EXAMINED = 2
"""The number of entries of a cache that are examined for each new one."""
# Not the shared generator of the process, which a tool may have seeded. The system's takes ten
# times as long, and attackers do not learn what is replaced.
RANDOM = random.Random()  # noqa: S311

AnswerKey = tuple[bytes, str, str, int]
"""The cache key: the digest of the whole token, issuer, resource and registry generation."""
K = TypeVar("K")
T = TypeVar("T")


class RandomCache(Generic[K, T]):
    """
    At most *capacity* entries; a new one replaces any other by chance.

    Because there is no order, a hit writes nothing. If slightly more tokens are used in turn than
    fit, most are still found; a cache that evicts the least recently used one would find none of
    them. An expired entry becomes None when it is read. It keeps its place until its end has been
    found, or another entry replaces it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: dict[K, T | None] = {}
        """Read these directly; `set_entry`, `end` and `drop` change them."""
        self._keys: list[K] = []
        """The keys of all entries."""
        # Numbers that lie side by side: reading the entries instead would fetch five objects each,
        # which were not used for a long time, from the memory.
        self._end_times = array("d")
        """By place, a time before which the entry does not end."""
        self._next = 0
        """The place that is examined next."""
        # Two threads that replace the same place would leave an entry that nothing removes.
        self._changing = Lock()

    def __len__(self) -> int:
        return len(self.entries)

    def end_of(self, entry: T) -> float:
        """Return the time from which an entry counts no more."""
        return inf

    def set_entry(self, key: K, entry: T, *, now: float = -inf, until: float = inf) -> None:
        """
        Add or replace an entry that is valid before *until*, the time that `end_of` returns.

        Each new entry examines the next two entries and removes those that have ended. After as
        many new entries as the cache held, no entry is left that had ended before. An entry that
        replaces one with a later end is not removed before that end.
        """
        with self._changing:
            if key not in self.entries:
                if self.capacity < 1:
                    return
                end_times, position = self._end_times, self._next
                if min(end_times[position : position + EXAMINED], default=inf) <= now:
                    position = self._position_of_ended(position, now)
                else:
                    position += EXAMINED
                    self._next = position if position < len(end_times) else 0
                    position = -1
                if position < 0 and len(end_times) < self.capacity:
                    end_times.append(until)
                    self._keys.append(key)
                else:
                    if position < 0:
                        # `randrange` takes two calls in Python.
                        position = int(RANDOM.random() * len(end_times))
                        del self.entries[self._keys[position]]
                    self._keys[position], end_times[position] = key, until
            self.entries[key] = entry

    def _position_of_ended(self, first: int, now: float) -> int:
        """Remove the next entries that have ended; return the place of one, or -1 without any."""
        keys, end_times = self._keys, self._end_times
        self._next = first + EXAMINED
        ended_positions = []
        for position in range(first, min(first + EXAMINED, len(keys))):
            entry = self.entries[keys[position]]
            # The place was made for an entry that may have been renewed since.
            end_times[position] = max(
                end_times[position], -inf if entry is None else self.end_of(entry)
            )
            if end_times[position] <= now:
                del self.entries[keys[position]]
                ended_positions.append(position)
        for position in reversed(ended_positions[1:]):
            key, end = keys.pop(), end_times.pop()
            if position < len(keys):
                keys[position], end_times[position] = key, end
                self._next = position
        if self._next >= len(keys):
            self._next = 0
        return ended_positions[0] if ended_positions else -1

    def end(self, key: K, entry: T) -> None:
        """Let an entry count no more, unless another thread has replaced it."""
        with self._changing:
            if self.entries.get(key) is entry:
                self.entries[key] = None

    def drop(self, predicate: Callable[[T], bool]) -> None:
        """Remove these entries, and those that are no longer valid."""
        with self._changing:
            items = self.entries.items()
            remaining = {
                key: entry for key, entry in items if entry is not None and not predicate(entry)
            }
            self._keys, self._next = list(remaining), 0
            self._end_times = array("d", map(self.end_of, remaining.values()))
            self.entries = {**remaining}


class CachedAnswer(msgspec.Struct, Generic[T], frozen=True):
    """A cache entry with start and end of its validity."""

    value: T
    since: float
    until: float


class AnswerCache(RandomCache[AnswerKey, CachedAnswer[T]]):
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

    def forget(self, predicate: Callable[[T], bool]) -> None:
        """Remove the entries of these callers."""
        self.drop(lambda entry: predicate(entry.value))

    def end_of(self, entry: CachedAnswer[T]) -> float:
        """Return the end of an answer."""
        return entry.until

    def put(self, key: AnswerKey, value: T, *, now: float, until: float) -> None:
        """Store *value* until then, unless it has already expired."""
        if until > now:
            self.set_entry(key, CachedAnswer(value, now, until), now=now, until=until)


def digest_of(token: str) -> bytes:
    """Return the digest that is stored instead of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
