"""Tools that take anything, and whether a call of one holds the event loop up."""

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost import CallContext, Outcome, Pack
from gatepost.tools.api import Tool
from tests.support.client import modern
from tests.support.endpoint import JSON, EndpointClient, Response, a_caller
from tests.support.turns import shortest_hold

HOLD_S = 0.050
DEEP = b"nested deeper than"


async def taken(ctx: CallContext, arguments: Any) -> Outcome:
    return Outcome(({"type": "text", "text": "taken"},))


def site_of(tools: list[Tool]) -> EndpointClient:
    """An endpoint with these tools, that do nothing once their arguments are found to be right."""
    client = EndpointClient([msgspec.structs.replace(tool, invoke=taken) for tool in tools])
    client.caller = a_caller(scopes=frozenset[str]().union(*(tool.scopes for tool in tools)))
    return client


async def holds_nobody_up(client: EndpointClient, tool: str, arguments: bytes) -> None:
    fields, body = modern("tools/call", {"name": tool, "arguments": "HERE"})
    body = body.replace(b'"HERE"', arguments)
    answers: list[Response] = []

    async def ask() -> None:
        answers.append(await client.send(body, [JSON, *fields]))

    held, limit = await shortest_hold(ask, HOLD_S)
    # Nothing else is wrong with the request, so that the arguments were come to.
    assert all(one.status == 413 or DEEP in one.body or "result" in one.json for one in answers)
    assert held < limit, (f"{held * 1000:.1f} ms", f"of {limit * 1000:.1f}", arguments[:200])


def listed(item: bytes, size: int) -> bytes:
    """A list that is so large, in bytes."""
    return b"[" + b",".join([item] * max(size // (len(item) + 1), 1)) + b"]"


def named(item: bytes, members: int) -> bytes:
    """An object of so many members."""
    return b"{" + b",".join(b'"k%d":' % n + item for n in range(members)) + b"}"


def taking(hint: Any) -> Tool:
    """A tool that takes one of that type."""

    async def tool(ctx: CallContext, value: Any) -> None:
        """Take it."""

    tool.__annotations__ = {"ctx": CallContext, "value": hint, "return": None}
    ctx, value = inspect.signature(tool).parameters.values()
    own = inspect.Signature([ctx, value.replace(annotation=hint)])
    tool.__signature__ = own  # type: ignore[attr-defined]
    pack = Pack("generated")
    pack.tool()(tool)
    return pack.tools["tool"]


def bringing(schema: Mapping[str, Any]) -> Tool:
    """A tool that brings that schema of its only argument."""
    root = {"type": "object", "properties": {"value": schema}, "additionalProperties": False}
    pack = Pack("generated")
    pack.add(name="tool", description="Take it.", input_schema=root, invoke=taken)
    return pack.tools["tool"]
