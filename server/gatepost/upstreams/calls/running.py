"""Run a call of a session-era upstream in this process, in a task of its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context

from gatepost.storage.errors import StoreUnavailable
from gatepost.upstreams.calls.call_states import (
    Answer,
    ExchangeStep,
    Forward,
    HolderAction,
    LastStep,
    Respond,
    SessionCall,
    StopExchange,
)
from gatepost.upstreams.connection import (
    ConnectionFailure,
    UpstreamExchange,
    UpstreamNotification,
)

log = logging.getLogger(__name__)

CANCEL_S = 5.0
"""How long an upstream may take to accept a cancellation."""
UNEXPECTED_END = "The call ended unexpectedly."

ReceiveNotification = Callable[[UpstreamNotification], Awaitable[None]]
OpenExchange = Callable[[], AbstractAsyncContextManager[UpstreamExchange]]


class NoSuchStep(Exception):
    """A caller asks for a step that the call never had."""


class RunningExchange:
    """
    One exchange with an upstream, which may outlive the request that began it.

    *on_end* is called once with the last step. The caller's requests come and go: each gives its
    answers with `next_step` and waits there. The request that did so last gets the notifications,
    until the call ends or `unsubscribe` is called.
    """

    def __init__(
        self, machine: SessionCall, open_: OpenExchange, *, on_end: Callable[[LastStep], None]
    ) -> None:
        self._machine, self._open, self._on_end = machine, open_, on_end
        self._loop = asyncio.get_running_loop()
        self._progressed = asyncio.Event()
        self._exchange: UpstreamExchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopping: str | None = None
        self.waiting = 0
        """Requests that wait for a step."""
        self._listener: ReceiveNotification | None = None
        # In an empty context, because that of the first request would keep its call in memory.
        self.task = self._loop.create_task(self._run(), context=Context())
        self.task.add_done_callback(_logged)

    @property
    def over(self) -> bool:
        """Return whether the call has ended."""
        return self._machine.over

    async def next_step(
        self, step: int, answer: Answer | None, listener: ReceiveNotification
    ) -> ExchangeStep:
        """
        Answer the request of *step* and return the next step; 0 stands for the beginning.

        A step that was answered before is not answered again. From now on notifications go to
        *listener*. Raises NoSuchStep.
        """
        machine = self._machine
        if not 0 <= step <= len(machine.steps):
            raise NoSuchStep
        self._listener = None if machine.over else listener
        if answer is not None:
            await self._act(machine.answered(step, answer, self._loop.time()))
            self._wake_waiters()
        self.waiting += 1
        try:
            while len(machine.steps) <= step:
                if machine.over:
                    raise NoSuchStep
                await self._progressed.wait()
        finally:
            self.waiting -= 1
        return machine.steps[step]

    def unsubscribe(self) -> None:
        """Drop notifications until the next step begins: the request before it has ended."""
        self._listener = None

    def cancel(self, reason: str) -> None:
        """Cancel the call at the upstream, unless it has ended."""
        self._apply(self._machine.cancelled(reason))

    def leave(self, reason: str) -> None:
        """Cancel the call for a request that ended, unless another one waits for the same step."""
        if not self.waiting:
            self.cancel(reason)

    async def aclose(self, reason: str) -> None:
        """Cancel the call and wait until its task has ended."""
        self.cancel(reason)
        await asyncio.wait({self.task})

    async def _run(self) -> None:
        machine = self._machine
        try:
            async with self._open() as exchange:
                self._exchange = exchange
                await self._read(exchange)
            if not machine.over:
                machine.failed("outcome_unknown", UNEXPECTED_END)
        except ConnectionFailure as failure:
            machine.failed(failure.reason, failure.message, failure.retry_after_s)
        except asyncio.CancelledError:
            machine.failed("outcome_unknown", UNEXPECTED_END)
            if self._stopping is None:
                raise
        finally:
            machine.failed("outcome_unknown", UNEXPECTED_END)  # nothing, if it has ended
            self._exchange = None
            self._wake_waiters()

    async def _read(self, exchange: UpstreamExchange) -> None:
        self._wake_waiters()
        try:
            async for message in exchange.messages():
                await self._act(self._machine.received(message, self._loop.time()))
                self._wake_waiters()
                if self._machine.over:
                    return
        except asyncio.CancelledError:
            if self._stopping is None:
                raise
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    await exchange.cancel(self._stopping)

    async def _act(self, actions: Iterable[HolderAction]) -> None:
        for action in actions:
            if isinstance(action, Respond):
                await self._respond(action)
            elif isinstance(action, Forward):
                if self._listener is not None:
                    with suppress(StoreUnavailable, ValueError):  # its caller may have left
                        await self._listener(action.notification)
            else:
                self._stop(action)

    async def _respond(self, action: Respond) -> None:
        if self._exchange is None:
            return
        try:
            await self._exchange.respond(action.id, action.answer)
        except ConnectionFailure as failure:
            # Its request was answered once, and whether the answer arrived is unknown.
            self._machine.failed("outcome_unknown", failure.message)
            self._stop(StopExchange("The answer could not be sent"))

    def _apply(self, actions: Iterable[HolderAction]) -> None:
        """Perform the actions that need no waiting."""
        for action in actions:
            if isinstance(action, StopExchange):
                self._stop(action)
        self._wake_waiters()

    def _stop(self, action: StopExchange) -> None:
        if self._stopping is None and not self.task.done():
            self._stopping = action.reason
            self.task.cancel()

    def _wake_waiters(self) -> None:
        """Wake all that wait for a step, and set the timer anew."""
        progressed, self._progressed = self._progressed, asyncio.Event()
        progressed.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._machine.over:
            at = self._machine.deadline()
            self._timer = self._loop.call_at(at, self._tick, context=Context())
            return
        self._listener = None
        last = self._machine.steps[-1]
        on_end, self._on_end = self._on_end, _nothing
        on_end(last)  # type: ignore[arg-type]  # a finished machine has a last step

    def _tick(self) -> None:
        self._apply(self._machine.tick(self._loop.time()))


def _logged(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("upstream_exchange_failed", exc_info=error)


def _nothing(_: LastStep) -> None:
    """Do nothing: the end is told once."""
