"""Answers of older revisions, as events that a client which lost its connection can get again."""

import asyncio
from collections.abc import Coroutine
from functools import cached_property

from starlette.types import Send

from gatepost.mcp.ear import Ear
from gatepost.mcp.era import NEWEST_HANDSHAKE
from gatepost.mcp.journal import EVENT, LAST, MARK, SILENT_END, Archive, Journal
from gatepost.mcp.jsonrpc import notification
from gatepost.mcp.room import Signal
from gatepost.mcp.stream import SIGN_OF_LIFE, Stream, frame
from gatepost.stores.api import StoreUnavailable
from gatepost.streams import Closing, Streams, TooMany
from gatepost_authz.caller import TenantContext


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

    async def sign(self) -> None:
        """See `Stream`; nothing when it would open one stream too many."""
        async with self._turn:
            if self._ended:
                return
            try:
                await self._start()
            except (TooMany, Closing):
                return
            await self._put(SIGN_OF_LIFE, more=True)

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
                await self._put(SIGN_OF_LIFE, more=True)

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
