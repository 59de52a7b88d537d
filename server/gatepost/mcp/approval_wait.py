"""Keep a client's call open until an approver has decided on it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.client import Waiting

T = TypeVar("T")

_log = logging.getLogger("gatepost.mcp")

SIGN_EVERY_S = 10.0
"""How often the client is told that its call still waits."""
HOLD_S = 45.0
"""
The longest wait if the client has to repeat the call, or if Gatepost cannot send it anything.

It is less than a minute, because clients and proxies then give up on a silent request. Clients
follow about ten rounds, which at this length are more than an approver's default five minutes.
"""
AGAIN_S = 1.0
"""Delay before an unavailable store is read again."""

Sign = Callable[[float], Awaitable[None]]
"""Tells the client that the call still waits; the argument is the seconds waited so far."""


async def decided(waiting: Waiting, sign: Sign, *, for_s: float, stopping: asyncio.Event) -> bool:
    """
    Wait up to *for_s* seconds for the decision; return whether there is one.

    The wait ends at once when the server stops: another server can take the call up. A decision
    that has arrived by then still counts.
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
                # A client that does not read must not extend the wait beyond its limit.
                async with asyncio.timeout_at(until):
                    await sign(loop.time() - began)
            except TimeoutError:
                break
        return False


def watched(waiting: Waiting) -> AbstractAsyncContextManager["asyncio.Task[None]"]:
    """Return a task that ends when the call is decided; an unavailable store only delays it."""
    return _task_of(_over(waiting))


@asynccontextmanager
async def _task_of(work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Run *work* in a task for the duration of the block."""
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
