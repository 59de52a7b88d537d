"""Tools that ask their caller, and how a test answers: in rounds, or within a session."""

from collections.abc import Mapping
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from gatepost import CallContext, Elicitation, Pack, UrlElicitation
from gatepost.mcp.endpoint import EndpointLimits
from tests.support.endpoint import META, EndpointClient, Response
from tests.support.endpoint_streams import EndpointPair, OpenExchange

EVERYTHING: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
SAMPLED = {
    "role": "assistant",
    "content": {"type": "text", "text": "Paris"},
    "model": "m-1",
    "stopReason": "endTurn",
}
ROOTS = {"roots": [{"uri": "file:///work", "name": "Work"}]}


def accept(**content: Any) -> dict[str, Any]:
    """A form, filled in."""
    return {"action": "accept", "content": content}


async def ask_again(
    client: EndpointClient,
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    capabilities: Any = EVERYTHING,
    meta: Mapping[str, Any] | None = None,
    **more: Any,
) -> Response:
    """A `tools/call`; *more* are `inputResponses` and `requestState`."""
    params = {"name": tool, "arguments": arguments or {}, **more}
    declared = {META + "clientCapabilities": capabilities, **(meta or {})}
    return await client.ask("tools/call", params, meta=declared)


async def go_on(
    client: EndpointClient,
    tool: str,
    before: Response,
    responses: Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
) -> Response:
    """The next round after *before*, as a good client makes it."""
    state = before.json["result"]["requestState"]
    return await ask_again(client, tool, arguments, inputResponses=responses, requestState=state)


def input_requests_of(response: Response) -> dict[str, Any]:
    """What a call asks."""
    result = response.json["result"]
    assert result["resultType"] == "input_required", result
    asked: dict[str, Any] = result["inputRequests"]
    return asked


def said(response: Response) -> str:
    """The text of a complete result."""
    result = response.json["result"]
    assert result["resultType"] == "complete", result
    text: str = result["content"][0]["text"]
    return text


class ColorChoice(Enum):
    RED = "red"
    BLUE = "blue"


class Trip(BaseModel):
    """A form with every kind of field, and a rule that no form can show."""

    where: Annotated[str, Field(title="Where to?", min_length=2, max_length=40)]
    day: date
    people: Annotated[int, Field(ge=1, le=9)] = 2
    color: ColorChoice = ColorChoice.RED
    meals: Annotated[list[Literal["lunch", "dinner"]], Field(max_length=2)] = ["lunch"]
    note: str | None = None

    @model_validator(mode="after")
    def not_to_nowhere(self) -> "Trip":
        if self.where == "nowhere":
            raise ValueError("that is no place")
        return self


ROUNDS = Pack("rounds")
RUNS: list[str] = []
"""What `purge` did."""
FILES = {"count": 3}
"""How many rows it would delete."""
YES = {"confirm": accept(ok=True)}
INVALID = (400, -32602)


class Ok(BaseModel):
    ok: bool


@ROUNDS.tool()
async def purge(ctx: CallContext, table: str = "t", size: float = 0) -> str:
    """Delete after asking."""
    RUNS.append("started")
    answered = await ctx.ask(f"Delete {FILES['count']} rows of {table}?", Ok, key="confirm")
    RUNS.append("deleted")
    return f"{answered.action} {answered.content}"


@ROUNDS.tool()
async def ask_twice(ctx: CallContext) -> str:
    """Ask one thing after another, by default keys."""
    first = await ctx.ask("First?", Ok)
    second = await ctx.ask("Second?", Ok)
    return f"{first.content} {second.content}"


SESSION_TOOLS = Pack("curious")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SESSION_CAPABILITIES: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {"listChanged": True},
}


@SESSION_TOOLS.tool(timeout_s=0.2)
async def ask_name(ctx: CallContext) -> str:
    """Ask for a name, in less time than a person needs."""
    answered = await ctx.ask("Who are you?", FORM)
    return f"{answered.action} {answered.content and answered.content['name']}"


@SESSION_TOOLS.tool()
async def ask_page(ctx: CallContext) -> str:
    """Ask to visit a page."""
    return (await ctx.ask_url("Link your account", "https://mcp.example.com/connect")).action


@SESSION_TOOLS.tool()
async def sample(ctx: CallContext) -> str:
    """Ask the client's model."""
    sampled = await ctx.sample("Say hello", max_tokens=10)
    return f"{sampled.model}"


@SESSION_TOOLS.tool()
async def roots(ctx: CallContext) -> str:
    """Ask for the folders."""
    return " ".join(root.uri for root in await ctx.roots())


@SESSION_TOOLS.tool()
async def ask_two(ctx: CallContext) -> str:
    """Ask twice at once."""
    forms = {"a": Elicitation("A?", FORM), "b": Elicitation("B?", FORM)}
    answers = await ctx.ask_together(forms)
    return " ".join(answers[key].action for key in "ab")


@SESSION_TOOLS.tool()
async def ask_both(ctx: CallContext) -> str:
    """Ask for a name and a visit at once."""
    await ctx.ask_together(
        {"a": Elicitation("A?", FORM), "b": UrlElicitation("B?", "https://mcp.example.com/b")}
    )
    return "never"


async def opened(
    version: str = "2025-11-25", limits: EndpointLimits | None = None, **declared: Any
) -> EndpointPair:
    replicas = EndpointPair(
        SESSION_TOOLS.tools.values(), version=version, limits=limits or EndpointLimits()
    )
    return await replicas.open(**(declared or SESSION_CAPABILITIES))


async def next_request(live: OpenExchange) -> dict[str, Any]:
    """The next request of the server's."""
    _, asked = await live.event()
    assert asked["jsonrpc"] == "2.0"
    assert {"id", "method", "params"} <= asked.keys()
    return dict(asked)


async def said_in_session(live: OpenExchange) -> tuple[bool, str]:
    """Whether the call failed, and what it says."""
    _, answer = await live.event()
    assert answer["id"] == 7, answer
    result = answer["result"]
    await live.over()
    return result["isError"], result["content"][0]["text"]


ACCEPTED = {"action": "accept", "content": {"name": "Ann"}}
