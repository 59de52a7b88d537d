"""The offers of a process's tenants: snapshots of the store, never of a server."""

import asyncio
from typing import Any

import msgspec
import pytest

from gatepost.storage import change_poller
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.offers.tenant_offers import Agent, OfferSource, TenantOffers
from gatepost.upstreams import upstream_offers as source_module
from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.assembly import FetchedLists, assembled
from gatepost.upstreams.connection import ServerDescription
from gatepost.upstreams.definition_pins import Pins
from gatepost.upstreams.definitions import read_list
from gatepost.upstreams.store import UpstreamStore
from gatepost.upstreams.upstream_offers import (
    AGAIN_S,
    NO_OFFERS,
    RETRY_S,
    CatalogueDemandListener,
    UpstreamOffers,
)
from gatepost.upstreams.upstream_server import UpstreamServer
from gatepost.upstreams.watch import ChangeWatch
from gatepost_authz.caller import TenantContext
from tests.support.measuring import ManualClock
from tests.upstreams.conftest import NamedCalls, poll, polling, register, tool


def caller(tenant: str = "acme", subject: str = "alice") -> TenantContext:
    return TenantContext(
        tenant_id=tenant,
        issuer="https://id.example.com",
        subject=subject,
        subject_kind="user",
        resource="https://mcp.example.com/mcp",
        expires_at=2**31,
    )


class Remembered(CatalogueDemandListener):
    """What the source asked for."""

    def __init__(self) -> None:
        self.wanted: list[tuple[str, tuple[str, ...] | None]] = []

    def request_catalogue(self, server: UpstreamServer, principal: tuple[str, ...] | None) -> None:
        self.wanted.append((server.name, principal))


class SourceReplica:
    """What one replica has."""

    def __init__(self, store: UpstreamStore, clock: ManualClock) -> None:
        self.store, self.watch = store, ChangeWatch(store.counter)
        self.wanted = Remembered()
        self.source: OfferSource = UpstreamOffers(
            store, self.watch, NamedCalls(), in_use=self.wanted, clock=clock
        )

    async def poll(self) -> None:
        """Look for changes once."""
        await poll(self.store, self.watch)

    async def offers(self, caller: TenantContext) -> TenantOffers:
        """Return what the registry gets."""
        return self.source.at_hand(caller) or await self.source.load(caller)

    async def names(self, caller: TenantContext) -> list[str]:
        """Return the names of the offers, as the next call sees them."""
        await self.poll()
        return [offer.name for offer in (await self.offers(caller)).offers]


@pytest.fixture
def process(in_memory: UpstreamStore, clock: ManualClock) -> SourceReplica:
    return SourceReplica(in_memory, clock)


async def store_catalogue(
    store: UpstreamStore,
    server: UpstreamServer,
    *tools: dict[str, Any],
    caller: TenantContext | None = None,
    ttl_ms: int = 60_000,
) -> None:
    """Store what a fetch brought."""
    description = ServerDescription(era="modern", revision="2026-07-28", capabilities={"tools": {}})
    definitions, _ = read_list("tools", tools)
    listed = FetchedLists(description=description, definitions=definitions, ttl_ms=ttl_ms)
    new_catalogue, _ = assembled(server, listed, Pins(), None, now=1.0)
    await store.catalogues.put(
        server.tenant, new_catalogue, None if caller is None else caller.principal_key
    )


async def test_a_tenant_without_servers_has_no_offers(process: SourceReplica) -> None:
    """Gatepost does not load its offers again."""
    assert process.source.at_hand(caller()) is None
    loaded = await process.source.load(caller())

    assert (loaded.offers, loaded.ttl_ms) == (NO_OFFERS.offers, None)
    assert process.source.at_hand(caller()) is loaded
    assert process.wanted.wanted == []


async def test_a_catalogue_is_offered_until_it_changes(
    in_memory: UpstreamStore, process: SourceReplica, clock: ManualClock
) -> None:
    """Another replica's change reaches this one with its next look."""
    server = await register(in_memory)
    assert await process.names(caller()) == []
    assert process.wanted.wanted == [("crm", None)]

    await store_catalogue(in_memory, server, tool("a"), ttl_ms=5_000)
    assert await process.names(caller()) == ["mcp_crm__a"]
    first = process.source.at_hand(caller())
    assert first is not None
    assert first.ttl_ms == 5_000

    clock.now += 1
    other = await register(in_memory, "other")
    await store_catalogue(in_memory, other, tool("b"), ttl_ms=9_000)
    assert await process.names(caller()) == ["mcp_crm__a", "mcp_other__b"]
    second = process.source.at_hand(caller())
    assert second is not None
    assert second.ttl_ms == 5_000
    assert second.offers[0] is first.offers[0]

    await in_memory.replace(msgspec.structs.replace(server, status="disabled"))
    assert await process.names(caller()) == ["mcp_other__b"]
    await in_memory.delete("acme", other.id)
    assert await process.names(caller()) == []


async def test_unchanged_content_keeps_the_same_snapshot(
    in_memory: UpstreamStore, process: SourceReplica
) -> None:
    """Lists that were encoded for it stay valid."""
    server = await register(in_memory)
    await store_catalogue(in_memory, server, tool("a"))
    first = await process.offers(caller())
    await store_catalogue(in_memory, server, tool("a"))
    await process.poll()

    assert process.source.at_hand(caller()) is None
    assert await process.source.load(caller()) is first


async def test_offers_of_tenants_are_isolated(
    in_memory: UpstreamStore, process: SourceReplica
) -> None:
    """Servers of the same name stay apart, too."""
    for tenant in ("acme", "beta"):
        server = await register(in_memory, tenant=tenant)
        await store_catalogue(in_memory, server, tool(f"of_{tenant}"))

    assert await process.names(caller()) == ["mcp_crm__of_acme"]
    assert await process.names(caller("beta")) == ["mcp_crm__of_beta"]
    at_hand = process.source.at_hand(caller())
    await register(in_memory, "new", tenant="beta")
    await process.poll()
    assert process.source.at_hand(caller()) is at_hand
    assert process.source.at_hand(caller("beta")) is None


async def test_each_person_has_a_catalogue_of_its_own(
    in_memory: UpstreamStore, process: SourceReplica, clock: ManualClock
) -> None:
    """It is offered to that person only."""
    shared = await register(in_memory, "shared")
    await store_catalogue(in_memory, shared, tool("s"))
    clock.now += 1
    own = await register(in_memory, "own", catalogue="person")
    alice, bob = caller(), caller(subject="bob")
    assert await process.names(alice) == ["mcp_shared__s"]
    assert process.wanted.wanted == [("own", alice.principal_key)]

    await store_catalogue(in_memory, own, tool("alices"), caller=alice)
    assert await process.names(alice) == ["mcp_shared__s", "mcp_own__alices"]
    assert await process.names(bob) == ["mcp_shared__s"]
    mine, others = process.source.at_hand(alice), process.source.at_hand(bob)
    assert mine is not None
    assert others is not None
    assert mine.offers[0] is others.offers[0]


async def test_agents_are_part_of_the_snapshot(
    in_memory: UpstreamStore, process: SourceReplica
) -> None:
    """The snapshot finds an agent by its client id."""
    agent = AgentRegistration(
        id="",
        tenant="acme",
        name="helper",
        client_ids=("claude", "cursor"),
        capabilities=("pack:notes",),
        mode="search",
    )
    assert (await process.offers(caller())).agents == {}
    await in_memory.create_agent(agent)
    await process.poll()

    expected = Agent(frozenset({"pack:notes"}), "search")
    assert (await process.offers(caller())).agents == {"claude": expected, "cursor": expected}


async def test_an_outage_of_the_store_keeps_the_cached_offers(
    in_memory: UpstreamStore,
    process: SourceReplica,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant that was never loaded gets an error."""
    server = await register(in_memory)
    await store_catalogue(in_memory, server, tool("a"))
    catalogue_known = await process.offers(caller())
    await in_memory.delete("acme", server.id)
    await process.poll()
    count_before = 0

    async def out(tenant: str) -> list[UpstreamServer]:
        nonlocal count_before
        count_before += 1
        raise StoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(in_memory, "servers", out)
        assert await process.offers(caller()) is catalogue_known
        assert process.source.at_hand(caller()) is catalogue_known
        assert count_before == 1
        with pytest.raises(StoreUnavailable):
            await process.offers(caller("beta"))
    clock.now += RETRY_S
    assert (await process.offers(caller())).offers == ()


async def test_a_change_during_the_reading_is_not_missed(
    in_memory: UpstreamStore,
    process: SourceReplica,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The snapshot is outdated as soon as it is made; who waited for it uses it all the same."""
    server = await register(in_memory)
    agents = in_memory.agents

    async def changing(tenant: str) -> list[AgentRegistration]:
        await store_catalogue(in_memory, server, tool("b"))
        await process.poll()
        return await agents(tenant)

    with monkeypatch.context() as patch:
        patch.setattr(in_memory, "agents", changing)
        loaded = await process.source.load(caller())
    assert process.source.at_hand(caller()) is loaded
    clock.now += AGAIN_S
    assert process.source.at_hand(caller()) is None
    assert await process.names(caller()) == ["mcp_crm__b"]


async def test_the_number_of_cached_tenants_is_bounded(
    in_memory: UpstreamStore, process: SourceReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant that was not used longest goes first."""
    monkeypatch.setattr(source_module, "MAX_TENANTS", 2)
    for tenant in ("acme", "beta", "acme", "gamma"):
        await process.offers(caller(tenant))

    assert process.source.at_hand(caller("acme")) is not None
    assert process.source.at_hand(caller("gamma")) is not None
    assert process.source.at_hand(caller("beta")) is None


async def test_a_published_change_is_seen_at_once(
    in_memory: UpstreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the next poll, through the shared store."""
    monkeypatch.setattr(change_poller, "POLL_S", 3_600)
    watch = ChangeWatch(in_memory.counter)
    changed = asyncio.Event()
    watch.notify(lambda tenant: changed.set() if tenant == "acme" else None)
    await watch.track("acme")

    async with asyncio.timeout(10), polling(in_memory, watch):
        for _ in range(100):  # the subscription begins a little after the block
            await in_memory.counter.changed("acme")
            await asyncio.sleep(0)
        await changed.wait()
