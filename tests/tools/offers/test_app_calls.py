"""A call by the page of an MCP App, which knows only its server's own names."""

from msgspec.structs import replace

from gatepost import CallContext, Pack
from gatepost.tools.calls.registry import Registry
from gatepost.tools.offers.offer import Offer
from gatepost.tools.offers.tenant_offers import Agent
from tests.support.endpoint import a_caller
from tests.support.tools import MemorySource, ToolUpstream

ACME = a_caller()


def page(upstream: ToolUpstream, uri: str = "ui://clock/page.html") -> Offer:
    """Return a resource of an upstream."""
    pack = Pack("pages")

    @pack.resource(uri)
    async def shown(ctx: CallContext) -> str:
        """Return a page."""
        return "<html>"

    (offer,) = pack.offers
    return replace(offer, origin=upstream.origin(uri, uri))


async def called_tool(name: str, *offers: Offer, agents: dict[str, Agent] | None = None) -> str:
    """Return the tool that a call of acme's caller finds."""
    pack = Pack("office")

    @pack.tool
    async def stamp(ctx: CallContext) -> str:
        """Stamp a card."""
        return "stamped"

    source = MemorySource()
    source.put("acme", *offers, agents=agents)
    registry = Registry([*pack.offers], obtainable=frozenset(), source=source)
    return await registry.called_name(ACME, name)


async def test_an_app_call_reaches_the_server_with_a_page() -> None:
    """Other names stay as they are, and so do those of servers without a page."""
    clock, crm = ToolUpstream("clock", server_id="id-1"), ToolUpstream("crm", server_id="id-2")
    offers = (clock.tool("now"), page(clock), crm.tool("now"), crm.tool("find"))

    assert await called_tool("now", *offers) == "mcp_clock__now"
    assert await called_tool("find", *offers) == "find"
    assert await called_tool("mcp_crm__now", *offers) == "mcp_crm__now"
    assert await called_tool("now", clock.tool("now"), page(clock, "clock://now")) == "now"


async def test_an_app_call_is_ambiguous_between_two_servers_with_pages() -> None:
    """If the caller can see only one of the tools, the call reaches that one."""
    first, two = ToolUpstream("one", server_id="id-1"), ToolUpstream("two", server_id="id-2")
    theirs, pages = two.tool("now"), (page(first), page(two, "ui://two/page.html"))

    assert await called_tool("now", first.tool("now"), theirs, *pages) == "now"
    hidden = replace(theirs, scopes=frozenset({"secret"}))
    assert await called_tool("now", first.tool("now"), hidden, *pages) == "mcp_one__now"


async def test_a_configured_tool_of_that_name_wins() -> None:
    """A page takes no call away from a tool of the configuration."""
    clock = ToolUpstream("clock")

    assert await called_tool("stamp", clock.tool("stamp"), page(clock)) == "stamp"


async def test_an_app_cannot_call_a_hidden_tool() -> None:
    """Scopes or the agent's capabilities hide it."""
    clock = ToolUpstream("clock")
    hidden = replace(clock.tool("now"), scopes=frozenset({"secret"}))
    nothing = {ACME.client_id or "": Agent(frozenset(), "list")}

    assert await called_tool("now", hidden, page(clock)) == "now"
    assert await called_tool("now", clock.tool("now"), page(clock), agents=nothing) == "now"
