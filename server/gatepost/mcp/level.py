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
    if ask.session is not None:
        await server.register.revise(
            ask.caller.tenant_id,
            ask.session,
            lambda record: msgspec.structs.replace(record, log_level=level),
        )
    return b"{}"
