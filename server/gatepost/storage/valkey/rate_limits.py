"""Token buckets and places at a server, taken for everybody who waits at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context

import msgspec

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.rate_limits import Denial

AT_ONCE = 100
"""So many take in one step of the server, which serves nobody else meanwhile."""


Bucket = tuple[bytes, float, float]
"""A bucket's key, rate and burst."""
Place = tuple[bytes, int]
"""A slot's key, and the most that may be in use."""


class RateLimitRequest(msgspec.Struct):
    """What one caller wants to take, or else have nothing of, by the server's own keys."""

    buckets: Sequence[Bucket]
    slots: Sequence[Place]
    answer: "asyncio.Future[Denial | None]"


Ask = Callable[[list[RateLimitRequest]], Awaitable[list[Denial | None]]]
"""Puts a question, which may be about nothing but what is new here."""


class ValkeyRateLimits:
    """
    Asks one question at a time, for all who came while the last one was under way.

    A question of its own would cost a call more than everything else it does. *ask* is bounded in
    time; when it fails, it fails for everybody who waits, so that nobody waits twice. *taken* hears
    of each wish that came true and still has a waiting call.
    """

    def __init__(self, ask: Ask, taken: Callable[[RateLimitRequest], None]) -> None:
        self._ask = ask
        self._taken = taken
        self._asked: list[RateLimitRequest] = []
        self._waiting: list[RateLimitRequest] = []
        self._told = True
        self._task: asyncio.Task[None] | None = None

    def put(self, wish: RateLimitRequest) -> None:
        """Ask for that wish with the next question; its answer may be StoreUnavailable."""
        self._waiting.append(wish)
        self._serve()

    def tell(self) -> None:
        """Ask soon, although nobody may be waiting: there is something that others should hear."""
        self._told = False
        self._serve()

    async def aclose(self) -> None:
        """Let the questions under way come to their end."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _serve(self) -> None:
        if self._task is None:
            # Under steady traffic the task does not end, and would keep the first call in memory.
            context = Context()
            self._task = asyncio.get_running_loop().create_task(self._questions(), context=context)
            self._task.add_done_callback(self._over, context=context)

    async def _questions(self) -> None:
        while self._waiting or not self._told:
            self._asked, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            self._told = True
            answers = await self._ask(self._asked)
            for wish, answer in zip(self._asked, answers, strict=True):
                if not wish.answer.done():  # a caller that hung up has spent it all the same
                    if answer is None:
                        self._taken(wish)
                    wish.answer.set_result(answer)
            self._asked = []
        self._task = None

    def _over(self, task: asyncio.Task[None]) -> None:
        """Wake all waiters, whatever the server answered."""
        if task.cancelled():
            failure: BaseException | None = StoreUnavailable("the relay was closed")
        else:
            failure = task.exception()
        if failure is None:
            return
        everybody = (*self._asked, *self._waiting)
        self._asked, self._waiting, self._task = [], [], None
        for wish in everybody:
            if not wish.answer.done():
                wish.answer.set_exception(failure)
