"""A request's body within its limits, and word when its client leaves: what any protocol needs."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Message, Receive

from gatepost.http.caller_bytes import CallerBytes
from gatepost.tools.cpu_thread import TooManyWaiting
from gatepost.tools.interruption import HUNG_UP, Interruptible, Stop, timer
from gatepost.tools.running_requests import ENDINGS, RunningRequests
from gatepost_authz.caller import TenantContext

T = TypeVar("T")

# Most calls are over before anybody could hang up; a task that listens for it costs more than they.
WATCH_AFTER_S = 0.05


class Gone(Exception):
    """The client hung up before its request was complete."""


class TooLarge(Exception):
    """The body is larger than it may be."""


class RequestCancelled(Exception):
    """The client took its request back."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """
    Read the whole body; raises TooLarge, or Gone when the rest never comes.

    What declares itself too large never gets here: the edge refuses it unread.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) <= limit:
            return body
        raise TooLarge
    chunks: list[bytes] = []
    size = 0
    while message["type"] == "http.request":
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise TooLarge
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()
    raise Gone


AT_ONCE = 32
"""
How many bodies of the largest size may arrive at once from one caller. The default burst of
`[limits]` is smaller, so a caller within its limits is not refused.
"""
AT_ONCE_OF_TENANT = 4 * AT_ONCE

_arriving = CallerBytes()


async def read_body_of(caller: TenantContext, receive: Receive, limit: int) -> bytes:
    """
    Read the whole body of a request of *caller*, as `read_body` does.

    Raises TooManyWaiting if too many bytes of the caller or its tenant are arriving: no rate limit
    counts a request before its body is complete, and a client may hold back the end of any number
    of them.
    """
    owner, size = caller.principal_key, 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        if message.get("more_body"):
            arrived = len(message.get("body", b""))
            size += arrived
            _arriving.add(owner, arrived)
            of_caller, of_tenant = _arriving.of(owner)
            if of_caller > AT_ONCE * limit or of_tenant > AT_ONCE_OF_TENANT * limit:
                raise TooManyWaiting
        return message

    try:
        return await read_body(counted, limit)
    finally:
        _arriving.add(owner, -size)


class UntilDisconnect(Interruptible[T]):
    """
    Awaits *work*; Stopped when the client hangs up, which takes the request back (T-11).

    RevokedToken or TenantSuspended when its caller is shut out.
    """

    __slots__ = ("_caller", "_receive", "_timer", "_underway", "_watcher")

    stopped = RequestCancelled

    def __init__(
        self, receive: Receive, work: Awaitable[T], caller: TenantContext, underway: RunningRequests
    ) -> None:
        self._work = work.__await__()
        self._stop = None
        self._receive = receive
        self._caller = caller
        self._underway = underway

    def raised(self) -> type[Exception]:
        return (
            RequestCancelled
            if self._stop is None
            else ENDINGS.get(self._stop.why, RequestCancelled)
        )

    def begin(self, stop: Stop) -> None:
        self._underway.enter(stop, self._caller)
        self._watcher: asyncio.Task[None] | None = None
        self._timer = timer(WATCH_AFTER_S, self._watch, stop)

    def end(self) -> None:
        if self._stop is not None:
            self._underway.leave(self._stop)
        self._timer.cancel()
        del self._timer
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def _watch(self, stop: Stop) -> None:
        self._watcher = asyncio.create_task(self._until_gone(stop))

    async def _until_gone(self, stop: Stop) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        stop.pull(HUNG_UP)
