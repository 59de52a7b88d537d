"""Keeping catalogues fresh: in time, once for all replicas, and no server delays another."""

import asyncio

import msgspec
import pytest

from gatepost.storage.leases import Leases
from gatepost.upstreams import update as update_module
from gatepost.upstreams.connection import (
    ConnectionFailure,
    UpstreamResult,
)
from gatepost.upstreams.plan import BUSY_CALLS, LAST_RETRY_S, MAX_S, MIN_S
from gatepost.upstreams.refresh import LEASE_S, RECHECK_S, USED_S
from gatepost.upstreams.store import UpstreamStore
from tests.support.measuring import ManualClock, capture_logs
from tests.upstreams.conftest import (
    RefreshReplica,
    ScriptedConnections,
    ScriptedUpstream,
    register,
    tool,
)

ALICE, BOB = ("acme", "iss", "user", "alice"), ("acme", "iss", "user", "bob")


@pytest.mark.requirement("E3")
async def test_a_server_is_fetched_when_it_is_first_used(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Gatepost fetches it again only when its catalogue is stale."""
    server = await register(replica.store)
    await replica.settle()
    assert upstream.asked == []

    replica.refresher.used("acme")
    await replica.settle()
    assert await replica.keys(server) == ["a"]
    assert (await replica.catalogue(server)).fetched_at == 1_000
    assert replica.announced == [("acme", frozenset({"tools"}))]

    replica.clock.now += MAX_S * 0.89
    replica.refresher.used("acme")
    await replica.settle()
    assert len(upstream.asked) == 1
    replica.clock.now += MAX_S * 0.12
    await replica.settle()
    assert len(upstream.asked) == 2
    assert replica.announced == [("acme", frozenset({"tools"}))]


async def test_a_server_says_how_long_its_lists_are_good(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """If that time is zero, Gatepost still pauses between two fetches."""
    upstream.more = {"ttlMs": 0}
    await register(replica.store)
    replica.refresher.used("acme")
    await replica.settle()
    await replica.settle()
    assert len(upstream.asked) == 1

    replica.clock.now += MIN_S
    await replica.settle()
    assert len(upstream.asked) == 2


async def test_a_busy_server_is_refreshed_early(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Its callers then get no stale catalogue."""
    server = await register(replica.store)
    replica.refresher.used("acme")
    await replica.settle()
    replica.clock.now += MAX_S / 2
    await replica.settle()
    assert len(upstream.asked) == 1

    for _ in range(BUSY_CALLS):
        replica.refresher.called("acme", server.id)
    await replica.settle()
    assert len(upstream.asked) == 2
    await replica.settle()
    assert len(upstream.asked) == 2


async def test_catalogues_of_an_unused_tenant_are_not_refreshed(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Gatepost stops refreshing its catalogues a day after its last use."""
    await register(replica.store)
    replica.refresher.used("acme")
    await replica.settle()
    replica.clock.now += USED_S + 1
    await replica.settle()

    assert len(upstream.asked) == 1


async def test_an_outage_keeps_the_last_good_catalogue(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """The status says since when; Gatepost tries the server again with growing pauses."""
    server = await register(replica.store)
    replica.refresher.used("acme")
    await replica.settle()
    down = ConnectionFailure("unreachable", "The server crm cannot be reached.")
    upstream.answer = lambda *_: down
    replica.clock.now += MAX_S
    await replica.settle()

    failing = await replica.catalogue(server)
    assert [definition.key for definition in failing.definitions] == ["a"]
    assert failing.fetched_at == 1_000
    assert failing.failing_since == 1_000 + MAX_S
    assert failing.failure == "The server crm cannot be reached."
    count = len(upstream.asked)
    for _ in range(200):
        replica.clock.now += 18
        replica.refresher.used("acme")
        await replica.settle()
    assert 6 <= len(upstream.asked) - count <= 14
    assert (await replica.catalogue(server)).failing_since == 1_000 + MAX_S

    upstream.answer = upstream.listed
    replica.clock.now += LAST_RETRY_S * 1.2
    await replica.settle()
    mended = await replica.catalogue(server)
    assert (mended.failing_since, mended.failure) == (None, "")


async def test_a_server_that_never_answered_fails_with_a_sentence(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Its administrator gets the sentence at once and can read it later."""
    server = await register(replica.store)
    upstream.answer = lambda *_: ConnectionFailure("unauthorized", "The server crm answers 401.")

    with pytest.raises(ConnectionFailure, match="answers 401"):
        await replica.refresher.refresh("acme", server.id)
    assert (await replica.catalogue(server)).failure == "The server crm answers 401."
    assert (await replica.catalogue(server)).fetched_at == 0


async def test_a_fetch_from_a_slow_server_times_out(
    replica: RefreshReplica, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gatepost gives up after the time for one fetch."""
    monkeypatch.setattr(update_module, "FETCH_S", 0.05)
    server = await register(replica.store)
    upstream.may_answer.clear()

    with pytest.raises(ConnectionFailure, match="did not list") as failed:
        await replica.refresher.refresh("acme", server.id)
    assert failed.value.reason == "timeout"


async def test_one_slow_server_delays_no_other(
    running: RefreshReplica, connections: ScriptedConnections
) -> None:
    """The other server may be of the same tenant or of another."""
    connections.upstreams["slow"] = ScriptedUpstream()
    connections.upstreams["slow"].may_answer.clear()
    await register(running.store, "slow")
    fast = await register(running.store)
    others = await register(running.store, tenant="beta")
    running.refresher.used("acme")
    running.refresher.used("beta")

    await running.hears(announced=2)
    assert await running.keys(fast) == ["a"]
    assert await running.keys(others) == ["a"]


async def test_one_replica_fetches_for_all(
    in_memory: UpstreamStore, connections: ScriptedConnections, clock: ManualClock
) -> None:
    """The others read it from the store."""
    upstream = connections.upstreams["crm"]
    server = await register(in_memory)
    replicas = [RefreshReplica(in_memory, connections, clock) for _ in range(3)]
    for replica in replicas:
        replica.refresher.used("acme")
    await asyncio.gather(*(replica.settle() for replica in replicas))
    assert len(upstream.asked) == 1

    clock.now += RECHECK_S * 1.2
    for _ in range(3):
        await asyncio.gather(*(replica.settle() for replica in replicas))
    assert len(upstream.asked) == 1
    assert await replicas[2].keys(server) == ["a"]


async def test_a_changed_registration_is_fetched_again(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Its credential or pin may have changed. A disabled server is not fetched."""
    server = await register(replica.store)
    replica.refresher.used("acme")
    await replica.settle()
    replica.clock.now += 10
    server = await replica.store.replace(msgspec.structs.replace(server, renames={"a": "z"}))
    await replica.settle()

    assert len(upstream.asked) == 2
    assert (await replica.catalogue(server)).definitions[0].name == "mcp_crm__z"
    replica.clock.now += 10
    await replica.store.replace(msgspec.structs.replace(server, status="disabled"))
    await replica.settle()
    assert len(upstream.asked) == 2


async def test_a_server_deleted_during_a_fetch_leaves_no_catalogue(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """The fetch that ends later does not store one."""
    server = await register(replica.store)
    upstream.may_answer.clear()
    fetch = asyncio.create_task(replica.refresher.refresh("acme", server.id))
    await asyncio.sleep(0)
    await replica.store.delete("acme", server.id)
    upstream.may_answer.set()
    await fetch

    assert await replica.store.catalogues.get("acme", server.id) is None
    assert await replica.store.catalogues.pins("acme", server.id) == (
        (await replica.store.catalogues.pins("acme", "none"))[0],
        0,
    )
    assert replica.announced == []


async def test_a_persons_catalogue_is_fetched_with_their_own_connection(
    replica: RefreshReplica, connections: ScriptedConnections
) -> None:
    """Each fetch has its own connection."""
    connections.personal["crm", ALICE] = ScriptedUpstream(tool("alices"))
    connections.personal["crm", BOB] = ScriptedUpstream(tool("bobs"))
    server = await register(replica.store, catalogue="person")
    for who in (ALICE, BOB):
        replica.refresher.request_catalogue(server, who)
    await replica.settle()

    assert await replica.keys(server, ALICE) == ["alices"]
    assert await replica.keys(server, BOB) == ["bobs"]
    assert connections.upstreams["crm"].asked == []


async def test_the_catalogue_has_its_own_credential(
    replica: RefreshReplica, connections: ScriptedConnections
) -> None:
    """Calls keep the other one."""
    server = await register(replica.store, credential="calls", list_credential="lists")
    await replica.refresher.refresh("acme", server.id)

    assert [request.credential for request in connections.used] == ["lists"]


async def test_cache_scope_public_does_not_share_a_catalogue(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """A catalogue stays with the tenant or the caller for whom it was fetched."""
    upstream.more = {"cacheScope": "public", "ttlMs": 5_000}
    server = await register(replica.store)
    refreshed = await replica.refresher.refresh("acme", server.id)

    assert refreshed.ttl_ms == 5_000
    assert await replica.store.catalogues.get("beta", server.id) is None


async def test_a_changed_definition_waits_over_fetches(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """A definition that is accepted during a fetch is offered afterwards."""
    server = await register(replica.store)
    await replica.refresher.refresh("acme", server.id)
    upstream.lists["tools/list"] = [tool("a", description="Now deletes everything.")]
    await replica.refresher.refresh("acme", server.id)
    assert await replica.keys(server) == []

    upstream.may_answer.clear()
    fetch = asyncio.create_task(replica.refresher.refresh("acme", server.id))
    await asyncio.sleep(0)
    assert await replica.store.catalogues.accept(server) == 1
    upstream.may_answer.set()
    await fetch
    assert await replica.keys(server) == ["a"]


async def test_a_replica_that_dies_in_a_fetch_is_replaced(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """Another one fetches after its lease."""
    server = await register(replica.store)
    gone = Leases(replica.store._records, clock=replica.clock)
    assert await gone.take("acme", f"fetch/{server.id}", LEASE_S)
    replica.refresher.used("acme")
    await replica.settle()
    assert upstream.asked == []

    replica.clock.now += LEASE_S
    await replica.settle()
    assert await replica.keys(server) == ["a"]


async def test_an_invalid_result_affects_only_its_own_server(
    replica: RefreshReplica, upstream: ScriptedUpstream, connections: ScriptedConnections
) -> None:
    """The others' catalogues are stored all the same."""
    connections.upstreams["liar"] = ScriptedUpstream()
    connections.upstreams["liar"].answer = lambda *_: UpstreamResult({"tools": "all of them"})
    liar, crm = await register(replica.store, "liar"), await register(replica.store)
    replica.refresher.used("acme")
    await replica.settle()

    assert await replica.keys(crm) == ["a"]
    assert (await replica.catalogue(liar)).failure == (
        "The server liar answers tools/list without a list."
    )


async def test_an_unexpected_error_is_not_retried_at_once(
    replica: RefreshReplica, upstream: ScriptedUpstream
) -> None:
    """It is logged, and the pauses between retries grow."""
    await register(replica.store)
    upstream.answer = lambda *_: 1 / 0  # type: ignore[return-value]
    replica.refresher.used("acme")
    with capture_logs() as logged:
        for _ in range(10):
            await replica.settle()
            replica.clock.now += 1

    assert len(upstream.asked) == 1
    assert [failure["error"] for failure in logged] == ["ZeroDivisionError"]
