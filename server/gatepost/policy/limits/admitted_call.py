"""A running call in its concurrency limits, until its tool has ended."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any

import msgspec

from gatepost.policy.limits.call_limits import CallLimits


class AdmittedCall(msgspec.Struct):
    """A running call in its limits; suspended while a person decides."""

    call_limits: CallLimits
    outer: "AdmittedCall | None" = None
    """The call whose tool made this one."""
    executions: tuple["asyncio.Future[Any]", ...] = ()
    """The executions that `count_until` was called with; each is done when it has ended."""
    pauses: int = 0
    over: bool = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the call during a block; the last of several blocks counts it again."""
        self.pauses += 1
        if self.pauses == 1 and not self.over:
            leave(self.call_limits)
        try:
            yield
        finally:
            self.pauses -= 1
            if self.pauses == 0 and not self.over:
                enter(self.call_limits)

    def end(self) -> None:
        """End the call in all limits, as soon as its executions have ended."""
        for execution in self.executions:
            if not execution.done():
                execution.add_done_callback(lambda _: self.end(), context=Context())
                return
        self.over = True
        if not self.pauses:
            leave(self.call_limits)


ADMITTED_CALL: ContextVar[AdmittedCall | None] = ContextVar("gatepost_admitted_call", default=None)
"""The innermost call that has passed its limits and for which the current code runs."""


def count_until(execution: "asyncio.Future[Any]") -> None:
    """
    Count the current call and its outer calls in their limits until *execution* is done.

    An execution may go on after the client of its call has left. If the call did not count then, a
    caller could start any number of executions by leaving each of them.
    """
    admitted = ADMITTED_CALL.get()
    while admitted is not None:
        running = [earlier for earlier in admitted.executions if not earlier.done()]
        admitted.executions = (*running, execution)
        admitted = admitted.outer


def enter(call_limits: CallLimits) -> None:
    """Count a call in all concurrency limits, even beyond them."""
    for counter in call_limits.concurrency:
        counter.running += 1
    if call_limits.shared_store is not None:
        call_limits.shared_store.hold(call_limits.shared_concurrency)
    if call_limits.queue is not None:
        call_limits.queue.running += 1


def leave(call_limits: CallLimits) -> None:
    """End a call in all concurrency limits."""
    for counter in call_limits.concurrency:
        counter.running -= 1
    if call_limits.shared_store is not None:
        call_limits.shared_store.leave(call_limits.shared_concurrency)
    queue = call_limits.queue
    if queue is not None:
        queue.running -= 1
        if queue.waiting:
            queue.let_in()
