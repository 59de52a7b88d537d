"""Calls of several rounds, and what a client answers in them."""

from collections.abc import Mapping
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from gatepost import CallContext, Pack
from tests.support.endpoint import META, EndpointClient, Response

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


def questions(response: Response) -> dict[str, Any]:
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


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Trip(BaseModel):
    """A form with every kind of field, and a rule that no form can show."""

    where: Annotated[str, Field(title="Where to?", min_length=2, max_length=40)]
    day: date
    people: Annotated[int, Field(ge=1, le=9)] = 2
    color: Color = Color.RED
    meals: Annotated[list[Literal["lunch", "dinner"]], Field(max_length=2)] = ["lunch"]
    note: str | None = None

    @model_validator(mode="after")
    def not_to_nowhere(self) -> "Trip":
        if self.where == "nowhere":
            raise ValueError("that is no place")
        return self


pack = Pack("rounds")
RUNS: list[str] = []
"""What `purge` did."""
FILES = {"count": 3}
"""How many rows it would delete."""
YES = {"confirm": accept(ok=True)}
INVALID = (400, -32602)


class Ok(BaseModel):
    ok: bool


@pack.tool()
async def purge(ctx: CallContext, table: str = "t", size: float = 0) -> str:
    """Delete after asking."""
    RUNS.append("started")
    answered = await ctx.ask(f"Delete {FILES['count']} rows of {table}?", Ok, key="confirm")
    RUNS.append("deleted")
    return f"{answered.action} {answered.content}"


@pack.tool()
async def ask_twice(ctx: CallContext) -> str:
    """Ask one thing after another, by default keys."""
    first = await ctx.ask("First?", Ok)
    second = await ctx.ask("Second?", Ok)
    return f"{first.content} {second.content}"
