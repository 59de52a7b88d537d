"""The skills extension (SEP-2640): skills listed, and their folders opened."""

from collections.abc import Mapping, Sequence

import msgspec

from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused
from gatepost.mcp.listing import TTL_MS
from gatepost.mcp.params import uri_in
from gatepost.mcp.project import completed, failed
from gatepost.mcp.server import Ask, Server
from gatepost.tools.api import Call
from gatepost.tools.registry import Unknown

_encode = msgspec.json.encode


async def list_skills(server: Server, ask: Ask) -> bytes:
    """`skills/list`."""
    return server.listing.page("skills", ask.caller, ask.params, ask.revision)


async def get_skill(server: Server, ask: Ask) -> bytes:
    """`skills/get`."""
    entry = await _entry(server, ask, uri_in(ask.params))
    return _result(server, ask, b'"skill":' + _encode(entry))


async def read_folder(server: Server, ask: Ask) -> bytes:
    """`resources/directory/read`: the direct children of a skill's folder."""
    uri = uri_in(ask.params)
    for skill in server.registry.visible(ask.caller).skills:
        children: Sequence[Mapping[str, str]] | None = skill.folders.get(uri)
        if children is not None:
            await _entry(server, ask, skill.uri)  # whoever lacks a scope of it hears which
            return _result(server, ask, b'"resources":' + _encode(children))
    raise Refused(INVALID_PARAMS, "Not a directory", data={"uri": uri[:1024]})


async def _entry(server: Server, ask: Ask, uri: str) -> Mapping[str, object]:
    call = Call(
        caller=ask.caller,
        name=uri,
        arguments=b"{}",
        request_id=ask.request_id,
        kind="skill",
        client=ask.client,
        peer=ask.peer,
    )
    try:
        outcome = await server.runner.run(call)
    except Unknown:
        raise Refused(INVALID_PARAMS, "Unknown skill", data={"uri": uri[:1024]}) from None
    if outcome.failure is not None:
        raise failed(outcome.failure, uri=uri)
    return outcome.content[0]


def _result(server: Server, ask: Ask, body: bytes) -> bytes:
    return completed(body, ask.revision, server.tail, ttl_ms=TTL_MS)
