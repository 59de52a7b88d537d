"""A caller's own id for what a call is part of reaches the tool, whatever revision it speaks."""

from typing import Any

import pytest

from gatepost import CallContext, Pack
from tests.support.endpoint import EndpointClient, message

pack = Pack("parts")
FIELD = "x-octopus-correlation-id"


@pack.tool(read_only=True)
async def part_of(ctx: CallContext) -> str:
    """Tell what the call is part of."""
    return str(ctx.correlation)


def message_of(answer: Any) -> str:
    text: str = answer.json["result"]["content"][0]["text"]
    return text


@pytest.mark.requirement("O13")
@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, "None"),
        ({FIELD: "episode-1"}, "episode-1"),
        ({FIELD: "episode-1", "idempotency-key": "k-1"}, "episode-1"),
    ],
)
async def test_a_tool_gets_the_correlation_id_of_its_call(
    fields: dict[str, str], seen: str
) -> None:
    """This holds beside an idempotency key, too."""
    client = EndpointClient(pack.offers)
    params = {"name": "part_of", "arguments": {}}
    modern = await client.ask(
        "tools/call", params, **{k.replace("-", "_"): v for k, v in fields.items()}
    )
    session = await client.open()
    legacy = await client.within(session, message("tools/call", params), *fields.items())

    assert (message_of(modern), message_of(legacy)) == (seen, seen)
