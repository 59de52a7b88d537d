"""Whose turn it is: few programs at once, and one that writes in a workspace."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

from gatepost.packs.lock import taken
from gatepost.tools.api import ToolFailure

WAIT_S = 20.0
EVERY_S = 0.02
MOST, MOST_OF_ONE = 16, 4
"""Programs at once in a process of the server, and for one tenant."""


class Places:
    """The places of one loop."""

    def __init__(self) -> None:
        self.all = asyncio.Semaphore(MOST)
        self.tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, tenant: str) -> asyncio.Semaphore:
        """The tenant's, as long as somebody holds it."""
        return self.tenants.setdefault(tenant, asyncio.Semaphore(MOST_OF_ONE))


_places: WeakKeyDictionary[asyncio.AbstractEventLoop, Places] = WeakKeyDictionary()


@asynccontextmanager
async def place(tenant: str) -> AsyncIterator[None]:
    """
    Hold one of the tenant's places, then one of all; ToolFailure when there is none for too long.
    """
    places = _places.setdefault(asyncio.get_running_loop(), Places())
    own = places.of(tenant)
    async with AsyncExitStack() as held:
        try:
            async with asyncio.timeout(WAIT_S):
                await held.enter_async_context(own)
                await held.enter_async_context(places.all)
        except TimeoutError:
            message = "Too many git commands run at once. Try again."
            raise ToolFailure("upstream_unavailable", message, retry_after=5) from None
        yield


@asynccontextmanager
async def turn(home: Path) -> AsyncIterator[None]:
    """
    Hold the tenant's turn; ToolFailure when others hold it for too long.

    What was checked (a remote's address, the configuration) must still be so when git reads it.
    """
    handle = os.open(home / "turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    if taken(handle):
                        break
                    await asyncio.sleep(EVERY_S)
        except TimeoutError:
            message = "Another git command still runs in this workspace. Try again."
            raise ToolFailure("upstream_unavailable", message, retry_after=5) from None
        yield
    finally:
        os.close(handle)  # which also ends the turn
