"""The failures of a tool."""

from types import NoneType
from typing import Any, Literal

import msgspec

FailureKind = Literal[
    "validation",
    "not_found",
    "denied",
    "conflict",
    "rate_limit",
    "upstream_unavailable",
    "tool_error",
    "approval_pending",
    "timeout",
    "internal",
]

FailureLimit = Literal["caller", "tenant", "tool", "server", "hold", "caller_audit", "tenant_audit"]
AUDIT_LIMITS = frozenset({"caller_audit", "tenant_audit"})
"""The quotas of audit records; their refusals must create almost no records themselves."""

_MEMBER_TYPES: tuple[Any, ...] = (str, (str, NoneType), (str, NoneType), (int, float, NoneType))


class Failure(msgspec.Struct, frozen=True):
    """
    The failure of a call; each protocol converts the kind into its own form.

    ``message`` tells the agent what was wrong and what would work. ``field`` names the argument at
    fault; ``retry_after`` is in seconds; ``limit`` names the server's limit that refused the call.
    """

    kind: FailureKind
    message: str
    field: str | None = None
    retry_after: float | None = None
    limit: FailureLimit | None = None

    def __post_init__(self) -> None:
        members = (self.kind, self.field, self.limit, self.retry_after)
        if not all(map(isinstance, members, _MEMBER_TYPES)):
            raise TypeError("kind, field and limit of a failure are texts, retry_after is a number")


class ToolFailure(Exception):
    """
    Raised by a tool to answer with a Failure that the agent can act on.

    ``rate_limit`` and ``upstream_unavailable`` mean that nothing was done and that the same call
    may succeed later: a retry runs the tool again. Every other kind is final.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
        untrusted: str | None = None,
    ) -> None:
        super().__init__(message)
        self.untrusted = untrusted
        """The source of third-party text in the message, like `Outcome.untrusted`."""
        self.failure = Failure(kind, message, field, retry_after)
