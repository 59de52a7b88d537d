"""List prompts, and fill them in through the runner."""

import msgspec

from gatepost.mcp.jsonrpc import INVALID_PARAMS, JsonRpcError
from gatepost.mcp.request import arguments_in, name_in
from gatepost.mcp.responses import block, completed, failed
from gatepost.mcp.server import McpRequest, McpServer, counted
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.calls.registry import Unknown
from gatepost_authz.caller import TenantContext

_encode = msgspec.json.encode


async def list_prompts(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `prompts/list`."""
    await server.registry.prepare(ask.caller)
    return await server.listing.page("prompts", ask.caller, ask.params, ask.revision)


@counted
async def get_prompt(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `prompts/get`."""
    name = name_in(ask.params)
    call = ask.call("prompt", name, arguments_in(ask.params), ask.client)
    try:
        outcome = await server.runner.run(call)
    except Unknown as unknown:
        raise unknown_prompt(unknown.name).counted() from None
    if outcome.failure is not None:
        raise failed(outcome.failure)
    messages = [
        {**message, "content": block(message["content"], ask.revision)}
        for message in outcome.content
    ]
    description = _description(server, ask.caller, name)
    body = b'"description":' + _encode(description) + b',"messages":' + _encode(messages)
    return completed(body, ask.revision, server.meta)


def _description(server: McpServer, caller: TenantContext, name: str) -> str:
    try:
        return server.registry.offer("prompt", name, caller).description
    except (Unknown, StoreUnavailable):
        return ""  # the tenant's offers have changed during the call


def unknown_prompt(name: str) -> JsonRpcError:
    """Return the refusal of a prompt; it is the same if the caller cannot reach the prompt."""
    return JsonRpcError(INVALID_PARAMS, f"Unknown prompt: {name[:64]}")
