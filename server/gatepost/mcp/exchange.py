"""The values of one HTTP exchange: what came, and what goes back."""

import msgspec
from starlette.types import Receive, Scope, Send

from gatepost_authz.caller import TenantContext

Headers = dict[bytes, bytes]
"""Request headers by name, in lower case."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """What the headers of a request say, worked out once for heads that are the same."""

    version: str | None = None
    """The revision that MCP-Protocol-Version names."""
    method: str | None = None
    """What Mcp-Method says; compared with the body, which has no half surrogate pairs."""
    name: str | None = None
    """What Mcp-Name says; None also where it says nothing that a body could."""
    is_marked: bool = False
    """Whether there is a retry key or the caller's own id."""
    is_doubled: bool = False
    """A header that decides something came twice."""
    peer: str = ""
    """Where it comes from: the connection's other end, or what a trusted proxy's field says."""


# Made for every request and part of no cycle: the collector need not follow them.
class Exchange(msgspec.Struct, frozen=True, gc=False):
    """One POST, past the gate."""

    caller: TenantContext
    path: str
    request_id: str
    headers: Headers
    receive: Receive
    send: Send
    head: Head
    holder: Scope | None = None
    """The request's scope where its connection can hold an answer back (`HELD`)."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What goes back when the answer is no stream; without a body it is only a status."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


ACCEPTED = Answer(202)
