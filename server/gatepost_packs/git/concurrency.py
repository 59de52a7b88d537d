"""Limit concurrency: few programs at once, and one writer in a workspace."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

from gatepost import ToolFailure
from gatepost_packs.file_lock import lock

WAIT_S = 20.0
EVERY_S = 0.02
PROGRAMS_AT_ONCE, PROGRAMS_PER_TENANT = 16, 4
"""Programs at once in one server process, and for one tenant."""


class GitConcurrency:
    """The semaphores of one event loop."""

    def __init__(self) -> None:
        self.all = asyncio.Semaphore(PROGRAMS_AT_ONCE)
        self.tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def for_tenant(self, tenant: str) -> asyncio.Semaphore:
        """Return the tenant's semaphore, which lives while it is held."""
        return self.tenants.setdefault(tenant, asyncio.Semaphore(PROGRAMS_PER_TENANT))


_concurrency: WeakKeyDictionary[asyncio.AbstractEventLoop, GitConcurrency] = WeakKeyDictionary()


@asynccontextmanager
async def limit(tenant: str) -> AsyncIterator[None]:
    """Wait for the limit of the tenant, then that of all; ToolFailure after waiting too long."""
    concurrency = _concurrency.setdefault(asyncio.get_running_loop(), GitConcurrency())
    tenant_limit = concurrency.for_tenant(tenant)
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(WAIT_S):
                await stack.enter_async_context(tenant_limit)
                await stack.enter_async_context(concurrency.all)
        except TimeoutError:
            message = "Too many git commands run at once. Try again."
            raise ToolFailure("upstream_unavailable", message, retry_after=5) from None
        yield


@asynccontextmanager
async def tenant_lock(home: Path) -> AsyncIterator[None]:
    """
    Hold the tenant's lock; ToolFailure if others hold it for too long.

    A checked address of a remote, or a checked setting, must still hold when git reads it.
    """
    handle = os.open(home / "turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    if lock(handle):
                        break
                    await asyncio.sleep(EVERY_S)
        except TimeoutError:
            message = "Another git command is still running in this workspace. Try again."
            raise ToolFailure("upstream_unavailable", message, retry_after=5) from None
        yield
    finally:
        os.close(handle)  # closing also releases the lock
