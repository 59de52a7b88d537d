"""Tools that ask, and how a test answers them."""

from typing import Any

from gatepost import CallContext, Elicitation, Pack, UrlElicitation
from gatepost.mcp.endpoint import EndpointLimits
from tests.support.endpoint_streams import EndpointPair, OpenExchange

pack = Pack("curious")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
EVERYTHING: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {"listChanged": True},
}


@pack.tool(timeout_s=0.2)
async def ask_name(ctx: CallContext) -> str:
    """Ask for a name, in less time than a person needs."""
    answered = await ctx.ask("Who are you?", FORM)
    return f"{answered.action} {answered.content and answered.content['name']}"


@pack.tool()
async def ask_page(ctx: CallContext) -> str:
    """Ask to visit a page."""
    return (await ctx.ask_url("Link your account", "https://mcp.example.com/connect")).action


@pack.tool()
async def sample(ctx: CallContext) -> str:
    """Ask the client's model."""
    sampled = await ctx.sample("Say hello", max_tokens=10)
    return f"{sampled.model}"


@pack.tool()
async def roots(ctx: CallContext) -> str:
    """Ask for the folders."""
    return " ".join(root.uri for root in await ctx.roots())


@pack.tool()
async def ask_two(ctx: CallContext) -> str:
    """Ask twice at once."""
    questions = {"a": Elicitation("A?", FORM), "b": Elicitation("B?", FORM)}
    answers = await ctx.ask_together(questions)
    return " ".join(answers[key].action for key in "ab")


@pack.tool()
async def ask_both(ctx: CallContext) -> str:
    """Ask for a name and a visit at once."""
    await ctx.ask_together(
        {"a": Elicitation("A?", FORM), "b": UrlElicitation("B?", "https://mcp.example.com/b")}
    )
    return "never"


async def opened(
    version: str = "2025-11-25", limits: EndpointLimits | None = None, **declared: Any
) -> EndpointPair:
    house = EndpointPair(pack.tools.values(), version=version, limits=limits or EndpointLimits())
    return await house.open(**(declared or EVERYTHING))


async def question(live: OpenExchange) -> dict[str, Any]:
    """The next request of the server's."""
    _, asked = await live.event()
    assert asked["jsonrpc"] == "2.0"
    assert {"id", "method", "params"} <= asked.keys()
    return dict(asked)


async def said(live: OpenExchange) -> tuple[bool, str]:
    """Whether the call failed, and what it says."""
    _, answer = await live.event()
    assert answer["id"] == 7, answer
    result = answer["result"]
    await live.over()
    return result["isError"], result["content"][0]["text"]


ACCEPTED = {"action": "accept", "content": {"name": "Ann"}}
