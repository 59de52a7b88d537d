"""Waiting with a client until somebody else has decided about its call."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from gatepost.stores.api import StoreUnavailable
from gatepost.tools.attend import DeadlinePassed, Within
from gatepost.tools.client import Waiting

T = TypeVar("T")

_log = logging.getLogger("gatepost.mcp")

SIGN_EVERY_S = 10.0
"""How often a client is shown that its call still waits."""
HOLD_S = 45.0
"""
How long a call waits that its client has to make again, or that nothing can be told meanwhile.

Below the minute after which clients and proxies give up on a silent request, and so long that the
ten rounds which clients go along with are more than the five minutes a person has by default.
"""
AGAIN_S = 1.0
"""When a store that was away is asked again."""

Sign = Callable[[float], Awaitable[None]]
"""Shows the client that the call still waits, after so many seconds."""


async def decided(waiting: Waiting, sign: Sign, *, for_s: float, stopping: asyncio.Event) -> bool:
    """
    Wait for the decision, for so many seconds at most; False when there is none.

    Nor is there one once the server is about to stop, which ends the wait at once: another takes
    the call up as well. A decision that is there at that moment counts.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    until = began + for_s
    async with watched(waiting) as over, _task_of(stopping.wait()) as stopped:
        while (left := until - loop.time()) > 0 and not stopping.is_set():
            await asyncio.wait(
                {over, stopped},
                timeout=min(SIGN_EVERY_S, left),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if over.done():
                over.result()
                return True
            if stopping.is_set():
                break
            try:
                # Whoever reads nothing must not be waited for longer than it may call.
                await Within(max(until - loop.time(), 0.0), sign(loop.time() - began))
            except DeadlinePassed:
                break
        return False


def watched(waiting: Waiting) -> AbstractAsyncContextManager["asyncio.Task[None]"]:
    """A task that is done when it is decided; a store that is away only delays that."""
    return _task_of(_over(waiting))


@asynccontextmanager
async def _task_of(work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Work that goes on for the time of a block."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _over(waiting: Waiting) -> None:
    while True:
        try:
            await waiting.over()
        except StoreUnavailable:
            _log.warning("a decision cannot be looked for")
            await asyncio.sleep(AGAIN_S)
        else:
            return
