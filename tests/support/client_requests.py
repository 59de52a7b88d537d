"""Tools that ask, announce changes or become tasks, and how a test answers them."""

import asyncio
from collections.abc import Mapping
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from gatepost import CallContext, Elicitation, Pack, ToolFailure, UrlElicitation
from gatepost.mcp.endpoint import EndpointLimits
from gatepost.tools.context.client import ProtocolError
from tests.support.endpoint import META, EndpointClient, Response
from tests.support.endpoint_clients import EndpointPair, OpenExchange

ALL_CAPABILITIES: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
SAMPLING_RESULT = {
    "role": "assistant",
    "content": {"type": "text", "text": "Paris"},
    "model": "m-1",
    "stopReason": "endTurn",
}
ROOTS = {"roots": [{"uri": "file:///work", "name": "Work"}]}


def accepted_form(**content: Any) -> dict[str, Any]:
    """Return a form, filled in."""
    return {"action": "accept", "content": content}


async def call_with_responses(
    client: EndpointClient,
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    capabilities: Any = ALL_CAPABILITIES,
    meta: Mapping[str, Any] | None = None,
    **more: Any,
) -> Response:
    """Send a `tools/call`; *more* are `inputResponses` and `requestState`."""
    params = {"name": tool, "arguments": arguments or {}, **more}
    declared = {META + "clientCapabilities": capabilities, **(meta or {})}
    return await client.ask("tools/call", params, meta=declared)


async def next_round(
    client: EndpointClient,
    tool: str,
    before: Response,
    responses: Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
) -> Response:
    """Send the next round after *before*, as a good client makes it."""
    state = before.json["result"]["requestState"]
    return await call_with_responses(
        client, tool, arguments, inputResponses=responses, requestState=state
    )


def input_requests_of(response: Response) -> dict[str, Any]:
    """Return the input requests of a call."""
    result = response.json["result"]
    assert result["resultType"] == "input_required", result
    asked: dict[str, Any] = result["inputRequests"]
    return asked


def result_text(response: Response) -> str:
    """Return the text of a complete result."""
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
CONFIRMATION = {"confirm": accepted_form(ok=True)}
INVALID_PARAMS = (400, -32602)


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


async def opened_pair(
    version: str = "2025-11-25", limits: EndpointLimits | None = None, **declared: Any
) -> EndpointPair:
    replicas = EndpointPair(
        SESSION_TOOLS.tools.values(), version=version, limits=limits or EndpointLimits()
    )
    return await replicas.open(**(declared or SESSION_CAPABILITIES))


async def next_request(live: OpenExchange) -> dict[str, Any]:
    """Return the next request of the server."""
    _, asked = await live.event()
    assert asked["jsonrpc"] == "2.0"
    assert {"id", "method", "params"} <= asked.keys()
    return dict(asked)


async def session_result_text(live: OpenExchange) -> tuple[bool, str]:
    """Return whether the call failed, and its text."""
    _, answer = await live.event()
    assert answer["id"] == 7, answer
    result = answer["result"]
    await live.over()
    return result["isError"], result["content"][0]["text"]


ACCEPTED_FORM = {"action": "accept", "content": {"name": "Ann"}}


session_pack = Pack("conformance_sessions")


@session_pack.tool(read_only=True)
async def test_reconnection(ctx: CallContext) -> str:
    """Close the stream before the answer, for the client to come back to."""
    await ctx.client.pause(0.1)
    await asyncio.sleep(0.2)
    return "Reconnected."


task_pack = Pack("conformance_tasks")


class TaskConfirmation(BaseModel):
    """A yes or a no."""

    confirm: bool


class TaskName(BaseModel):
    """A person's name."""

    name: str


@task_pack.tool(read_only=True)
async def greet(ctx: CallContext, name: str) -> str:
    """Greet a person; never a task."""
    return f"Hello, {name}!"


@task_pack.tool(task_support="optional", read_only=True, timeout_s=120)
async def slow_compute(
    ctx: CallContext, seconds: Annotated[float, Field(ge=0, le=100)], label: str = ""
) -> str:
    """Take so many seconds."""
    await asyncio.sleep(seconds)
    return f"Computed {label or 'something'} in {seconds:g} seconds."


# The official suite and its clients call the next two tools by these names.
@task_pack.tool(name="failing_job", task_support="required", read_only=True)
async def failing_task(ctx: CallContext) -> str:
    """Fail after a second."""
    await asyncio.sleep(1)
    raise ToolFailure("upstream_unavailable", "The job failed.")


@task_pack.tool(name="protocol_error_job", task_support="optional", read_only=True)
async def task_with_protocol_error(ctx: CallContext) -> str:
    """End with a protocol error."""
    raise ProtocolError(-32603, "The job cannot be done at all.")


# Not marked destructive: the suite expects its own question first, not a person's approval.
@task_pack.tool(task_support="optional")
async def confirm_delete(ctx: CallContext, filename: str) -> str:
    """Delete a file, once a person has said yes; asked while the task runs."""
    answer = await ctx.ask(f"Delete {filename}?", TaskConfirmation)
    deleted = answer.content is not None and answer.content.confirm
    return f"{filename} was {'deleted' if deleted else 'kept'}."


@task_pack.tool(task_support="optional")
async def multi_input(ctx: CallContext) -> str:
    """Ask two things at once, to be answered in any order."""
    answers = await ctx.ask_together(
        {
            "first": Elicitation("What is your name?", TaskName),
            "second": Elicitation("And your other name?", TaskName),
        }
    )
    names = [answer.content.name for answer in answers.values() if answer.content is not None]
    return f"Hello, {' '.join(names)}!"


@task_pack.tool(task_support="required", detaches=True)
async def test_tool_with_task(ctx: CallContext) -> str:
    """Ask for a name first, and go on as a task with the answer."""
    answer = await ctx.ask("What is your name?", TaskName, key="user_name")
    await ctx.detach()
    await asyncio.sleep(0.2)
    return f"Hello, {answer.content.name if answer.content else 'stranger'}!"


client_pack = Pack("clients")


class Weather(BaseModel):
    """How it is outside."""

    city: str
    degrees: float


@client_pack.tool(read_only=True)
async def weather(ctx: CallContext, city: str) -> Weather:
    """Say how warm it is in a city."""
    return Weather(city=city, degrees=21.5)


@client_pack.tool()
async def link_account(ctx: CallContext) -> str:
    """Send the user to a page."""
    return (await ctx.ask_url("Link your account", "https://mcp.example.com/connect")).action


@client_pack.tool()
async def touch(ctx: CallContext) -> str:
    """Announce that the watched document changed."""
    await ctx.changes.updated("test://watched-resource")
    return "Announced."


change_pack = Pack("conformance_changes")


@change_pack.tool()
async def test_trigger_tool_change(ctx: CallContext) -> str:
    """Announce that the list of tools changed; afterwards it is as it was."""
    await ctx.changes.listed("tools")
    return "Announced."


@change_pack.tool()
async def test_trigger_prompt_change(ctx: CallContext) -> str:
    """Announce that the list of prompts changed; afterwards it is as it was."""
    await ctx.changes.listed("prompts")
    return "Announced."
