"""
Read the GET stream of a session, on which some servers send requests that belong to a running call.
"""

import asyncio
from contextlib import aclosing
from typing import Protocol

import msgspec

from gatepost.upstreams.connection import (
    ConnectionFailure,
    UpstreamNotification,
    UpstreamRequest,
)
from gatepost.upstreams.transport import outgoing
from gatepost.upstreams.transport.attribution import owner_of
from gatepost.upstreams.transport.http_notifications import NotificationHost, read_stream
from gatepost.upstreams.transport.incoming import ReceivedMessage, UpstreamResponse
from gatepost.upstreams.transport.negotiation import UpstreamPeer
from gatepost.upstreams.transport.reader import CHANGE_NOTIFICATIONS, AnswerItself, judged_request

OPENED_WITHIN_S = 5.0
PAUSE_S = 1.0
ATTEMPTS = 3
"""How many times in a row the stream is opened without success."""


class SideReceiver(Protocol):
    """A running request that accepts messages from streams other than its own."""

    def receive_side_message(self, message: ReceivedMessage) -> None:
        """Take a message."""


class SessionStream(msgspec.Struct):
    """The stream of one session, and the requests that run in the session."""

    running: dict[int, SideReceiver] = msgspec.field(default_factory=dict)
    is_open: bool = False
    task: asyncio.Task[None] | None = None

    async def follow(self, host: NotificationHost, peer: UpstreamPeer) -> None:
        """Open the stream, and read it in the background; a server without one is no error."""
        opened = asyncio.Event()
        self.task = asyncio.create_task(self._read(host, peer, opened))
        waiting = asyncio.create_task(opened.wait())
        await asyncio.wait(
            {self.task, waiting}, timeout=OPENED_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()

    async def _read(
        self, host: NotificationHost, peer: UpstreamPeer, opened: asyncio.Event
    ) -> None:
        attempts = 0
        while attempts < ATTEMPTS and not peer.is_lost:
            attempts += 1
            try:
                async with aclosing(read_stream(host, peer)) as messages:
                    async for received in messages:
                        self.is_open, attempts = True, 0
                        opened.set()
                        self._take(host, peer, received)
            except ConnectionFailure as failed:
                if not self.is_open and failed.reason == "invalid":
                    return  # it has no such stream
            finally:
                self.is_open = False
            await asyncio.sleep(PAUSE_S)

    def _take(self, host: NotificationHost, peer: UpstreamPeer, received: ReceivedMessage) -> None:
        if isinstance(received, UpstreamResponse):
            return
        if isinstance(received, UpstreamNotification):
            if received.method in CHANGE_NOTIFICATIONS:
                host.announcements.publish(received)
                return
            owner = owner_of(received, self.running.keys())
            if owner is not None:
                self.running[owner].receive_side_message(received)
            return
        self._answer_request(host, peer, received)

    def _answer_request(
        self, host: NotificationHost, peer: UpstreamPeer, received: UpstreamRequest
    ) -> None:
        owner = owner_of(received, self.running.keys())
        judgement = judged_request(received, has_requests=owner is not None)
        if isinstance(judgement, AnswerItself):
            host.send_in_background(peer, outgoing.response(judgement.id, judgement.answer))
        elif owner is not None:
            self.running[owner].receive_side_message(received)
