"""The events of a stream, written down so that a client which lost its connection gets the rest."""

import contextlib
import re
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from gatepost.mcp.jsonrpc import INTERNAL_ERROR, Refused, error
from gatepost.mcp.room import Room
from gatepost.stores.api import StoreUnavailable

MOST_EVENTS = 500
MOST_BYTES = 1_000_000
# Thrice the time between two beats: a process that dies takes its streams along within a minute.
RUNNING_S = 60.0
OVER_S = 120.0
"""How long after its end a stream can be had again."""

Owner = tuple[str, str, str, str]
"""Whose streams these are (`TenantContext.principal_key`)."""

EVENT_ID = re.compile(r"([A-Za-z0-9_-]{16})-([0-9]{1,9})", re.ASCII)

EVENT, LAST, SILENT_END, MARK = b"e", b"l", b"s", b"m"
"""
What an entry of a journal is: a message, the last one, an end without one, or nothing to be seen.
"""
ENDS = (LAST, SILENT_END)

JOURNAL_BYTES, EVENT_BYTES = 2_000, 200
"""What a journal and an event take beside their content."""
MOST_KEPT_BYTES = 16_000_000
"""What the ended streams of one caller may weigh; its oldest go before their time."""

TOO_LARGE = Refused(INTERNAL_ERROR, "The answer is too large to be kept for a lost connection")


class Journal:
    """
    The newest events of one stream, at the relay: bounded in number, bytes and time.

    An event that cannot be kept goes out without an id, and nobody can come back for it.
    """

    def __init__(self, room: Room, identity: bytes) -> None:
        self.name = secrets.token_urlsafe(12)
        self._shelf = room.shelf(self.name)
        self._identity = identity
        self._sizes: deque[int] = deque()
        self._total = 0

    @property
    def is_kept(self) -> bool:
        """Whether there is anything of it."""
        return bool(self._sizes)

    @property
    def size(self) -> int:
        """Bytes that keeping it takes, about."""
        return self._total + JOURNAL_BYTES + EVENT_BYTES * len(self._sizes)

    async def forget(self) -> None:
        """Keep nothing of it any more."""
        with contextlib.suppress(StoreUnavailable):
            await self._shelf.relay.forget(self._shelf.name)

    async def write(self, kind: bytes, data: bytes = b"") -> str:
        """Keep an event; its id, or "" when it could not be kept."""
        if len(data) > MOST_BYTES:
            # Whoever comes back learns that there was an answer.
            data = error(self._identity, TOO_LARGE) if kind == LAST else b""
            kind = kind if data else MARK
        self._sizes.append(len(data))
        self._total += len(data)
        while len(self._sizes) > MOST_EVENTS or self._total > MOST_BYTES:
            self._total -= self._sizes.popleft()
        ttl_s = OVER_S if kind in ENDS else RUNNING_S
        try:
            number = await self._shelf.relay.append(
                self._shelf.name, kind + data, ttl_s=ttl_s, most=len(self._sizes)
            )
        except StoreUnavailable:
            return ""
        return f"{self.name}-{number}"


class Archive:
    """
    The journals of ended streams that this process wrote, of each caller's the newest.

    Each is kept for a while, in case its client comes back; a caller that is quick could have the
    relay keep gigabytes.
    """

    def __init__(
        self, *, most_bytes: int = MOST_KEPT_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most_bytes
        self._clock = clock
        self._kept: OrderedDict[Owner, deque[tuple[float, Journal]]] = OrderedDict()
        self._totals: Counter[Owner] = Counter()

    def add(self, owner: Owner, journal: Journal) -> list[Journal]:
        """Take in a journal; those that have to go for it."""
        now = self._clock()
        self._kept.setdefault(owner, deque()).append((now + OVER_S, journal))
        self._kept.move_to_end(owner)
        self._totals[owner] += journal.size
        self._drop_silent(now)
        journals, gone = self._kept[owner], []
        while len(journals) > 1 and (self._totals[owner] > self._most or journals[0][0] <= now):
            until, oldest = journals.popleft()
            self._totals[owner] -= oldest.size
            if until > now:
                gone.append(oldest)
        return gone

    def _drop_silent(self, now: float) -> None:
        """Forget the callers whose newest journal is gone by itself."""
        for owner in tuple(self._kept):
            if self._kept[owner][-1][0] > now:
                return  # and so is everybody's after it
            del self._kept[owner], self._totals[owner]
