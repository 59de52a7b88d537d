"""How a tool says that it did not do what was asked."""

from typing import Literal

import msgspec

FailureKind = Literal[
    "validation",
    "not_found",
    "denied",
    "conflict",
    "rate_limit",
    "upstream_unavailable",
    "approval_pending",
    "timeout",
    "internal",
]


class Failure(msgspec.Struct, frozen=True):
    """
    A tool did not do what was asked; each protocol projects the kind onto its own wire.

    ``message`` is written for the model: what was wrong and what would work. ``field`` names the
    argument at fault; ``retry_after`` is in seconds; ``limit`` says which of our own refused.
    """

    kind: FailureKind
    message: str
    field: str | None = None
    retry_after: float | None = None
    limit: Literal["caller", "tenant", "tool", "server"] | None = None


class ToolFailure(Exception):
    """
    Raised by a tool to answer a Failure that the model can act on.

    ``rate_limit`` and ``upstream_unavailable`` say that nothing was done and that the same call may
    succeed later: a retry runs the tool again. Every other kind is how the call ended.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message, field, retry_after)
