"""What attacks on the queue of a full process found."""

import asyncio

import pytest

from gatepost.policy.limits.admission_queue import AdmissionQueue

WITHIN_S = 10


async def test_a_waiter_that_disconnects_while_it_is_evicted_keeps_the_counts_right() -> None:
    """The other caller got an internal error, and the count of waiters stayed wrong."""
    queue = AdmissionQueue({})
    queue.max_running, queue.running, queue.max_waiting_per_tenant = 1, 1, 3
    flood = [asyncio.create_task(queue.enter("acme", "flood")) for _ in range(3)]
    await asyncio.sleep(0)
    assert queue.waiting == 3

    other = asyncio.create_task(queue.enter("acme", "other"))
    # Its connection is gone, and the server notices that after the other has come.
    flood[-1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await flood[-1]

    async with asyncio.timeout(WITHIN_S):
        for waiting in (flood[0], other, flood[1]):
            queue.leave()
            assert await waiting
    queue.leave()
    assert (queue.running, queue.waiting) == (0, 0)
