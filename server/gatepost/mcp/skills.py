"""The skills extension (SEP-2640): list and return skills, and list their folders."""

from collections.abc import Mapping, Sequence

import msgspec

from gatepost.mcp.jsonrpc import INVALID_PARAMS, JsonRpcError
from gatepost.mcp.listing import TTL_MS
from gatepost.mcp.request import uri_in
from gatepost.mcp.responses import completed, failed
from gatepost.mcp.server import McpRequest, McpServer, counted
from gatepost.tools.calls.registry import Unknown

_encode = msgspec.json.encode


async def list_skills(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `skills/list`."""
    await server.registry.prepare(ask.caller)
    return await server.listing.page("skills", ask.caller, ask.params, ask.revision)


@counted
async def get_skill(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `skills/get`."""
    entry = await _entry(server, ask, uri_in(ask.params))
    return _result(server, ask, b'"skill":' + _encode(entry))


@counted
async def read_folder(server: McpServer, ask: McpRequest) -> bytes:
    """Answer `resources/directory/read` with the direct children of a skill's folder."""
    uri = uri_in(ask.params)
    await server.registry.prepare(ask.caller)
    for skill in server.registry.visible(ask.caller).skills:
        children: Sequence[Mapping[str, str]] | None = skill.folders.get(uri)
        if children is not None:
            await _entry(server, ask, skill.uri)  # a caller without its scopes gets the challenge
            return _result(server, ask, b'"resources":' + _encode(children))
    raise JsonRpcError(INVALID_PARAMS, "Not a directory", data={"uri": uri[:1024]})


async def _entry(server: McpServer, ask: McpRequest, uri: str) -> Mapping[str, object]:
    try:
        outcome = await server.runner.run(ask.call("skill", uri, b"{}", ask.client))
    except Unknown:
        unknown = JsonRpcError(INVALID_PARAMS, "Unknown skill", data={"uri": uri[:1024]})
        raise unknown.counted() from None
    if outcome.failure is not None:
        raise failed(outcome.failure, uri=uri)
    return outcome.content[0]


def _result(server: McpServer, ask: McpRequest, body: bytes) -> bytes:
    return completed(body, ask.revision, server.meta, ttl_ms=TTL_MS)
