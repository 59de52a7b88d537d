"""The values of one HTTP exchange: what came, and what goes back."""

import msgspec
from starlette.types import Receive, Scope, Send

from gatepost_authz.caller import TenantContext

Headers = dict[bytes, bytes]
"""Request headers by name, in lower case."""


# Made for every request and part of no cycle: the collector need not follow them.
class Exchange(msgspec.Struct, frozen=True, gc=False):
    """One POST, past the gate."""

    caller: TenantContext
    path: str
    request_id: str
    headers: Headers
    receive: Receive
    send: Send
    version: str | None = None
    """The revision that MCP-Protocol-Version names."""
    holder: Scope | None = None
    """The request's scope where its connection can hold an answer back (`HELD`)."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What goes back when the answer is no stream; without a body it is only a status."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


ACCEPTED = Answer(202)
