"""A task that polls is woken by messages of a topic, and goes on without them."""

import asyncio
from functools import partial

import pytest

from gatepost.storage import shared_store as shared_stores
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import (
    DeliverMessage,
    MemorySharedStore,
    SharedStore,
    Subscription,
    TenantSharedStore,
    WakeUps,
)

WITHIN_S = 10.0
NEVER_S = 3_600.0


async def test_a_message_wakes_at_once(shared_store: SharedStore) -> None:
    """The poll is far away; a message that came before the wait counts too."""
    acme = shared_store.for_tenant("acme")
    async with WakeUps(partial(acme.follow, "topic")) as wake_ups, asyncio.timeout(WITHIN_S):
        await acme.publish("topic", b"any")
        await wake_ups.wait(NEVER_S)
        waiting = asyncio.create_task(wake_ups.wait(NEVER_S))
        await acme.publish("topic", b"other")
        await waiting


async def test_only_the_wanted_message_wakes(shared_store: SharedStore) -> None:
    """Messages about other things leave the task asleep, also one of another tenant."""
    acme = shared_store.for_tenant("acme")
    async with (
        WakeUps(partial(acme.follow, "topic"), message=b"mine") as mine,
        WakeUps(partial(acme.follow, "topic")) as every,
        asyncio.timeout(WITHIN_S),
    ):
        await shared_store.for_tenant("globex").publish("topic", b"mine")
        await acme.publish("topic", b"theirs")
        await every.wait(NEVER_S)
        assert not mine._woken.is_set()
        await acme.publish("topic", b"mine")
        await mine.wait(NEVER_S)


class UnavailableSharedStore:
    """A shared store that is out for its first subscriptions."""

    def __init__(self, shared_store: TenantSharedStore, times: int) -> None:
        self._shared_store, self._times = shared_store, times

    async def follow(self, topic: str, deliver: DeliverMessage) -> Subscription:
        if self._times:
            self._times -= 1
            raise StoreUnavailable("the shared store does not answer")
        return await self._shared_store.follow(topic, deliver)


async def test_without_the_shared_store_the_poll_ends_the_wait(
    shared_store: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends by itself, and the topic is followed as soon as the shared store is back."""
    acme = shared_store.for_tenant("acme")
    out: TenantSharedStore = UnavailableSharedStore(acme, times=3)  # type: ignore[assignment]  # all that it is asked for
    async with WakeUps(partial(out.follow, "topic")) as wake_ups, asyncio.timeout(WITHIN_S):
        await wake_ups.wait(0.0)
        assert not wake_ups.is_following

    monkeypatch.setattr(shared_stores, "SUBSCRIBE_AGAIN_S", 0.01)
    async with WakeUps(partial(out.follow, "topic")) as wake_ups, asyncio.timeout(WITHIN_S):
        states = [wake_ups.is_following]
        await wake_ups.wait(NEVER_S)  # for the messages that it has missed
        states.append(wake_ups.is_following)
        await acme.publish("topic", b"")
        await wake_ups.wait(NEVER_S)

    assert states == [False, True]


async def test_no_subscription_is_made_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts end with the block."""
    monkeypatch.setattr(shared_stores, "SUBSCRIBE_AGAIN_S", 0.0)
    acme = MemorySharedStore().for_tenant("acme")
    out: TenantSharedStore = UnavailableSharedStore(acme, times=1)  # type: ignore[assignment]  # all that it is asked for
    async with WakeUps(partial(out.follow, "topic")) as wake_ups:
        pass
    for _ in range(5):
        await asyncio.sleep(0)

    assert not wake_ups.is_following
    assert not acme._followers


async def test_no_subscription_is_left_behind() -> None:
    """Leaving the block ends the subscription; a late message wakes no task."""
    acme = MemorySharedStore().for_tenant("acme")
    async with WakeUps(partial(acme.follow, "topic")) as wake_ups:
        pass
    await acme.publish("topic", b"")

    assert not wake_ups._woken.is_set()
