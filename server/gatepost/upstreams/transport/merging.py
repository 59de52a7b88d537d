"""Merge the messages of two streams."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def merged(
    messages: AsyncGenerator[T, None], side: asyncio.Queue[T]
) -> AsyncGenerator[T, None]:
    """Yield *messages* to their end, and meanwhile what arrives in *side*."""
    from_messages: asyncio.Future[T] | None = None
    from_side: asyncio.Future[T] | None = None
    try:
        while True:
            from_messages = from_messages or asyncio.ensure_future(anext(messages))
            from_side = from_side or asyncio.ensure_future(side.get())
            await asyncio.wait({from_messages, from_side}, return_when=asyncio.FIRST_COMPLETED)
            if from_side.done():
                arrived, from_side = from_side.result(), None
                yield arrived
            if from_messages.done():
                try:
                    message = from_messages.result()
                except StopAsyncIteration:
                    return
                from_messages = None
                yield message
    finally:
        waiting = [future for future in (from_messages, from_side) if future is not None]
        for future in waiting:
            future.cancel()
        if waiting:
            await asyncio.wait(waiting)
            _retrieve_errors(waiting)
        await messages.aclose()


def _retrieve_errors(futures: list[asyncio.Future[T]]) -> None:
    """Mark errors as retrieved that no task awaits any longer."""
    for future in futures:
        if not future.cancelled():
            future.exception()
