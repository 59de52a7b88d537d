"""Following what servers tell of changes: one replica for all, and polling without a stream."""

import asyncio

import pytest

from gatepost.storage.leases import LeaseLost, Leases
from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.upstreams import subscription as subscription_module
from gatepost.upstreams.connection import (
    UpstreamNotification,
)
from gatepost.upstreams.plan import ANNOUNCED_S, POLLED_S
from gatepost.upstreams.store import UpstreamStore
from gatepost.upstreams.upstream_server import UpstreamServer
from tests.support.measuring import ManualClock
from tests.upstreams.conftest import (
    RefreshReplica,
    ScriptedConnections,
    ScriptedUpstream,
    register,
    tool,
)


async def test_a_change_of_the_list_is_fetched_at_once(
    running: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Gatepost then announces it to the tenant's clients."""
    upstream.has_stream = True
    upstream.capabilities = {"tools": {"listChanged": True}}
    server = await register(running.store)
    running.refresher.used("acme")
    async with asyncio.timeout(10):
        await upstream.opened.wait()

    await running.hears(announced=1)
    upstream.lists["tools/list"].append(tool("b", inputSchema={"type": "object"}))
    upstream.server_notifications.put_nowait(
        UpstreamNotification("notifications/tools/list_changed", {})
    )
    running.clock.now += ANNOUNCED_S

    await running.hears(announced=2)
    assert await running.keys(server) == ["a", "b"]


async def test_frequent_change_notifications_cause_bounded_fetches(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Gatepost fetches at most once in a few seconds."""
    server = await register(replica.store)
    replica.refresher.used("acme")
    await replica.settle()
    for _ in range(100):
        replica.refresher._relisted(server)
        await replica.settle()
    assert len(upstream.asked) == 1

    replica.clock.now += ANNOUNCED_S
    await replica.settle()
    assert len(upstream.asked) == 2


async def test_updates_of_resources_are_sent_to_the_clients(
    running: RefreshReplica, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gatepost passes on only the updates of resources that the server has listed."""
    monkeypatch.setattr(subscription_module, "TOGETHER_S", 0.01)
    upstream.has_stream = True
    upstream.capabilities = {"resources": {"subscribe": True}}
    upstream.lists = {
        "resources/list": [{"uri": "crm://all", "name": "all"}],
        "resources/templates/list": [{"uriTemplate": "crm://user/{id}", "name": "user"}],
    }
    await register(running.store)
    running.refresher.used("acme")
    async with asyncio.timeout(10):
        await upstream.opened.wait()
    for uri in ("notes://own", 5, "crm://user/7", "crm://all"):
        notification = UpstreamNotification("notifications/resources/updated", {"uri": uri})
        upstream.server_notifications.put_nowait(notification)

    await running.hears(updated=2)
    assert sorted(running.updated) == [("acme", "crm://all"), ("acme", "crm://user/7")]


async def test_a_server_without_a_stream_is_polled(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Gatepost polls it only if it declares that its lists change."""
    server = await register(replica.store)
    replica.refresher.used("acme")
    await replica.settle()
    replica.refresher._unfollowed(server, is_polled=True)
    replica.clock.now += POLLED_S - 1
    await replica.settle()
    assert len(upstream.asked) == 1
    replica.clock.now += 1
    await replica.settle()
    assert len(upstream.asked) == 2


async def test_a_server_that_hangs_on_its_stream_is_polled(
    in_memory: UpstreamStore,
    connections: ScriptedConnections,
    replica: RefreshReplica,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Polling begins when the time for opening the stream is over."""
    monkeypatch.setattr(subscription_module, "OPEN_S", 0.05)
    server = await register(in_memory)
    polled = asyncio.Event()

    def unfollowed(server: UpstreamServer, *, is_polled: bool) -> None:
        if is_polled:
            polled.set()

    class Hanging:
        async def __aenter__(self) -> None:
            await asyncio.Event().wait()

        async def __aexit__(self, *_: object) -> None:
            """Do nothing."""

    connection = connections.connection_to(server)
    monkeypatch.setattr(connection, "notifications", Hanging)
    monkeypatch.setattr(connections, "connection_to", lambda *_: connection)
    subscription = replica.refresher._subscription
    task = asyncio.create_task(subscription.follow(server, lambda _: None, unfollowed))
    async with asyncio.timeout(10):
        await polled.wait()
    task.cancel()
    await asyncio.wait([task])


async def test_one_replica_follows_a_server(
    in_memory: UpstreamStore, connections: ScriptedConnections, clock: ManualClock
) -> None:
    """Another one takes over when it is gone."""
    leases = [Leases(in_memory._records, clock=clock) for _ in range(2)]

    assert await leases[0].take("acme", "follow/s", 30)
    assert not await leases[1].take("acme", "follow/s", 30)
    assert await leases[1].take("beta", "follow/s", 30)
    clock.now += 29
    assert await leases[0].take("acme", "follow/s", 30)
    clock.now += 31
    assert await leases[1].take("acme", "follow/s", 30)
    await leases[0].release("acme", "follow/s")
    assert not await leases[0].take("acme", "follow/s", 30)
    await leases[1].release("acme", "follow/s")
    assert await leases[0].take("acme", "follow/s", 30)


async def test_one_of_several_concurrent_replicas_gets_a_lease(
    records: Records, clock: ManualClock
) -> None:
    """This holds on every backend, and when an older lease has expired."""
    for _ in range(2):
        leases = [Leases(records, clock=clock) for _ in range(5)]
        taken = await asyncio.gather(*(lease.take("acme", "fetch/s", 30) for lease in leases))
        assert taken.count(True) == 1
        clock.now += 31


async def test_work_stops_when_its_lease_is_lost(clock: ManualClock) -> None:
    """Two replicas must not do it side by side."""
    records = MemoryRecords()
    first, second = Leases(records, clock=clock), Leases(records, clock=clock)
    assert await first.take("acme", "follow/s", 0.03)
    clock.now += 1
    assert await second.take("acme", "follow/s", 30)

    async def endless() -> None:
        await asyncio.Event().wait()

    with pytest.raises(LeaseLost):
        async with asyncio.timeout(10):
            await first.during("acme", "follow/s", 0.03, endless())
    assert not await first.take("acme", "follow/s", 30)
