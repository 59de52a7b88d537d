"""Live updates of the waiting requests for open pages."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from gatepost.background import TaskSet, started
from gatepost.policy.approvals.notifications import TOPIC
from gatepost.policy.approvals.request_lists import WaitingPage
from gatepost.policy.approvals.service import ApprovalService
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import SharedStore, WakeUps

POLL_S = 1.0
"""Seconds between reads of the store, because the shared store can lose a message."""

ShownPage = WaitingPage | None
"""The first page of the waiting requests; None while the store is not available."""


class LiveInbox:
    """
    Read a tenant's waiting requests while any page shows them.

    All pages of a tenant share one read of the store.
    """

    def __init__(
        self, approvals: ApprovalService, shared_store: SharedStore, *, poll_s: float = POLL_S
    ) -> None:
        self._approvals, self._shared_store, self._poll_s = approvals, shared_store, poll_s
        self._tenants: dict[str, _OpenPages] = {}
        self._closing = TaskSet()

    async def watch(self, tenant: str) -> AsyncIterator[ShownPage]:
        """Yield the waiting requests now, and again whenever they change."""
        pages = self._tenants.get(tenant)
        if pages is None:
            pages = self._tenants[tenant] = _OpenPages()
            pages.task = started("live", lambda: self._follow(tenant, pages))
        pages.number += 1
        seen_version = 0
        try:
            while True:
                while pages.version == seen_version:
                    await pages.changed.wait()
                seen_version = pages.version
                yield pages.waiting
        finally:
            pages.number -= 1
            if not pages.number:
                self._close(tenant, pages)

    def _close(self, tenant: str, pages: "_OpenPages") -> None:
        if self._tenants.get(tenant) is pages:
            del self._tenants[tenant]
        if pages.task is not None:
            pages.task.cancel()
            self._closing.track(pages.task)

    async def _follow(self, tenant: str, pages: "_OpenPages") -> None:
        async with WakeUps(
            partial(self._shared_store.for_tenant(tenant).follow, TOPIC)
        ) as wake_ups:
            while True:
                try:
                    pages.show(await self._approvals.waiting_page(tenant))
                except StoreUnavailable:
                    pages.show(None)
                await wake_ups.wait(self._poll_s)


class _OpenPages:
    """The open pages of one tenant."""

    def __init__(self) -> None:
        self.number, self.version = 0, 0
        self.waiting: ShownPage = None
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def show(self, waiting: ShownPage) -> None:
        """Wake all pages if the waiting requests changed."""
        if self.version and waiting == self.waiting:
            return
        self.waiting = waiting
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()
