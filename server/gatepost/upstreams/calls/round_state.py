"""
Encode the state that a call of an upstream keeps for its caller's next round, or for another
replica.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from gatepost.tools.context.client import MAX_KEPT_BYTES, InputRequest
from gatepost.tools.offers.offer import CallContext
from gatepost.upstreams.catalogue import Definition
from gatepost.upstreams.upstream_server import UpstreamServer

CHANGED = "{server} was changed while the call waited for an answer. Call again, without the state."
FOREIGN_STATE = "The state belongs to another call. Call again, without the state."


class Stale(Exception):
    """A state cannot be continued; the message is a sentence for the agent."""


class UpstreamTarget(msgspec.Struct, frozen=True):
    """The call that a state belongs to."""

    tenant: str
    server: str
    """The id of the upstream."""
    section: str
    key: str
    digest: str
    """The digest of the definition."""
    call: str
    """The digest of caller and arguments, in hexadecimal."""


class ModernState(msgspec.Struct, frozen=True, tag="modern"):
    """A call of a modern upstream that asked for input."""

    target: UpstreamTarget
    round: int
    requests: dict[str, InputRequest]
    names: dict[str, str]
    """The upstream's keys, by ours."""
    upstream: str | None
    """The upstream's own `requestState`."""


class ParkedState(msgspec.Struct, frozen=True, tag="parked"):
    """A call of a session-era upstream that waits in one process for an answer."""

    target: UpstreamTarget
    replica: str
    parked: str
    step: int
    """The number of the open request among the steps of the call."""
    requests: dict[str, InputRequest]


class TaskState(msgspec.Struct, frozen=True, tag="task"):
    """The state of a call that its upstream has turned into a task, which any replica can poll."""

    target: UpstreamTarget
    task: str
    """The upstream's id of the task."""


RoundState = ModernState | ParkedState | TaskState

_read = msgspec.json.Decoder(RoundState).decode
_encode = msgspec.json.encode


def target_of(
    ctx: CallContext, server: UpstreamServer, definition: Definition, arguments: Any
) -> UpstreamTarget:
    """Return what identifies this call: caller, upstream, definition and arguments."""
    identity = msgspec.json.encode([ctx.caller.identity_key, arguments], order="deterministic")
    return UpstreamTarget(
        tenant=ctx.caller.tenant_id,
        server=server.id,
        section=definition.section,
        key=definition.key,
        digest=definition.digest,
        call=hashlib.sha256(identity).hexdigest(),
    )


def encoded(state: RoundState) -> bytes | None:
    """Return the state as bytes; None if it is too large to be kept."""
    text = _encode(state)
    return text if len(text) <= MAX_KEPT_BYTES else None


def kept_for(
    encoded_state: bytes, target: UpstreamTarget, server: UpstreamServer, *, nested: bool
) -> RoundState | None:
    """
    Return the state that a round continues; None if the call begins with this round.

    A nested call ignores a state of another call, because its outer tool runs from its beginning.
    Raises Stale if the state cannot be continued.
    """
    if not encoded_state:
        return None
    try:
        state: RoundState = _read(encoded_state)
    except msgspec.DecodeError:
        if nested:
            return None
        raise Stale(FOREIGN_STATE) from None
    if _target_fields(state.target) != _target_fields(target):
        if nested:
            return None
        raise Stale(FOREIGN_STATE)
    if isinstance(state, ModernState) and state.target.digest != target.digest:
        raise Stale(CHANGED.format(server=server.name))
    return state


def _target_fields(target: UpstreamTarget) -> Mapping[str, Any]:
    return {
        name: value for name, value in msgspec.structs.asdict(target).items() if name != "digest"
    }
