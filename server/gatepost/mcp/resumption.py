"""Answers of older revisions, as events that a client which lost its connection can get again."""

import asyncio
import contextlib
import re
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine
from functools import cached_property

from starlette.types import Send

from gatepost.mcp.ear import Ear
from gatepost.mcp.era import NEWEST_HANDSHAKE
from gatepost.mcp.jsonrpc import INTERNAL_ERROR, Refused, error, notification
from gatepost.mcp.room import Room, Signal
from gatepost.mcp.stream import Stream
from gatepost.stores.api import StoreUnavailable
from gatepost.streams import Closing, Streams, TooMany
from gatepost_authz.caller import TenantContext

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


class Resumable(Stream):
    """
    The answer to one request of a session, as events with ids.

    It begins with the first event, like any stream: an answer in plain JSON has no journal. The
    connection may go while the request goes on; from then on events are only written down, for
    the connection that comes to fetch them, at whichever process.
    """

    watches = False
    _let_go = False

    def __init__(
        self, send: Send, *, caller: TenantContext, ear: Ear, streams: Streams, archive: Archive
    ) -> None:
        super().__init__(send)
        self.caller = caller
        self._ear = ear
        self._streams = streams
        self._archive = archive

    @cached_property
    def _journal(self) -> Journal:
        return Journal(self._ear.room, self._ear.identity)

    @cached_property
    def _tasks(self) -> set[asyncio.Task[None]]:
        return set()

    @property
    def _primes(self) -> bool:
        return self._ear.room.session.version == NEWEST_HANDSHAKE

    async def notify(self, method: str, params: object) -> None:
        """Send a notification; none when it would open one stream too many."""
        async with self._turn:
            if self._ended:
                return
            try:
                await self._event(notification(method, params), more=True)
            except (TooMany, Closing):
                return

    async def ask(self, body: bytes) -> None:
        """Send a request of ours; raises TooMany or Closing."""
        async with self._turn:
            if not self._ended:
                await self._event(body, more=True)

    async def finish(self, body: bytes | None) -> None:
        """Send the response, if there is to be one, and end the stream."""
        self._ended = True
        async with self._turn:
            try:
                if body is not None:
                    await self._event(body, more=False)
                elif self.started:
                    await self._journal.write(SILENT_END)
                    await self._stir()
                    await self._put(b"", more=False)
                else:
                    await self._open(b": cancelled\n\n")
            finally:
                self._streams.leave(self)
        if self._journal.is_kept:
            for old in self._archive.add(self.caller.principal_key, self._journal):
                await old.forget()

    def close(self) -> None:
        """The request is over, whatever became of its stream, and so is what still speaks on it."""
        self._ended = True
        # Also one that never began: it takes its place first, and beginning may fail.
        self._streams.leave(self)

    async def pause(self, retry_after_s: float) -> None:
        """Close the connection; the client comes back after that time (S-06, 2025-11-25 only)."""
        async with self._turn:
            if not self._primes or self._ended or self._let_go:
                return
            try:
                await self._start()
            except (TooMany, Closing):
                return
            await self._put(b"retry: %d\n\n" % round(retry_after_s * 1000), more=False)
            self._let_go = True

    def hear(self, signal: Signal) -> None:
        """Take what another part of the session tells."""
        if signal.kind == "resume" and signal.about == self._journal.name:
            self._soon(self._hang_up())

    def beat(self) -> None:
        """Keep connection and journal alive."""
        if not self._turn.locked():
            self._soon(self._beat())

    def wake(self) -> None:
        """Nothing: it speaks when its request does."""

    def end(self) -> None:
        """Nothing: the request it belongs to ends by itself, and in time."""

    async def _beat(self) -> None:
        async with self._turn:
            if not self._ended:
                await self._journal.write(MARK)
                await self._put(b":\n\n", more=True)

    async def _hang_up(self) -> None:
        """The client has another connection for this by now: one message, one stream (S-11)."""
        async with self._turn:
            if not self._ended:
                await self._put(b"", more=False)
                self._let_go = True
        # What was written before we heard of the other connection.
        await self._stir()

    async def _event(self, data: bytes, *, more: bool) -> None:
        await self._start()
        event_id = await self._journal.write(EVENT if more else LAST, data)
        if self._let_go:
            await self._stir()
        await self._put(frame(data, event_id), more=more)

    async def _start(self) -> None:
        if self.started:
            return
        if not self._ended:
            self._streams.enter(self)
            await self._ear.open(self.hear)
        prime = b""
        if self._primes and (event_id := await self._journal.write(MARK)):
            prime = b"id: %b\ndata: \n\n" % event_id.encode()
        await super()._start()
        if prime:
            await self._put(prime, more=True)

    async def _open(self, comment: bytes) -> None:
        await super()._start()
        await self._put(comment, more=False)

    async def _put(self, data: bytes, *, more: bool) -> None:
        if not self._let_go:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _stir(self) -> None:
        """Tell whoever reads the journal that there is more of it."""
        try:
            await self._ear.room.tell("event", self._journal.name)
        except StoreUnavailable:
            return  # they look by themselves now and then

    def _soon(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def frame(data: bytes, event_id: str) -> bytes:
    """One message as one event, whose `data:` is one line."""
    named = b"id: %b\n" % event_id.encode() if event_id else b""
    return b"%bevent: message\ndata: %b\n\n" % (named, data)
