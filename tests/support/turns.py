"""How long a piece of work keeps an event loop from its next turn, in processor time."""

import asyncio
import gc
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

REFERENCE_S = 0.14
"""What `slowness` reads its list in on the machine that limits in seconds are meant for."""
_LARGE_LIST = b"[" + b"1," * 1_999_998 + b"1]"


def slowness() -> float:
    """How many times as long as the reference this machine takes now; 1 where it is faster."""
    began = time.thread_time()
    json.loads(_LARGE_LIST)
    return max((time.thread_time() - began) / REFERENCE_S, 1.0)


async def longest_turn(work: Coroutine[Any, Any, object]) -> float:
    """
    The most processor time, in seconds, that passes between two turns of the loop during *work*.

    That of the whole process: another thread that does not let go of the interpreter holds the
    loop up just as well. What other processes do meanwhile does not count.
    """
    running, longest = asyncio.ensure_future(work), 0.0
    before = time.process_time()
    while not running.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    running.result()
    return longest


async def shortest_hold(
    work: Callable[[], Coroutine[Any, Any, object]], limit_s: float, tries: int = 3
) -> tuple[float, float]:
    """
    The smallest `longest_turn` of some tries, and the limit as this machine would have it.

    One below *limit_s* is enough. Others are held against what the machine does at that moment.
    """
    best, limit = (await longest_turn(work())), limit_s
    while best >= limit and (tries := tries - 1):
        limit = limit_s * slowness()
        best = min(best, await longest_turn(work()))
    return best, limit


@contextmanager
def collected() -> Iterator[None]:
    """The collector of garbage as a server has it: nothing that was there before is walked."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(20_000, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)
