"""Pages of the requests that wait, and the cursors from one to the next."""

import math

import msgspec

from gatepost.policy.approvals.request import ApprovalRequest

WaitingSince = tuple[float, str]
"""The `created_at` and the id of a request, by which those that wait are ordered."""


def place_of(request: ApprovalRequest) -> WaitingSince:
    """Return where a request is among those that wait."""
    return request.created_at, request.id


def cursor_of(request: ApprovalRequest) -> str:
    """Return the place of a request as text, which `place_at` reads."""
    return f"{request.created_at!r}~{request.id}"


class WaitingPage(msgspec.Struct, frozen=True):
    """One page of the requests that wait, the oldest first."""

    requests: tuple[ApprovalRequest, ...] = ()
    later: str = ""
    """The cursor of the next page; empty on the last one."""


def place_at(cursor: str) -> WaitingSince | None:
    """Return the place that a cursor names, or None if it is no cursor."""
    at, _, request_id = cursor.partition("~")
    try:
        found = float(at)
    except ValueError:
        return None
    return (found, request_id) if math.isfinite(found) and request_id else None
