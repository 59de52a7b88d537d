"""The prompts of the protocol: listed, and filled in through the runner."""

import msgspec

from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused
from gatepost.mcp.params import arguments_in, name_in
from gatepost.mcp.project import block, completed, failed
from gatepost.mcp.server import Ask, Server
from gatepost.tools.api import Call
from gatepost.tools.registry import Unknown

_encode = msgspec.json.encode


async def list_prompts(server: Server, ask: Ask) -> bytes:
    """`prompts/list`."""
    return server.listing.page("prompts", ask.caller, ask.params, ask.revision)


async def get_prompt(server: Server, ask: Ask) -> bytes:
    """`prompts/get`."""
    name = name_in(ask.params)
    call = Call(
        caller=ask.caller,
        name=name,
        arguments=arguments_in(ask.params),
        request_id=ask.request_id,
        kind="prompt",
        client=ask.client,
        peer=ask.peer,
    )
    try:
        outcome = await server.runner.run(call)
    except Unknown as unknown:
        raise unknown_prompt(unknown.name) from None
    if outcome.failure is not None:
        raise failed(outcome.failure)
    messages = [{**one, "content": block(one["content"], ask.revision)} for one in outcome.content]
    description = server.registry.prompts[name].description
    body = b'"description":' + _encode(description) + b',"messages":' + _encode(messages)
    return completed(body, ask.revision, server.tail)


def unknown_prompt(name: str) -> Refused:
    """The same words for one that is not there and one that this caller cannot reach."""
    return Refused(INVALID_PARAMS, f"Unknown prompt: {name[:64]}")
