"""The skills extension (SEP-2640): skills listed, and their folders opened."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused
from gatepost.mcp.listing import TTL_MS
from gatepost.mcp.project import failed
from gatepost.mcp.server import Ask, Server
from gatepost.tools.api import Call
from gatepost.tools.registry import Unknown

_encode = msgspec.json.encode


async def list_skills(server: Server, ask: Ask) -> bytes:
    """`skills/list`."""
    return server.listing.page("skills", ask.caller, ask.params, ask.revision)


async def get_skill(server: Server, ask: Ask) -> bytes:
    """`skills/get`."""
    entry = await _entry(server, ask, _uri(ask))
    return _result(server, b'"skill":' + _encode(entry))


async def read_folder(server: Server, ask: Ask) -> bytes:
    """`resources/directory/read`: the direct children of a skill's folder."""
    uri = _uri(ask)
    for skill in server.registry.visible(ask.caller).skills:
        children: Sequence[Mapping[str, str]] | None = skill.folders.get(uri)
        if children is not None:
            await _entry(server, ask, skill.uri)  # whoever lacks a scope of it hears which
            return _result(server, b'"resources":' + _encode(children))
    raise Refused(INVALID_PARAMS, "Not a directory", data={"uri": uri[:1024]})


async def _entry(server: Server, ask: Ask, uri: str) -> Mapping[str, object]:
    call = Call(
        caller=ask.caller,
        name=uri,
        arguments=b"{}",
        request_id=ask.request_id,
        kind="skill",
        client=ask.client,
    )
    try:
        outcome = await server.runner.run(call)
    except Unknown:
        raise Refused(INVALID_PARAMS, "Unknown skill", data={"uri": uri[:1024]}) from None
    if outcome.failure is not None:
        raise failed(outcome.failure, uri=uri)
    return outcome.content[0]


def _uri(ask: Ask) -> str:
    if ask.params.uri is UNSET:
        raise Refused(INVALID_PARAMS, "params.uri is required")
    return ask.params.uri


def _result(server: Server, body: bytes) -> bytes:
    hints = b',"ttlMs":%d,"cacheScope":"private"' % TTL_MS
    return b'{"resultType":"complete",' + body + hints + server.tail + b"}"
