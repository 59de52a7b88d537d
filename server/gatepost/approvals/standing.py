"""Waiting for a person's decision, wherever it is taken."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import structlog

from gatepost.approvals.desk import Desk
from gatepost.approvals.herald import TOPIC
from gatepost.approvals.request import Request
from gatepost.stores.api import Following, Relay, StoreUnavailable

log = structlog.get_logger("gatepost.approvals")

POLL_S = 1.0
"""How often whoever waits looks for itself: wake-ups may be lost."""
COME_BACK_S = 5.0


class Standing:
    """A call that waits for a person; see `Waiting`. *gone*: its caller may wait no longer."""

    retry_after_s = COME_BACK_S

    def __init__(
        self, desk: Desk, relay: Relay, request: Request, url: str, gone: Callable[[], bool]
    ) -> None:
        self._desk, self._relay, self._gone = desk, relay, gone
        self._tenant, self._id = request.tenant, request.id
        self._until = request.until
        self.url = url
        self.message = pending(request)

    async def over(self) -> None:
        """See `Waiting`."""
        woken, mine = asyncio.Event(), self._id.encode()

        def wake(message: bytes) -> None:
            if message == mine:
                woken.set()

        following: Following | None = None
        try:
            following = await self._relay.of(self._tenant).follow(TOPIC, wake)
        except StoreUnavailable:
            log.warning("wake_ups_unavailable")  # looking does without
        try:
            while not self._gone() and await self._is_open():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await woken.wait()
                woken.clear()
        finally:
            if following is not None:
                await following.aclose()

    async def _is_open(self) -> bool:
        try:
            request = await self._desk.get(self._tenant, self._id)
        except StoreUnavailable:
            if self._until <= self._desk.clock():
                raise
            return True  # an outage of seconds need not cost a call that waits for minutes
        return request is not None and request.state == "waiting"


def pending(request: Request) -> str:
    """What the agent's side is told of a request that waits."""
    until = time.strftime("%H:%M:%S UTC", time.gmtime(request.until))
    people = "a person's approval" if request.needed == 1 else "the approval of two people"
    return (
        f"This call of `{request.tool}` waits for {people} until {until}. It was not run yet. "
        "Nothing has to be done but to wait; the same call, made again, meets the same request."
    )
