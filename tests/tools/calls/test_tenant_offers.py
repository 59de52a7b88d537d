"""What a tenant has beside the configuration follows the same rules as all other offers."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost import CallContext, Pack
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.calls.registry import Registry, Unknown, UnknownTool
from gatepost.tools.offers.offer import Offer, OfferKind, Tool
from gatepost.tools.offers.tenant_offers import Agent
from gatepost_authz.caller import TenantContext
from tests.support.endpoint import a_caller
from tests.support.tools import MemorySource, ToolUpstream
from tests.tools.calls.test_registry import offers_needing

SCOPES = st.frozensets(st.sampled_from(["a", "b", "c"]))
ACME, GLOBEX = a_caller(), a_caller(tenant_id="globex")


def enabled_offers() -> list[Offer]:
    """Return one enabled offer of each kind that has names."""
    pack = Pack("office")

    @pack.tool
    async def stamp(ctx: CallContext) -> str:
        """Stamp a card."""
        return "stamped"

    @pack.tool(scopes={"secret"})
    async def vault(ctx: CallContext) -> str:
        """Open the vault."""
        return "open"

    @pack.prompt
    async def greet(ctx: CallContext, name: str) -> str:
        """Greet."""
        return name

    @pack.resource("office://rules")
    async def rules(ctx: CallContext) -> str:
        """Return the rules."""
        return "rules"

    @pack.resource("office://rooms/{room}", scopes={"secret"})
    async def room(ctx: CallContext, room: str) -> str:
        """Return a room."""
        return room

    return [*pack.offers]


async def ready_registry(
    source: MemorySource, *callers: TenantContext, obtainable: frozenset[str] | None = None
) -> Registry:
    registry = Registry(enabled_offers(), obtainable=obtainable, source=source)
    for caller in callers or (ACME, GLOBEX):
        await registry.prepare(caller)
    return registry


def names(registry: Registry, caller: TenantContext) -> list[str]:
    return [tool.name for tool in registry.visible(caller).tools]


async def test_each_tenant_has_its_own_tools_of_the_same_name() -> None:
    """Every tenant has the enabled tools as well."""
    source, ours, theirs = MemorySource(), ToolUpstream(word="ours"), ToolUpstream(word="theirs")
    mine, other = ours.tool("find"), theirs.tool("find")
    source.put("acme", mine)
    source.put("globex", other)
    registry = await ready_registry(source)

    assert names(registry, ACME) == names(registry, GLOBEX) == ["mcp_crm__find", "stamp", "vault"]
    assert registry.find(ACME, "mcp_crm__find") is mine
    assert registry.find(GLOBEX, "mcp_crm__find") is other
    assert names(await ready_registry(MemorySource()), ACME) == ["stamp", "vault"]


async def test_a_tenant_never_takes_an_enabled_name() -> None:
    """The name is taken even for callers that cannot see the enabled offer."""
    source, upstream = MemorySource(), ToolUpstream()
    pack = Pack("mcp_crm")

    @pack.prompt
    async def greet(ctx: CallContext, person: str) -> str:
        """Say something else."""
        return person

    @greet.complete("person")
    async def people(ctx: CallContext, value: str, given: object) -> list[str]:
        return ["eve"]

    @pack.resource("office://rules")
    async def rules(ctx: CallContext) -> str:
        """Return other rules."""
        return "none"

    @pack.resource("office://rooms/7")
    async def room(ctx: CallContext) -> str:
        """Return a room that the template has."""
        return "mine"

    @pack.resource("office://{+any}")
    async def everything(ctx: CallContext, any: str) -> str:
        """Return all of the office."""
        return "mine"

    source.put(
        "acme",
        replace(upstream.tool("x"), name="stamp"),
        replace(upstream.tool("y"), name="vault"),
        replace(upstream.tool("z"), name="find_tools"),
        *pack.offers,
    )
    registry = await ready_registry(source, obtainable=frozenset())

    assert registry.find(ACME, "stamp").pack == "office"
    assert names(registry, ACME) == ["stamp"]
    for name in ("vault", "find_tools"):
        with pytest.raises(UnknownTool):
            registry.find(ACME, name)
    assert registry.offer("prompt", "greet", ACME).pack == "office"
    assert registry.offer("completion", "greet", ACME).pack == "office"
    assert registry.offer("document", "office://rules", ACME).pack == "office"
    with pytest.raises(Unknown):
        registry.offer("document", "office://rooms/7", ACME)
    assert [document.uri for document in registry.visible(ACME).documents] == ["office://rules"]
    assert registry.offer("document", "office://cellar", ACME).pack == "mcp_crm"


@given(needed=st.lists(SCOPES, max_size=4), granted=SCOPES, obtainable=st.none() | SCOPES)
async def test_a_list_has_exactly_the_tools_that_can_be_called(
    needed: list[frozenset[str]], granted: frozenset[str], obtainable: frozenset[str] | None
) -> None:
    """Scopes decide as for enabled tools; by default all of a tenant's scopes are obtainable."""
    source, upstream = MemorySource(), ToolUpstream()
    source.put("acme", *(upstream.tool(f"t{n}", scopes=needs) for n, needs in enumerate(needed)))
    registry = await ready_registry(source, obtainable=obtainable)
    caller = a_caller(scopes=granted)
    reached = {
        f"mcp_crm__t{number}"
        for number, scopes in enumerate(needed)
        if obtainable is None or scopes - granted <= obtainable
    }

    assert {name for name in names(registry, caller) if name.startswith("mcp_")} == reached
    for number in range(len(needed)):
        name = f"mcp_crm__t{number}"
        if name in reached:
            assert registry.find(caller, name).name == name
        else:
            with pytest.raises(UnknownTool):
                registry.find(caller, name)


@pytest.mark.requirement("E9")
async def test_an_agent_reaches_only_its_capabilities() -> None:
    """They are packs and upstreams; clients that are no agents reach all."""
    source, crm, wiki = MemorySource(), ToolUpstream(), ToolUpstream("wiki", server_id="id-2")
    agents = {
        "one": Agent(frozenset({crm.capability})),
        "two": Agent(frozenset({"pack:office", "pack:mcp_wiki"})),
        "none": Agent(frozenset()),
    }
    source.put("acme", crm.tool("find"), wiki.tool("read"), agents=agents)
    registry = await ready_registry(source)
    everything = ["mcp_crm__find", "mcp_wiki__read", "stamp", "vault"]
    expected = {
        "one": ["mcp_crm__find"],
        "two": ["stamp", "vault"],
        "none": [],
        "else": everything,
    }

    for client, reached in expected.items():
        caller = a_caller(client_id=client)
        assert names(registry, caller) == reached
        for name in everything:
            if name in reached:
                assert registry.find(caller, name).name == name
            else:
                with pytest.raises(UnknownTool):
                    registry.find(caller, name)
    agent = a_caller(client_id="one")
    assert registry.visible(agent).documents == registry.visible(agent).prompts == ()
    for kind, key in (("prompt", "greet"), ("document", "office://rules")):
        with pytest.raises(Unknown):
            registry.offer(kind, key, agent)  # type: ignore[arg-type]
    assert names(registry, a_caller(tenant_id="globex", client_id="none")) == ["stamp", "vault"]


@pytest.mark.requirement("E9")
async def test_an_agent_that_searches_sees_two_tools() -> None:
    """It calls its other tools through them; no other agent has them."""
    source, crm = MemorySource(), ToolUpstream()
    agent = Agent(frozenset({crm.capability}), mode="search")
    source.put("acme", crm.tool("find"), agents={"agent": agent})
    registry = await ready_registry(source)
    caller = a_caller(client_id="agent")

    assert names(registry, caller) == ["call_tool", "find_tools"]
    assert [tool.name for tool in registry.searchable(caller).tools] == ["mcp_crm__find"]
    assert registry.find(caller, "mcp_crm__find").name == "mcp_crm__find"
    with pytest.raises(UnknownTool):
        registry.find(caller, "stamp")
    for name in ("find_tools", "call_tool"):
        assert registry.find(caller, name).name == name
        with pytest.raises(UnknownTool):
            registry.find(ACME, name)


async def test_without_the_tenants_offers_there_is_no_decision() -> None:
    """The agents are not known either; they are loaded once."""
    source = MemorySource()
    registry = Registry(enabled_offers(), source=source)
    with pytest.raises(StoreUnavailable):
        registry.find(ACME, "stamp")
    with pytest.raises(StoreUnavailable):
        registry.visible(ACME)

    await registry.prepare(ACME)
    await registry.prepare(ACME)
    assert registry.find(ACME, "stamp").name == "stamp"
    assert source.loads == ["acme"]


async def test_a_visible_list_is_cached_with_its_snapshot() -> None:
    """Equal permissions share one object; a new snapshot frees the old one."""
    source, crm = MemorySource(), ToolUpstream()
    source.put("acme", crm.tool("find", scopes=frozenset({"crm"})), ttl_ms=5)
    registry = await ready_registry(source, obtainable=frozenset())
    held_caller = a_caller(scopes=frozenset({"crm", "unrelated"}))
    visible = registry.visible(held_caller)

    assert registry.visible(a_caller(scopes=frozenset({"crm"}))) is visible
    assert registry.visible(ACME) is not visible
    assert visible.ttl_ms == 5
    gone = weakref.ref(visible)
    del visible
    source.put("acme", crm.tool("find"))
    gc.collect()
    assert gone() is None
    assert registry.visible(held_caller).ttl_ms is None


async def test_the_first_of_two_offers_of_a_name_counts() -> None:
    """A snapshot with a mistake must not take the rest away."""
    source, crm = MemorySource(), ToolUpstream()
    first, second = crm.tool("find", "First."), crm.tool("find", "Second.")
    source.put("acme", first, second)
    registry = await ready_registry(source)

    assert registry.find(ACME, "mcp_crm__find") is first
    assert names(registry, ACME) == ["mcp_crm__find", "stamp", "vault"]


@pytest.mark.parametrize("name", ["Upper", "with-dash", "a" * 65, "", "mcp_crm__ü"])
async def test_a_name_outside_the_grammar_is_left_out(name: str) -> None:
    """Such a name fits neither headers, URLs nor REST."""
    source, crm = MemorySource(), ToolUpstream()
    source.put("acme", replace(crm.tool("find"), name=name), crm.tool("look"))

    assert names(await ready_registry(source), ACME) == ["mcp_crm__look", "stamp", "vault"]


@given(granted=SCOPES, obtainable=st.none() | SCOPES)
async def test_a_tenant_without_offers_meets_the_same_decisions(
    granted: frozenset[str], obtainable: frozenset[str] | None
) -> None:
    """Enabled offers of every kind are handled as without a source."""
    needed = [frozenset[str](), frozenset({"a"}), frozenset({"a", "b"}), frozenset({"c"})]
    offers = offers_needing(*needed)
    plain = Registry(offers, obtainable=obtainable)
    beside = Registry(offers, obtainable=obtainable, source=MemorySource())
    caller = a_caller(scopes=granted)
    await beside.prepare(caller)
    plain_view, other = plain.visible(caller), beside.visible(caller)

    for member in ("tools", "documents", "templates", "prompts", "listers", "skills"):
        assert getattr(plain_view, member) == getattr(other, member)
    for offer in plain.offers:
        uri = offer.key.replace("{x}", "1")
        assert offer_of(plain, offer.kind, uri, caller) is offer_of(beside, offer.kind, uri, caller)
        if isinstance(offer, Tool):
            assert plain.withheld(offer, caller) == beside.withheld(offer, caller)


def offer_of(registry: Registry, kind: OfferKind, key: str, caller: TenantContext) -> Offer | None:
    try:
        return registry.offer(kind, key, caller)
    except Unknown:
        return None
