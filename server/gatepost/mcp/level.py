"""`logging/setLevel`: which messages a session of an older revision hears."""

import msgspec
from msgspec import UNSET

from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused
from gatepost.mcp.server import Ask, Server
from gatepost.tools.client import LEVELS


async def set_level(server: Server, ask: Ask) -> bytes:
    """Remember the least important level from now on; an empty object, with nothing in it."""
    level = ask.params.level
    if level is UNSET or level not in LEVELS:
        raise Refused(INVALID_PARAMS, f"params.level is one of {', '.join(LEVELS)}")
    session, tenant = ask.session, ask.caller.tenant_id
    room = None if session is None else await server.register.room(tenant, session)
    if session is not None and room is not None:
        await room.revise(lambda record: msgspec.structs.replace(record, log_level=level))
        server.register.changed(tenant, session)
        await room.tell("watch")
    return b"{}"
