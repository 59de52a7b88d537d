"""The call of a task, as it is stored to be run again or continued."""

from typing import Any

import msgspec
from msgspec import Raw

from gatepost.tools.json_shape import decoder_of
from gatepost_authz.caller import TenantContext


class StoredCall(msgspec.Struct, frozen=True):
    """
    The data that is needed to run a task's call again.

    It contains no token. The caller was checked when the task was accepted, and its scopes at that
    time apply. A later revocation stops the caller's tasks.
    """

    caller: TenantContext
    arguments: Raw
    request_id: str
    capabilities: dict[str, Any]
    scopes: frozenset[str]
    """The scopes that the tool requires; reading the task requires them too."""
    attempts: int = 1
    untouched: bool = False
    """Whether the call waits for a decision and its tool has not started."""
    correlation: str | None = None
    peer: str = ""
    """The client's address; empty if audit records omit it."""
    kept: bytes = b""
    """The state with which another run continues the call; empty if it would start again."""


# A caller's display claims are a read-only view of a mapping.
encode_call = msgspec.json.Encoder(enc_hook=dict).encode
decode_call = decoder_of(StoredCall)
