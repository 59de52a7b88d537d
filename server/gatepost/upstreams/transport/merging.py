"""Merge the messages of two streams."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def merged(
    messages: AsyncGenerator[T, None], side: asyncio.Queue[T]
) -> AsyncGenerator[T, None]:
    """Yield *messages* to their end, and meanwhile what arrives in *side*."""
    ahead: asyncio.Future[T] | None = None
    beside: asyncio.Future[T] | None = None
    try:
        while True:
            ahead = ahead or asyncio.ensure_future(anext(messages))
            beside = beside or asyncio.ensure_future(side.get())
            await asyncio.wait({ahead, beside}, return_when=asyncio.FIRST_COMPLETED)
            if beside.done():
                arrived, beside = beside.result(), None
                yield arrived
            if ahead.done():
                try:
                    message = ahead.result()
                except StopAsyncIteration:
                    return
                ahead = None
                yield message
    finally:
        left = [one for one in (ahead, beside) if one is not None]
        for one in left:
            one.cancel()
        if left:
            await asyncio.wait(left)
            _seen(left)
        await messages.aclose()


def _seen(futures: list[asyncio.Future[T]]) -> None:
    """Mark errors as retrieved that no task awaits any longer."""
    for one in futures:
        if not one.cancelled():
            one.exception()
