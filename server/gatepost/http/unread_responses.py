"""Answers that clients have not read yet: how many bytes of them a process keeps, for whom."""

import logging
from collections.abc import Hashable
from typing import Protocol

import msgspec

from gatepost_authz.ratelimited import RateLimitedLog

_log = logging.getLogger("gatepost.wire")


class UnreadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much clients may leave unread, and how slowly they may read it; 0 is no limit."""

    process_bytes: int = 256_000_000
    """Of all callers together."""
    caller_bytes: int = 64_000_000
    """Of one caller; of an address, where no token was verified."""
    bytes_per_s: int = 500
    """How fast a client reads at least."""
    window_s: float = 30.0
    """Over how long that is judged."""


class Reader(Protocol):
    """A connection whose client has not read all that was sent."""

    def abort(self) -> None:
        """End the connection, with what is unread."""


class UnreadResponses:
    """
    What every connection of a process keeps for a client that reads slowly.

    Only connections that the socket takes no more from are counted, each with the whole answer
    that it keeps. Beyond a limit, the connection that has waited longest is ended: one of the
    caller that is over its limit, or of the caller that keeps the most. The only connection of a
    caller is left to its reading rate: a limit below the size of one answer refuses none.
    """

    def __init__(self, limits: UnreadLimits) -> None:
        self.limits = limits
        self._kept: dict[Hashable, dict[Reader, int]] = {}
        self._sums: dict[Hashable, int] = {}
        self._log = RateLimitedLog(_log)
        self.total = 0

    def keep(self, reader: Reader, owner: Hashable, size: int) -> None:
        """Count *size* bytes for *owner*, instead of what was counted for this connection."""
        self._add(reader, owner, size)
        limits = self.limits
        while 0 < limits.caller_bytes < self._sums.get(owner, 0) and len(self._kept[owner]) > 1:
            self._end_oldest(owner, "caller")
        while 0 < limits.process_bytes < self.total and (most := self._most()) is not None:
            self._end_oldest(most, "process")

    def drop(self, reader: Reader, owner: Hashable) -> int:
        """Count nothing for this connection any more; how much it was."""
        kept = self._kept.get(owner)
        size = 0 if kept is None else kept.pop(reader, 0)
        if kept is not None:
            self.total -= size
            self._sums[owner] -= size
            if not kept:
                del self._kept[owner], self._sums[owner]
        return size

    def end(self, reader: Reader, owner: Hashable, reason: str) -> None:
        """End a connection and say so in the log."""
        size = self.drop(reader, owner)
        tenant = owner[0] if isinstance(owner, tuple) else None
        self._log.warning("unread_answer_dropped", reason=reason, tenant=tenant, bytes=size)
        reader.abort()

    def _add(self, reader: Reader, owner: Hashable, size: int) -> None:
        kept = self._kept.setdefault(owner, {})
        more = size - kept.get(reader, 0)
        kept[reader] = size  # in its old place, if it had one: the first is the oldest
        self._sums[owner] = self._sums.get(owner, 0) + more
        self.total += more

    def _most(self) -> Hashable | None:
        """Return the caller with the most unread bytes; None if only one connection is left."""
        if len(self._kept) < 2 and all(len(kept) < 2 for kept in self._kept.values()):
            return None
        return max(self._sums, key=self._sums.__getitem__)

    def _end_oldest(self, owner: Hashable, reason: str) -> None:
        self.end(next(iter(self._kept[owner])), owner, reason)
