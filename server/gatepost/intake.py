"""A request's body within its limits, and word when its client leaves: what any protocol needs."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from gatepost.tools.attend import HUNG_UP, Attended, Stop
from gatepost.tools.underway import ENDINGS, Underway
from gatepost_authz.caller import TenantContext

T = TypeVar("T")

NESTING = 64
"""How deep a body may nest objects and lists."""

SHALLOW = 3
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SQUARE = bytes.maketrans(b"{}", b"[]")

# Most calls are over before anybody could hang up; a task that listens for it costs more than they.
WATCH_AFTER_S = 0.05


class Gone(Exception):
    """The client hung up before its request was complete."""


class TooLarge(Exception):
    """The body is larger than it may be."""


class Stopped(Exception):
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


def outside_strings(body: bytes) -> bytes:
    """
    What of well-formed JSON stands outside of its strings.

    With whole-body operations of `bytes`: a loop over tokens in Python would cost a large body more
    than all else together, and everybody else waits for it.
    """
    # Outside of strings there are no backslashes, and every other piece between quotes is outside.
    return b"".join(body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def too_deep(body: bytes) -> bool:
    """Whether well-formed JSON is nested deeper than the limit."""
    if body.count(b"{") + body.count(b"[") <= NESTING:
        return False
    brackets = outside_strings(body).translate(_SQUARE, _NOT_BRACKETS)
    for _ in range(SHALLOW):
        # The innermost pairs go: one level less everywhere, and few pieces for the loop below.
        brackets = brackets.replace(b"[]", b"")
    level = 0
    for hill in brackets.split(b"]["):
        up = len(hill.rstrip(b"]"))
        if level + up > NESTING - SHALLOW:
            return True
        level += 2 * up - len(hill)
    return False


class UntilDisconnect(Attended[T]):
    """
    Awaits *work*; Stopped when the client hangs up, which takes the request back (T-11).

    RevokedToken or TenantSuspended when its caller is shut out.
    """

    __slots__ = ("_caller", "_receive", "_timer", "_underway", "_watcher")

    stopped = Stopped

    def __init__(
        self, receive: Receive, work: Awaitable[T], caller: TenantContext, underway: Underway
    ) -> None:
        self._work = work.__await__()
        self._stop = None
        self._receive = receive
        self._caller = caller
        self._underway = underway

    def raised(self) -> type[Exception]:
        return Stopped if self._stop is None else ENDINGS.get(self._stop.why, Stopped)

    def begin(self, stop: Stop) -> None:
        self._underway.enter(stop, self._caller)
        self._watcher: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch, stop)

    def end(self) -> None:
        if self._stop is not None:
            self._underway.leave(self._stop)
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _watch(self, stop: Stop) -> None:
        self._watcher = asyncio.create_task(self._until_gone(stop))

    async def _until_gone(self, stop: Stop) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        stop.pull(HUNG_UP)
