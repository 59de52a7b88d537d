"""What waits is told to every open page, also when another replica changed it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from gatepost.dashboard.live import LiveInbox, ShownPage
from gatepost.policy.approvals.approval_request import ApprovalRequest
from gatepost.policy.approvals.notifications import ApprovalNotifier
from gatepost.policy.approvals.service import ApprovalService
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.service import ScriptReviews
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.tools.calls.redaction import Redaction
from tests.support.endpoint import a_caller

WITHIN_S = 10


class CountedApprovals(ApprovalService):
    """A service that counts its queries."""

    looks = 0

    async def waiting(self, tenant: str, **page: Any) -> list[ApprovalRequest]:  # type: ignore[override]
        self.looks += 1
        return await super().waiting(tenant, **page)


class SharedApprovals:
    """One store, and a process that looks at it; other processes have no shared store in common."""

    def __init__(self) -> None:
        self.records, self.shared_store = MemoryRecords(), MemorySharedStore()
        notifier = ApprovalNotifier(self.shared_store)
        reviews = ScriptReviews(self.records, notifier)
        self.service = CountedApprovals(
            self.records, KeyRing.ephemeral(), Redaction(), notifier, reviews
        )
        self.scripts = ScriptApprovals(self.records.of("acme").entries(SUBJECT))

    async def submit(self, name: str) -> None:
        """Submit a script for review, as another replica does."""
        await self.scripts.request(
            [Script(name, b"1", "workspace")], caller=a_caller(subject="erin"), max_waiting=9
        )


@pytest.fixture
def store() -> SharedApprovals:
    return SharedApprovals()


async def next_names(pages: AsyncIterator[ShownPage]) -> list[str] | None:
    """Return the names on the next page, or None without waiting requests."""
    async with asyncio.timeout(WITHIN_S):
        waiting = await anext(pages)
    return None if waiting is None else [request.tool for request in waiting.requests]


async def test_a_change_at_another_replica_appears_without_a_message(
    store: SharedApprovals,
) -> None:
    """The shared store may lose the message, so the page also polls."""
    live = LiveInbox(store.service, store.shared_store, poll_s=0.01)
    async with aclosing(live.watch("acme")) as pages:
        assert await next_names(pages) == []
        await store.submit("report")
        assert await next_names(pages) == ["report.star"]


async def test_a_message_updates_the_page_before_the_next_poll(store: SharedApprovals) -> None:
    """The page does not wait for its interval."""
    live = LiveInbox(store.service, store.shared_store, poll_s=3_600)
    async with aclosing(live.watch("acme")) as pages:
        assert await next_names(pages) == []
        await store.submit("report")
        await store.shared_store.of("acme").publish("approvals", b"1")
        assert await next_names(pages) == ["report.star"]


async def test_open_pages_of_a_tenant_share_one_query(store: SharedApprovals) -> None:
    """Fifty open pages cause one read of the store."""
    live = LiveInbox(store.service, store.shared_store, poll_s=3_600)
    pages = [live.watch("acme") for _ in range(50)]
    assert [await next_names(page) for page in pages] == [[]] * 50
    assert store.service.looks == 1
    for page in pages:
        await page.aclose()  # type: ignore[attr-defined]
    assert live._tenants == {}


async def test_a_request_updates_only_pages_of_its_own_tenant(store: SharedApprovals) -> None:
    """A request of one tenant wakes no page of another."""
    live = LiveInbox(store.service, store.shared_store, poll_s=0.01)
    async with aclosing(live.watch("acme")) as ours, aclosing(live.watch("globex")) as theirs:
        assert (await next_names(ours), await next_names(theirs)) == ([], [])
        await store.submit("report")
        assert await next_names(ours) == ["report.star"]
        assert live._tenants["globex"].version == 1


async def test_open_pages_show_the_begin_and_the_end_of_an_outage(store: SharedApprovals) -> None:
    """A page does not keep showing requests that may be outdated."""
    live = LiveInbox(store.service, store.shared_store, poll_s=0.01)
    async with aclosing(live.watch("acme")) as pages:
        assert await next_names(pages) == []
        entries = store.records.of
        store.records.of = UnavailableScriptStore.of  # type: ignore[method-assign]
        assert await next_names(pages) is None
        store.records.of = entries  # type: ignore[method-assign]
        assert await next_names(pages) == []


class UnavailableScriptStore:
    """A store that does not answer."""

    @staticmethod
    def of(tenant: str) -> object:
        raise StoreUnavailable(tenant)
