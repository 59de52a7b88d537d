"""A map that removes its oldest entries, so that callers cannot fill the memory."""

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedDict(Generic[V]):
    """At most *limit* entries by string key; the one unused for longest goes first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[str, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> V | None:
        """Return the entry, which counts as used now; None when unknown or forgotten."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: str, value: V) -> None:
        """Keep *value*; over the limit the entry unused for longest is forgotten."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self.limit:
            self._entries.popitem(last=False)

    def drop(self, key: str) -> None:
        """Forget *key*, if it is there."""
        self._entries.pop(key, None)
