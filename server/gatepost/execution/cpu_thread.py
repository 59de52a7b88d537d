"""
The single thread for computations that take milliseconds, and the queue in front of it.

Python runs one thread at a time. Several computing threads would be no faster than one, and the
event loop would have to wait for each of them.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from gatepost.execution.failure import Failure, ToolFailure
from gatepost_authz.caller import TenantContext

T = TypeVar("T")
Admission = asyncio.Future[None]
WaitingCaller = tuple[str, ...]

MAX_WAITING = 32
"""
Maximum number of computations of one caller that may wait. Each holds the body of a request. The
default burst of `[limits]` is smaller, so a caller within its limits is not refused.
"""
BUSY_S = 1.0


class TooManyWaiting(ToolFailure):
    """The caller has too many computations in the queue; nothing was done for the new one."""

    def __init__(self) -> None:
        message = "Too many of your long requests are waiting. Send fewer of them at once."
        super().__init__("rate_limit", message)
        self.failure = Failure("rate_limit", message, retry_after=BUSY_S, limit="caller")


class ThreadQueue:
    """
    The waiting computations: tenants take turns, within a tenant its callers do.

    A caller's own computations run in the order in which they came. So computations of one caller
    delay those of another tenant by one at a time, however many there are.
    """

    def __init__(self) -> None:
        self._tenants = OrderedDict[str, OrderedDict[WaitingCaller, deque[Admission]]]()

    def waiting(self, caller: WaitingCaller) -> int:
        """Return the number of waiting computations of a caller."""
        callers = self._tenants.get(caller[0])
        return 0 if callers is None else len(callers.get(caller, ()))

    def add(self, caller: WaitingCaller, admission: Admission) -> None:
        """Add a computation behind the others of its caller, whose first element is its tenant."""
        callers = self._tenants.setdefault(caller[0], OrderedDict())
        callers.setdefault(caller, deque()).append(admission)

    def next(self) -> Admission | None:
        """Remove and return the computation whose turn it is; None if no computation waits."""
        if not self._tenants:
            return None
        tenant, callers = next(iter(self._tenants.items()))
        caller, admissions = next(iter(callers.items()))
        admission = admissions.popleft()
        self._tenants.move_to_end(tenant)
        callers.move_to_end(caller)
        self._clear(caller)
        return admission

    def remove(self, caller: WaitingCaller, admission: Admission) -> None:
        """Remove a computation, if it still waits."""
        callers = self._tenants.get(caller[0])
        if callers is not None and admission in callers.get(caller, ()):
            callers[caller].remove(admission)
            self._clear(caller)

    def _clear(self, caller: WaitingCaller) -> None:
        callers = self._tenants[caller[0]]
        if not callers[caller]:
            del callers[caller]
        if not callers:
            del self._tenants[caller[0]]


class CpuThread:
    """The thread as one event loop uses it: one computation runs, the others wait in the queue."""

    def __init__(self) -> None:
        self.queue = ThreadQueue()
        self.busy = False

    async def wait_for_admission(self, caller: WaitingCaller, *, bounded: bool) -> None:
        """Wait for the thread; raises TooManyWaiting."""
        if not self.busy:
            self.busy = True
            return
        if bounded and self.queue.waiting(caller) >= MAX_WAITING:
            raise TooManyWaiting
        admission: Admission = asyncio.get_running_loop().create_future()
        self.queue.add(caller, admission)
        try:
            await admission
        except asyncio.CancelledError:
            self.queue.remove(caller, admission)
            if admission.done() and not admission.cancelled():
                self.leave()  # it was this computation's turn, but the call ended before it resumed
            raise

    def leave(self) -> None:
        """Hand the thread to the next computation."""
        while (admission := self.queue.next()) is not None:
            if not admission.done():  # else cancelled, and not resumed yet
                admission.set_result(None)
                return
        self.busy = False


_thread = ThreadPoolExecutor(1, "gatepost-cpu")
_uses: WeakKeyDictionary[asyncio.AbstractEventLoop, CpuThread] = WeakKeyDictionary()


async def in_cpu_thread(
    caller: TenantContext, function: Callable[..., T], *arguments: Any, bounded: bool = True
) -> T:
    """
    Run *function* in the thread for a request of *caller*; it must only compute.

    Raises TooManyWaiting if too many computations of the caller wait. With *bounded* false this one
    waits nevertheless: what a tool has answered must not be lost.
    """
    loop = asyncio.get_running_loop()
    thread = _uses.get(loop)
    if thread is None:
        thread = _uses[loop] = CpuThread()
    await thread.wait_for_admission(caller.principal_key, bounded=bounded)

    def on_end(_: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no computation waits
            loop.call_soon_threadsafe(thread.leave)

    try:
        running = _thread.submit(copy_context().run, function, *arguments)
    except RuntimeError:
        thread.leave()
        raise
    # The computation's own end counts: a caller that gives up must not make the thread seem free.
    running.add_done_callback(on_end)
    return await asyncio.wrap_future(running)
