"""A call that waits for a decision, and the poll that all such calls of a process share."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial

import msgspec

from gatepost.background import TaskSet
from gatepost.policy.approvals.approval_request import ApprovalRequest
from gatepost.policy.approvals.notifications import TOPIC
from gatepost.policy.approvals.request_store import RequestStore
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore, WakeUps

POLL_S = 1.0
"""How often the requests of waiting calls are read, because notifications may be lost."""
UNTIL_LOOK_S = 30.0
"""How long a call that is not woken waits until it reads its request itself."""
POLLED_AT_ONCE = 128
"""The number of requests that are read in one trip to the database."""
RETRY_AFTER_S = 5.0


class PolledRequest(msgspec.Struct, frozen=True, eq=False):
    """A request for which a call waits."""

    key: tuple[str, str]
    """Its tenant and id."""
    is_due: Callable[[], bool]
    """Returns whether the call is to look at its request, whatever the database has."""
    wake: Callable[[], None]


class DecisionPoll:
    """
    Reads which requests still wait, for all calls of the process that wait for a decision.

    Calls wait for minutes. If each of them read its own request every second, ten seconds of that
    would take as much CPU as the call itself.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._polled: set[PolledRequest] = set()
        self._tasks = TaskSet()
        self._is_scheduled = False

    @contextmanager
    def including(
        self, key: tuple[str, str], is_due: Callable[[], bool], wake: Callable[[], None]
    ) -> Iterator[None]:
        """Call *wake* during a block, soon after the request no longer waits or *is_due*."""
        polled = PolledRequest(key, is_due, wake)
        self._polled.add(polled)
        if not self._is_scheduled:
            self._schedule()
        try:
            yield
        finally:
            self._polled.discard(polled)

    def _schedule(self) -> None:
        self._is_scheduled = True
        # The context of the call that is the first to wait would keep its arguments in memory.
        asyncio.get_running_loop().call_later(POLL_S, self._begin, context=Context())

    def _begin(self) -> None:
        self._is_scheduled = False
        if not self._polled:
            return
        self._schedule()
        polled = []
        for request in self._polled:
            if request.is_due():
                request.wake()
            else:
                polled.append(request)
        # A database that hangs delays no call that may wait no longer.
        if not self._tasks:
            self._tasks.start(self._poll(polled))

    async def _poll(self, polled: list[PolledRequest]) -> None:
        polled.sort(key=lambda request: request.key)  # a statement reads neighbours of the index
        for first in range(0, len(polled), POLLED_AT_ONCE):
            batch = polled[first : first + POLLED_AT_ONCE]
            try:
                waiting = await self._records.waiting_approvals({request.key for request in batch})
            except StoreUnavailable:
                return  # during an outage, only calls whose time is over look at their requests
            for request in batch:
                if request.key not in waiting:
                    request.wake()


class WaitingCall:
    """A call that waits for approval. *is_gone* returns whether its caller may wait no longer."""

    retry_after_s = RETRY_AFTER_S

    def __init__(
        self,
        requests: RequestStore,
        shared_store: SharedStore,
        decision_poll: DecisionPoll,
        request: ApprovalRequest,
        url: str,
        is_gone: Callable[[], bool],
    ) -> None:
        self._requests, self._shared_store, self._is_gone = requests, shared_store, is_gone
        self._decision_poll = decision_poll
        self._tenant, self._id = request.tenant, request.id
        self._until = request.until
        self.url = url
        self.message = pending(request)
        self.message_with_url = f"{self.message} {url}" if url else self.message

    async def over(self) -> None:
        """Return once the request is decided or the caller is gone; an `AwaitedDecision`."""
        follow = partial(self._shared_store.for_tenant(self._tenant).follow, TOPIC)
        async with WakeUps(follow, message=self._id.encode()) as wake_ups:
            key = self._tenant, self._id
            with self._decision_poll.including(key, self._is_due, wake_ups.wake):
                while not self._is_gone() and await self._is_open():
                    await wake_ups.wait(UNTIL_LOOK_S)

    def _is_due(self) -> bool:
        return self._is_gone() or self._until <= self._requests.clock()

    async def _is_open(self) -> bool:
        try:
            approval = await self._requests.get(self._tenant, self._id)
        except StoreUnavailable:
            if self._until <= self._requests.clock():
                raise
            return True  # a short outage must not end a call that waits for minutes
        return approval is not None and approval.request.state == "waiting"


def pending(request: ApprovalRequest) -> str:
    """Return the message for the agent about a waiting request."""
    until = time.strftime("%H:%M:%S UTC", time.gmtime(request.until))
    people = "a person's approval" if request.needed == 1 else "the approval of two people"
    return (
        f"This call of `{request.tool}` waits for {people} until {until}. It was not run yet. "
        "Wait for the decision; if you make the same call again, it joins the same request."
    )
