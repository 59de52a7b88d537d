"""Follow the changes of an upstream over HTTP: `subscriptions/listen`, or the GET of a session."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from gatepost.upstreams.connection import (
    ConnectionFailure,
    UpstreamNotification,
    UpstreamRequest,
)
from gatepost.upstreams.transport import outgoing
from gatepost.upstreams.transport.announcements import AnnouncementQueue, Announcements
from gatepost.upstreams.transport.answers import EVENTS, media_type, streamed_messages
from gatepost.upstreams.transport.event_parser import EventParser
from gatepost.upstreams.transport.failures import broken, invalid, raise_for_refusal
from gatepost.upstreams.transport.http_requester import HttpRequester
from gatepost.upstreams.transport.incoming import ReceivedMessage, UpstreamResponse
from gatepost.upstreams.transport.negotiation import UpstreamPeer
from gatepost.upstreams.transport.reader import (
    CHANGE_NOTIFICATIONS,
    AnswerItself,
    is_same,
    judged_request,
)

WITHIN_S = 15.0
"""How long the server may take to open the stream."""
EVENT_BYTES = 1_000_000
WEEK_S = 7 * 86_400.0
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
LISTS = {"tools": "toolsListChanged", "prompts": "promptsListChanged"} | {
    "resources": "resourcesListChanged"
}


class NotificationHost(Protocol):
    """The part of its connection that following uses."""

    requester: HttpRequester
    announcements: Announcements

    async def peer(self, capabilities: Mapping[str, Any]) -> UpstreamPeer:
        """Return the server with a session that may be used."""

    def follows(self, peer: UpstreamPeer) -> bool:
        """Return whether the changes that a session announces arrive already."""

    def next_id(self) -> int:
        """Return an id that no other request of this connection has."""

    def send_in_background(self, peer: UpstreamPeer, body: bytes) -> None:
        """Send a message in the background."""


@asynccontextmanager
async def followed(
    host: NotificationHost, uris: Sequence[str]
) -> AsyncIterator[AsyncIterator[UpstreamNotification]]:
    """
    Yield the notifications, once the server has opened a stream for them.

    Changes that a session announces on the stream of another request arrive too.
    """
    with host.announcements.following() as queue:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(_pumped(host, uris, queue, opened))
        try:
            await opened
            async with aclosing(_each(queue)) as notifications:
                yield notifications
        finally:
            task.cancel()
            await asyncio.wait([task])


async def _each(queue: AnnouncementQueue) -> AsyncGenerator[UpstreamNotification, None]:
    async for notification in queue:
        yield notification


async def _pumped(
    host: NotificationHost,
    uris: Sequence[str],
    queue: AnnouncementQueue,
    opened: asyncio.Future[None],
) -> None:
    """Read the stream into the queue; its end is the end of the queue."""
    try:
        peer = await host.peer({})
        is_modern = peer.description.era == "modern"
        if host.follows(peer):
            opened.set_result(None)
            await asyncio.Event().wait()
        identity = host.next_id()
        read = _listened(host, peer, uris, identity) if is_modern else read_stream(host, peer)
        async with aclosing(read) as messages:
            async with asyncio.timeout(WITHIN_S):
                await anext(messages)
            opened.set_result(None)
            async for received in messages:
                if isinstance(received, UpstreamResponse) and is_same(received.id, identity):
                    break
                _take(host, peer, received, queue)
        raise broken(host.requester.server.name)
    except ConnectionFailure as failed:
        failure = failed
    except (TimeoutError, StopAsyncIteration):
        failure = invalid(host.requester.server.name, "did not open a stream of notifications")
    except asyncio.CancelledError:
        opened.cancel()
        raise
    if opened.done():
        queue.end(failure)
    else:
        opened.set_exception(failure)


def _take(
    host: NotificationHost, peer: UpstreamPeer, received: ReceivedMessage, queue: AnnouncementQueue
) -> None:
    if isinstance(received, UpstreamNotification) and received.method in CHANGE_NOTIFICATIONS:
        queue.put(received)
    elif isinstance(received, UpstreamRequest):
        judgement = judged_request(received, has_requests=False)
        if isinstance(judgement, AnswerItself):
            host.send_in_background(peer, outgoing.response(judgement.id, judgement.answer))


async def _listened(
    host: NotificationHost, peer: UpstreamPeer, uris: Sequence[str], identity: int
) -> AsyncGenerator[ReceivedMessage, None]:
    """Yield the acknowledgement of `subscriptions/listen`, and what follows."""
    name, declared = host.requester.server.name, peer.description.capabilities
    filters: dict[str, Any] = {
        member: True
        for section, member in LISTS.items()
        if not declared or _is_offered(declared, section, "listChanged")
    }
    if uris:
        filters["resourceSubscriptions"] = list(uris)
    if not filters:
        raise invalid(name, "announces no changes")
    params = {"notifications": filters, "_meta": outgoing.modern_meta({})}
    headers = peer.headers() | {"mcp-method": "subscriptions/listen"}
    body = outgoing.message("subscriptions/listen", params, identity)
    async with host.requester.open("POST", headers, body, timeout_s=WEEK_S) as reply:
        raise_for_refusal(name, reply)
        if reply.status >= 400 or media_type(reply) != EVENTS:
            raise invalid(name, "does not open a stream of notifications")
        async for message in streamed_messages(reply, EventParser(EVENT_BYTES), None):
            yield message


async def read_stream(
    host: NotificationHost, peer: UpstreamPeer
) -> AsyncGenerator[ReceivedMessage, None]:
    """Yield an empty notification once the GET stream of a session is open, and what follows."""
    name = host.requester.server.name
    headers = peer.headers() | {"accept": EVENTS}
    headers.pop("content-type")
    async with host.requester.open("GET", headers, timeout_s=WEEK_S) as reply:
        raise_for_refusal(name, reply)
        if reply.status >= 400 or media_type(reply) != EVENTS:
            raise invalid(name, "does not open a stream of notifications")
        yield UpstreamNotification(ACKNOWLEDGED, {})
        async for message in streamed_messages(reply, EventParser(EVENT_BYTES), None):
            yield message


def _is_offered(capabilities: Mapping[str, Any], section: str, feature: str) -> bool:
    offered = capabilities.get(section)
    return isinstance(offered, dict) and offered.get(feature) is True
