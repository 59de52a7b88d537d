"""Token buckets at a server, spent from for everybody who waits at once."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from gatepost.stores.api import StoreUnavailable

AT_ONCE = 100
"""So many spend in one step of the server, which serves nobody else meanwhile."""


class Spending(msgspec.Struct):
    """One who waits to spend."""

    bucket: bytes
    rate: float
    burst: float
    wait: "asyncio.Future[float]"


Ask = Callable[[list[Spending]], Awaitable[list[float]]]


class Till:
    """
    Asks one question at a time, for all who came while the last one was under way.

    A question of its own would cost a call more than everything else it does. *ask* is bounded in
    time; when it fails, it fails for everybody who waits, so that nobody waits twice.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._asked: list[Spending] = []
        self._waiting: list[Spending] = []
        self._task: asyncio.Task[None] | None = None

    async def spend(self, bucket: bytes, *, rate: float, burst: float) -> float:
        """See `TenantRelay.spend`; raises StoreUnavailable."""
        wait: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(Spending(bucket, rate, burst, wait))
        if self._task is None:
            self._task = asyncio.create_task(self._serve())
            self._task.add_done_callback(self._over)
        return await wait

    async def aclose(self) -> None:
        """Let the questions under way come to their end."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _serve(self) -> None:
        while self._waiting:
            self._asked, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            answers = await self._ask(self._asked)
            for one, answer in zip(self._asked, answers, strict=True):
                if not one.wait.done():  # whoever hung up has spent all the same
                    one.wait.set_result(answer)
            self._asked = []
        self._task = None

    def _over(self, task: asyncio.Task[None]) -> None:
        """Nobody may be left waiting, whatever the server did."""
        if task.cancelled():
            failure: BaseException | None = StoreUnavailable("the relay was closed")
        else:
            failure = task.exception()
        if failure is None:
            return
        everybody = (*self._asked, *self._waiting)
        self._asked, self._waiting, self._task = [], [], None
        for one in everybody:
            if not one.wait.done():
                one.wait.set_exception(failure)
