"""Server-sent events for a page, for as long as the session is valid."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

from starlette.types import Receive

from gatepost.dashboard.dashboard_session import DashboardSessions, SignedInSession
from gatepost.dashboard.page import ServerSentEvent
from gatepost.dashboard.page_response import ResponseSender
from gatepost.dashboard.security_headers import NO_STORE
from gatepost.http.open_streams import OpenStreams
from gatepost.storage.errors import StoreUnavailable
from gatepost_authz.caller import TenantContext

LINE_BREAK = re.compile(r"\r\n|\r|\n")
POLL_S = 0.5
"""Seconds between checks of a stream's session; half of the promised delay."""
SESSION_ENDED = ServerSentEvent("over", "")
"""The last event of a stream whose session ended: the page reloads and reaches the sign-in."""


class LiveStream:
    """
    One open stream, counted and kept alive with all others.

    It ends with the events, the connection, the session or the server.
    """

    def __init__(
        self, session: SignedInSession, sessions: DashboardSessions, streams: OpenStreams
    ) -> None:
        self.caller: TenantContext = session.caller
        self._session = session
        self._sessions = sessions
        self._streams = streams
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue(maxsize=16)
        self._stop = asyncio.Event()

    @property
    def watches(self) -> bool:
        """Return False: the stream watches no documents."""
        return False

    def wake(self) -> None:
        """Do nothing: the events arrive by themselves."""

    def send_keep_alive(self) -> None:
        """Send a comment, so that proxies keep the connection open."""
        with contextlib.suppress(asyncio.QueueFull):
            self._outbox.put_nowait(b":\n\n")

    def end(self) -> None:
        """End the stream."""
        self._stop.set()

    async def run(
        self, events: AsyncIterator[ServerSentEvent], receive: Receive, reply: ResponseSender
    ) -> None:
        """Send *events* until the stream ends; raises TooMany or ServerStopping at first."""
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
            # Exceptions of the events are raised below, so that Edge answers them.
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        if self._stop.is_set():
            await reply.send(
                {"type": "http.response.body", "body": lines(SESSION_ENDED), "more_body": True}
            )
        await reply.send({"type": "http.response.body", "body": b""})

    async def _fill(self, events: AsyncIterator[ServerSentEvent]) -> None:
        async for event in events:
            await self._outbox.put(lines(event))
        await self._outbox.join()

    async def _empty(self, reply: ResponseSender) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            NO_STORE,
            # Tell proxies not to buffer: a buffered stream never updates the page.
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
            await asyncio.sleep(POLL_S)
            with contextlib.suppress(StoreUnavailable):
                if await self._sessions.has_ended(self._session):
                    break
        self._stop.set()


def lines(event: ServerSentEvent) -> bytes:
    """Return the event in wire format (HTML, 9.2.6), with a data line for each line of its data."""
    # Not `splitlines`, which also breaks where HTML does not, as at U+2028.
    data = "".join(f"data: {line}\n" for line in LINE_BREAK.split(event.data))
    return f"event: {event.name}\n{data}\n".encode("utf-8", "replace")
