"""Offers of tenants over MCP: lists, calls, prompts, resources and what becomes of changes."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from gatepost import CallContext
from gatepost.tools.offers.offer import Offer
from gatepost.tools.offers.tenant_offers import Agent
from tests.mcp.conftest import declared_capabilities
from tests.support.endpoint import EndpointClient, a_caller
from tests.support.endpoint_clients import REVISIONS, ask, open_subscription, result_of
from tests.support.measuring import each
from tests.support.tools import MemorySource, ToolUpstream

GLOBEX = a_caller(tenant_id="globex")


def offers_of_each_kind(word: str) -> tuple[Offer, ...]:
    """Return a tool, a prompt with completions, a resource, and a template with a list."""
    upstream = ToolUpstream(word=word)
    pack = upstream.pack

    @pack.prompt(name="mcp_crm__greet")
    async def greet(ctx: CallContext, person: str) -> str:
        """Greet a person."""
        return f"Greet {person} for {word}"

    @greet.complete("person")
    async def people(ctx: CallContext, value: str, given: Mapping[str, str]) -> list[str]:
        return [f"{word}-{value}"]

    @pack.resource("crm://rules", ttl_s=7)
    async def rules(ctx: CallContext) -> str:
        """Return the rules."""
        return f"rules of {word}"

    @pack.resource("crm://people/{name}")
    async def person(ctx: CallContext, name: str) -> str:
        """Return a person."""
        return f"{name} of {word}"

    return (upstream.tool("find"), *upstream.others())


def two_tenants(**options: Any) -> tuple[EndpointClient, MemorySource]:
    source = MemorySource()
    source.put("acme", *offers_of_each_kind("ours"))
    source.put("globex", *offers_of_each_kind("theirs"))
    return EndpointClient(source=source, **options), source


@each("revision", REVISIONS)
async def test_tenants_with_the_same_names_see_their_own_offers(revision: str) -> None:
    """This holds in every list and every call, in each era."""
    client, _ = two_tenants()
    for caller, word in ((a_caller(), "ours"), (GLOBEX, "theirs"), (a_caller(), "ours")):
        client.caller = caller
        called = await result_of(client, revision, "tools/call", name="mcp_crm__find")
        assert called["content"][0]["text"] == f"{word} find"
        read = await result_of(client, revision, "resources/read", uri="crm://rules")
        assert read["contents"][0]["text"] == f"rules of {word}"
        read = await result_of(client, revision, "resources/read", uri="crm://people/eve")
        assert read["contents"][0]["text"] == f"eve of {word}"
        got = await result_of(
            client, revision, "prompts/get", name="mcp_crm__greet", arguments={"person": "eve"}
        )
        assert got["messages"][0]["content"]["text"] == f"Greet eve for {word}"
        assert got["description"] == "Greet a person."
        suggested = await result_of(
            client,
            revision,
            "completion/complete",
            ref={"type": "ref/prompt", "name": "mcp_crm__greet"},
            argument={"name": "person", "value": "e"},
        )
        assert suggested["completion"]["values"] == [f"{word}-e"]


LISTED_OFFERS = {
    "tools/list": ("tools", "name", "mcp_crm__find"),
    "prompts/list": ("prompts", "name", "mcp_crm__greet"),
    "resources/list": ("resources", "uri", "crm://rules"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate", "crm://people/{name}"),
}


@each("revision", REVISIONS)
@each("method", LISTED_OFFERS)
async def test_lists_have_the_offers_of_the_callers_tenant(method: str, revision: str) -> None:
    """A tenant without any has only the enabled ones; the lists are private."""
    client, _ = two_tenants()
    member, key, name = LISTED_OFFERS[method]
    for tenant, expected in (("acme", True), ("nobody", False), ("globex", True)):
        client.caller = a_caller(tenant_id=tenant)
        result = await result_of(client, revision, method)
        assert (name in [entry[key] for entry in result[member]]) is expected
        if revision == REVISIONS[0]:
            assert result["cacheScope"] == "private"


@each("revision", REVISIONS)
async def test_every_kind_of_offer_is_declared_even_if_it_is_empty(revision: str) -> None:
    """A catalogue may bring it at any time; empty lists are answered."""
    client = EndpointClient(source=MemorySource())
    capabilities = await declared_capabilities(client, revision)

    assert {"tools", "resources", "prompts", "completions"} <= capabilities.keys()
    assert (await result_of(client, revision, "prompts/list"))["prompts"] == []


@each("meta", [{"ui": {"resourceUri": "ui://x"}}, {"ui/resourceUri": "ui://x"}])
@each("revision", REVISIONS)
async def test_an_apps_interface_is_named_in_both_spellings(
    revision: str, meta: dict[str, Any]
) -> None:
    """The upstream may use either spelling; the first revision has no `_meta`."""
    source, upstream = MemorySource(), ToolUpstream()
    source.put("acme", upstream.tool("map", meta={**meta, "other": [1]}))
    client = EndpointClient(source=source)
    tools = (await result_of(client, revision, "tools/list"))["tools"]
    tool = next(tool for tool in tools if tool["name"] == "mcp_crm__map")

    if revision == "2025-03-26":
        assert "_meta" not in tool
    else:
        both = {"ui": {"resourceUri": "ui://x"}, "ui/resourceUri": "ui://x"}
        assert tool["_meta"] == {**both, "other": [1]}


@each("listed, expected", [(None, 300_000), (60_000, 60_000), (900_000, 300_000), (0, 0)])
async def test_a_list_has_the_shortest_lifetime_of_its_parts(
    listed: int | None, expected: int
) -> None:
    """Never longer than the server's own lists."""
    source = MemorySource()
    source.put("acme", ToolUpstream().tool("find"), ttl_ms=listed)
    client = EndpointClient(source=source)

    assert (await client.ask("tools/list")).json["result"]["ttlMs"] == expected


METHODS = {
    "tools/list": {},
    "prompts/list": {},
    "resources/list": {},
    "resources/templates/list": {},
    "tools/call": {"name": "whoami"},
    "resources/read": {"uri": "crm://rules"},
    "prompts/get": {"name": "mcp_crm__greet"},
}


@each("method", METHODS)
@each("revision", REVISIONS)
async def test_offers_are_loaded_once_and_an_outage_is_503(method: str, revision: str) -> None:
    """Without the tenant's agents even enabled tools cannot be decided about."""
    client, source = two_tenants()
    session = None if revision == REVISIONS[0] else await client.open(revision)
    source.drop()
    source.loads.clear()
    source.down = True
    if session is None:
        assert (await client.ask(method, METHODS[method])).status == 503
    source.down = False
    await ask(client, revision, method, **METHODS[method])
    await ask(client, revision, method, **METHODS[method])

    assert source.loads == ["acme"]


@pytest.mark.requirement("C-10")
async def test_a_cursor_is_valid_for_one_snapshot_and_one_tenant() -> None:
    """Pages never mix two snapshots: the client begins again."""
    source, upstream = MemorySource(), ToolUpstream()
    tools = [upstream.tool(f"t{number}") for number in range(5)]
    source.put("acme", *tools)
    source.put("globex", *tools)
    client = EndpointClient(source=source, page_size=3)
    cursor = (await client.ask("tools/list")).json["result"]["nextCursor"]

    assert (await client.ask("tools/list", {"cursor": cursor})).status == 200
    client.caller = GLOBEX
    assert (await client.ask("tools/list", {"cursor": cursor})).error == (400, -32602)
    client.caller = a_caller()
    source.put("acme", *tools)
    assert (await client.ask("tools/list", {"cursor": cursor})).status == 200, "nothing changed"
    source.put("acme", *tools[1:])
    assert (await client.ask("tools/list", {"cursor": cursor})).error == (400, -32602)


async def test_arguments_in_headers_are_compared_for_a_tenants_tool() -> None:
    """This works as for an enabled tool; a tool without such arguments needs no header."""
    source, upstream = MemorySource(), ToolUpstream()
    region = {"type": "string", "x-mcp-header": "Region"}
    schema = {"type": "object", "properties": {"region": region}}
    source.put("acme", upstream.tool("find", schema=schema), upstream.tool("plain"))
    client = EndpointClient(source=source)
    call = {"name": "mcp_crm__find", "arguments": {"region": "eu"}}

    assert (await client.ask("tools/call", call)).error == (400, -32020)
    assert (await client.ask("tools/call", call, mcp_param_region="us")).error == (400, -32020)
    assert (await client.ask("tools/call", call, mcp_param_region="eu")).status == 200
    assert (await client.call("mcp_crm__plain")).status == 200
    client.caller = GLOBEX
    assert (await client.ask("tools/call", call)).error == (400, -32602), "as an unknown tool"


@pytest.mark.requirement("E9")
async def test_a_tool_without_the_capability_is_answered_as_an_unknown_one() -> None:
    """The answers differ only in the name of the tool."""
    source, upstream = MemorySource(), ToolUpstream()
    agents = {"agent": Agent(frozenset({upstream.capability}))}
    source.put("acme", upstream.tool("find"), agents=agents)
    client = EndpointClient(source=source)
    client.caller = a_caller(client_id="agent")
    hidden, unknown = await client.call("whoami"), await client.call("nothere")

    assert hidden.status == unknown.status == 400
    assert hidden.body.replace(b"whoami", b"X") == unknown.body.replace(b"nothere", b"X")
    assert (await client.call("mcp_crm__find")).status == 200


async def test_a_removed_tool_is_unknown_and_a_new_one_is_called() -> None:
    """Neither needs a new registry."""
    client, source = two_tenants()
    assert (await client.call("mcp_crm__find")).status == 200

    source.put("acme", ToolUpstream("wiki").tool("read"))
    assert (await client.call("mcp_crm__find")).error == (400, -32602)
    assert (await client.call("mcp_wiki__read")).status == 200


async def test_a_prompt_removed_during_its_call_is_still_answered() -> None:
    """Only its description is missing."""
    source, upstream = MemorySource(), ToolUpstream()

    @upstream.pack.prompt(name="mcp_crm__last")
    async def last(ctx: CallContext) -> str:
        """Return the last greeting."""
        source.put("acme")
        return "farewell"

    source.put("acme", *upstream.others())
    client = EndpointClient(source=source)
    result = (await client.ask("prompts/get", {"name": "mcp_crm__last"})).json["result"]

    assert result["messages"][0]["content"]["text"] == "farewell"
    assert result["description"] == ""


@each("revision", REVISIONS)
async def test_a_changed_definition_is_shown_and_called(revision: str) -> None:
    """No cache keeps the old definition."""
    source, upstream = MemorySource(), ToolUpstream()
    source.put("acme", upstream.tool("find", "Before."))
    client = EndpointClient(source=source)
    before = await result_of(client, revision, "tools/list")
    source.put("acme", replace(upstream.tool("find", "After."), title="New"))
    after = await result_of(client, revision, "tools/list")

    descriptions = [
        next(tool["description"] for tool in result["tools"] if tool["name"] == "mcp_crm__find")
        for result in (before, after)
    ]
    assert descriptions == ["Before.", "After."]


async def test_clients_may_listen_for_lists_that_are_still_empty() -> None:
    """The stream gets the changes of its own tenant."""
    client = EndpointClient(source=MemorySource())
    filters = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
    async with open_subscription(client, filters) as stream:
        assert await stream.acknowledged() == filters
        await client.pubsub.of("globex").listed("tools")
        await client.pubsub.of("acme").listed("prompts")
        heard = await stream.next()

    assert heard["method"] == "notifications/prompts/list_changed"


async def test_a_list_change_is_announced_to_the_clients_of_its_tenant_only() -> None:
    """`ChangePubSub.of(tenant).listed(...)` is the call that tells them, on every replica."""
    client, _ = two_tenants()
    heard: dict[str, list[str]] = {"acme": [], "globex": []}
    notified = asyncio.Event()

    async def follow(tenant: str) -> None:
        def hear(change: Any) -> None:
            heard[tenant].append(change.kind)
            if len(heard["acme"]) == 3:
                notified.set()

        await client.pubsub.follow(tenant, hear)

    await follow("acme")
    await follow("globex")
    changes = client.pubsub.of("acme")
    for what in ("tools", "prompts", "resources"):
        await changes.listed(what)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await notified.wait()

    assert heard == {"acme": ["tools", "prompts", "resources"], "globex": []}
