"""Read a request's body within its limits, and end requests that wait, for any protocol."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeVar

from starlette.types import Message, Receive

from gatepost.execution.cpu_thread import TooManyWaiting
from gatepost.execution.interruption import Interruptible, Stop, StopCause, timer
from gatepost.http.caller_bytes import CallerBytes
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import RevokedToken

T = TypeVar("T")
EndOfCall = Literal["revoked", "suspended"]

# Most calls end before their client could hang up. A task that listens for that costs more than the
# call.
WATCH_AFTER_S = 0.05


class Gone(Exception):
    """The client hung up before its request was complete."""


class TooLarge(Exception):
    """The body is larger than allowed."""


class RequestCancelled(Exception):
    """The client took its request back."""


async def read_body(receive: Receive, limit: int) -> bytes:
    """
    Read the whole body; raises TooLarge, or Gone when the rest never comes.

    The edge has already refused a body that declares itself too large.
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


LARGE_BODIES = 32
"""
Maximum number of bodies of the largest size that may arrive at once from one caller. The default
burst of `[limits]` is smaller, so a caller within its limits is not refused.
"""
AT_ONCE_OF_TENANT = 4 * LARGE_BODIES

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
            if of_caller > LARGE_BODIES * limit or of_tenant > AT_ONCE_OF_TENANT * limit:
                raise TooManyWaiting
        return message

    try:
        return await read_body(counted, limit)
    finally:
        _arriving.add(owner, -size)


class TenantSuspended(Exception):
    """The tenant of the request's caller was suspended while it waited."""


EXCEPTION_OF_REASON: Mapping[str | None, type[Exception]] = {
    "revoked": RevokedToken,
    "suspended": TenantSuspended,
}
"""The exception that ends a request, by the reason for which it was stopped."""


class RunningRequests:
    """
    The requests that wait, with the object that stops each of them.

    A request that never waits is not entered, because it ends before it could be stopped.
    *is_revoked* says whether a caller's token was revoked since the gate let it pass.
    """

    def __init__(self, is_revoked: Callable[[TenantContext], bool] | None = None) -> None:
        self.is_revoked = is_revoked or no_caller
        self._waiting: dict[Stop, TenantContext] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, stop: Stop, caller: TenantContext) -> None:
        """Add a request that starts to wait."""
        self._waiting[stop] = caller

    def leave(self, stop: Stop) -> None:
        """Remove a request; a second call does nothing."""
        self._waiting.pop(stop, None)

    def end(self, is_ended: Callable[[TenantContext], bool], reason: EndOfCall) -> None:
        """Stop all waiting requests of these callers."""
        for stop, caller in tuple(self._waiting.items()):
            if is_ended(caller):
                stop.pull(reason)


def no_caller(caller: TenantContext) -> bool:
    """Return False for every caller."""
    return False


class EndableRequest(Interruptible[T]):
    """
    Awaits the *work* of a request that can be ended from outside.

    Raises RequestCancelled if its client takes it back, and RevokedToken or TenantSuspended if its
    caller loses its access.
    """

    __slots__ = ("_caller", "_running_requests")

    stopped = RequestCancelled

    # Each class sets these two itself, for the reason that `Interruptible` gives.
    _caller: TenantContext
    _running_requests: RunningRequests

    def raised(self) -> type[Exception]:
        return EXCEPTION_OF_REASON.get(
            None if self._stop is None else self._stop.reason, self.stopped
        )

    def begin(self, stop: Stop) -> None:
        self._running_requests.enter(stop, self._caller)

    def end(self) -> None:
        if self._stop is not None:
            self._running_requests.leave(self._stop)


class UntilDisconnect(EndableRequest[T]):
    """Awaits *work*; a client that hangs up takes its request back (T-11)."""

    __slots__ = ("_receive", "_timer", "_watcher")

    def __init__(
        self,
        receive: Receive,
        work: Awaitable[T],
        caller: TenantContext,
        running_requests: RunningRequests,
    ) -> None:
        self._work = work.__await__()
        self._stop = None
        self._receive = receive
        self._caller = caller
        self._running_requests = running_requests

    def begin(self, stop: Stop) -> None:
        super().begin(stop)
        self._watcher: asyncio.Task[None] | None = None
        self._timer = timer(WATCH_AFTER_S, self._watch, stop)

    def end(self) -> None:
        super().end()
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
        stop.pull(StopCause.DISCONNECTED)
