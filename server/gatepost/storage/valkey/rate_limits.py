"""
Send the requests of rate and concurrency limits to a Valkey, in one batch for all waiting calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context

import msgspec

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.rate_limits import Denial

REQUESTS_PER_RUN = 100
"""
Maximum number of requests in one run of the script, during which Valkey serves nothing else.
"""


class RateLimitRequest(msgspec.Struct):
    """The buckets and limits of one call, by their keys in Valkey; all are taken or none."""

    bucket_keys: Sequence[bytes]
    rates: list[float]
    """``0, rate, burst`` of each bucket; each 0 becomes the number of the key in the batch."""
    limit_keys: Sequence[bytes]
    maxima: Sequence[int]
    """``0, maximum`` of each concurrency limit, as in `rates`."""
    answer: "asyncio.Future[Denial | None]"


AskServer = Callable[[list[RateLimitRequest]], Awaitable[list[Denial | None]]]
"""Sends requests to Valkey; called also without requests, to report changes of this process."""


class ValkeyRateLimits:
    """
    Sends one batch of requests at a time, of all calls that came during the last one.

    A round trip of its own would cost a call more than everything else it does. *ask* is bounded in
    time; if it fails, all waiting calls fail, so that none waits twice. *on_taken* is called with
    each request that was granted, before its call learns of it.
    """

    def __init__(self, ask: AskServer, on_taken: Callable[[RateLimitRequest], None]) -> None:
        self._ask = ask
        self._on_taken = on_taken
        self._sent: list[RateLimitRequest] = []
        self._waiting: list[RateLimitRequest] = []
        self._is_reported = True
        self._task: asyncio.Task[None] | None = None

    def put(self, request: RateLimitRequest) -> None:
        """Send a request with the next batch; its answer may be StoreUnavailable."""
        self._waiting.append(request)
        self._serve()

    def report_soon(self) -> None:
        """
        Send a batch soon, even without requests, because other processes should learn of a change.
        """
        self._is_reported = False
        self._serve()

    async def aclose(self) -> None:
        """Wait for the batches that were sent."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _serve(self) -> None:
        if self._task is None:
            # Under steady traffic the task never ends, and would keep the first call in memory.
            context = Context()
            self._task = asyncio.get_running_loop().create_task(self._ask_always(), context=context)
            self._task.add_done_callback(self._over, context=context)

    async def _ask_always(self) -> None:
        while self._waiting or not self._is_reported:
            self._sent, self._waiting = (
                self._waiting[:REQUESTS_PER_RUN],
                self._waiting[REQUESTS_PER_RUN:],
            )
            self._is_reported = True
            answers = await self._ask(self._sent)
            for request, answer in zip(self._sent, answers, strict=True):
                if answer is None:
                    self._on_taken(request)
                if not request.answer.done():  # the tokens are spent even if the caller hung up
                    request.answer.set_result(answer)
            self._sent = []
        self._task = None

    def _over(self, task: asyncio.Task[None]) -> None:
        """Wake all waiters, whatever the server answered."""
        if task.cancelled():
            failure: BaseException | None = StoreUnavailable("the shared store was closed")
        else:
            failure = task.exception()
        if failure is None:
            return
        every_caller = (*self._sent, *self._waiting)
        self._sent, self._waiting, self._task = [], [], None
        for request in every_caller:
            if not request.answer.done():
                request.answer.set_exception(failure)
