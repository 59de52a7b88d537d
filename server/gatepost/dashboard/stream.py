"""A page that stays open: server-sent events, for as long as the visitor may look."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

from starlette.types import Receive

from gatepost.dashboard.headers import NO_STORE
from gatepost.dashboard.reply import Reply
from gatepost.dashboard.session import Session, Sessions
from gatepost.dashboard.visit import Event
from gatepost.stores.api import StoreUnavailable
from gatepost.streams import Streams
from gatepost_authz.caller import TenantContext

BREAK = re.compile(r"\r\n|\r|\n")
LOOK_EVERY_S = 0.5
"""How soon a stream ends whose session was cut off or ended; half of what is promised."""
OVER = Event("over", "")
"""The last word of a stream whose session ended: the page asks, and is led to the sign-in."""


class Live:
    """
    One open stream, counted and kept alive with all others.

    It ends with the events, the visitor, the session or the server.
    """

    def __init__(self, session: Session, sessions: Sessions, streams: Streams) -> None:
        self.caller: TenantContext = session.caller
        self._session = session
        self._sessions = sessions
        self._streams = streams
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue(maxsize=16)
        self._stop = asyncio.Event()

    @property
    def watches(self) -> bool:
        """It shows what the tenant's people may see; no document that somebody was let watch."""
        return False

    def wake(self) -> None:
        """Nothing to do: its events come by themselves."""

    def beat(self) -> None:
        """Show proxies that the connection lives."""
        with contextlib.suppress(asyncio.QueueFull):
            self._outbox.put_nowait(b":\n\n")

    def end(self) -> None:
        """Say that it is over, and close."""
        self._stop.set()

    async def run(self, events: AsyncIterator[Event], receive: Receive, reply: Reply) -> None:
        """Send *events* until something ends; raises TooMany or Closing before the first byte."""
        self._streams.enter(self)
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._fill(events),
                self._empty(reply),
                self._until_left(receive),
                self._until_over(),
                self._stop.wait(),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.leave(self)
            for task in tasks:
                task.cancel()
            # Their outcome is looked at: what a page's events raise is for Edge to tell.
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        if self._stop.is_set():
            await reply.send({"type": "http.response.body", "body": lines(OVER), "more_body": True})
        await reply.send({"type": "http.response.body", "body": b""})

    async def _fill(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            await self._outbox.put(lines(event))
        await self._outbox.join()

    async def _empty(self, reply: Reply) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            NO_STORE,
            # A proxy that gathers an answer until it is whole shows a live page nothing.
            (b"x-accel-buffering", b"no"),
        ]
        await reply.send({"type": "http.response.start", "status": 200, "headers": headers})
        await reply.send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
        while True:
            part = await self._outbox.get()
            await reply.send({"type": "http.response.body", "body": part, "more_body": True})
            self._outbox.task_done()

    async def _until_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _until_over(self) -> None:
        while self._sessions.lives(self._session):
            await asyncio.sleep(LOOK_EVERY_S)
            with contextlib.suppress(StoreUnavailable):
                if await self._sessions.ended(self._session):
                    break
        self._stop.set()


def lines(event: Event) -> bytes:
    """The event as it is sent (HTML, 9.2.6): a line of its data for each line break in it."""
    # Not `splitlines`, which also breaks where HTML does not, as at U+2028.
    data = "".join(f"data: {line}\n" for line in BREAK.split(event.data))
    return f"event: {event.name}\n{data}\n".encode("utf-8", "replace")
