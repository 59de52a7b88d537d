"""Find the request to which an unsolicited message of a stdio server belongs; pure."""

from collections.abc import Collection, Mapping
from typing import Any

from gatepost.upstreams.connection import UpstreamNotification, UpstreamRequest
from gatepost.upstreams.transport.reader import is_same

NAMES = ("progressToken", "relatedRequestId")


def owner_of(
    message: UpstreamRequest | UpstreamNotification, running: Collection[int]
) -> int | None:
    """
    Return the id of the request that a message belongs to; None if this is not certain.

    A pipe does not say it. A message that names a progress token or a request id in its parameters
    or their `_meta` belongs to that request. Any other message belongs to the only running request,
    if there is exactly one. With several it is given to none, because the wrong person could be
    asked.
    """
    names = [value for where in _names_in(message.params) for value in where]
    for identity in running:
        if any(is_same(value, identity) for value in names):
            return identity
    if names and message.method == "notifications/progress":
        return None
    return next(iter(running)) if len(running) == 1 else None


def _names_in(params: Mapping[str, Any]) -> list[list[Any]]:
    meta = params.get("_meta")
    containers = (params, meta if isinstance(meta, dict) else {})
    return [[members[name] for name in NAMES if name in members] for members in containers]
