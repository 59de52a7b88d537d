"""The interfaces around the runner: stages of a call, the recorder, and the limits on requests."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol

import msgspec

from gatepost.storage.commit import CommitFuture
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.calls.registry import Unknown
from gatepost.tools.context.client import InputNeeded, MissingCapability, ProtocolError, Unaccepted
from gatepost.tools.offers.offer import Call, Failure, Offer, Outcome
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import AuthError, InsufficientAuthentication, InsufficientScope


class Recorder(Protocol):
    """Puts calls on record."""

    @property
    def refusing(self) -> bool:
        """Return whether calls must not begin because they could not be recorded."""

    def record_end(
        self,
        call: Call,
        began: float,
        redacted_calls: list[RedactedCall],
        ending: Failure | BaseException | None,
    ) -> CommitFuture:
        """
        Record the end of a call that began at a `perf_counter` time; None means success.

        *redacted_calls* holds its redacted call if it came so far. The commit is kept once the
        record is durable.
        """


class RequestLimits(Protocol):
    """
    Counts requests that reach no stage of a call: lists, polls, and calls that are refused early.

    Each method returns None, or the failure if the rate limit is exceeded.
    """

    async def spend(self, caller: TenantContext) -> Outcome | None:
        """Count a request."""

    async def take(self, caller: TenantContext) -> Outcome | None:
        """Count a refused call; its audit record names the limit that refused it."""

    def spend_message(self, caller: TenantContext) -> Outcome | None:
        """Count a notification or a response, which gets no answer."""


class Unlimited:
    """Allows all requests."""

    async def spend(self, caller: TenantContext) -> Outcome | None:
        """Allow the request."""
        return None

    async def take(self, caller: TenantContext) -> Outcome | None:
        """Allow the call."""
        return None

    def spend_message(self, caller: TenantContext) -> Outcome | None:
        """Allow the message."""
        return None


UNLIMITED = Unlimited()


Next = Callable[[Call, Offer, Any], Awaitable[Outcome]]


StageFunction = Callable[[Call, Offer, Any, Next], Awaitable[Outcome]]
"""A stage that is only a function. It takes part in every call, after the check of arguments."""


class Stage(ABC):
    """
    A step around a call: limits, approvals, the audit record.

    It returns ``await proceed(call, offer, arguments)`` or its own Outcome, or raises ToolFailure.
    The stages around an enabled offer are composed once, when the runner is built; those around a
    tenant's own offer at each call. A stage sees every kind of offer; ``call.kind`` says which. A
    stage with ``for_retries = True`` sees only calls with an idempotency key. A stage with
    ``concerns(offer)`` sees only calls of offers for which that returns true at composition.

    The arguments are checked right before the first stage that needs them. A stage with
    ``before_check = True`` needs none; before the check, *arguments* is None. There it must refuse
    with an Outcome, not with a ToolFailure, and must not quote what the caller sent.
    """

    for_retries: ClassVar[bool] = False
    before_check: ClassVar[bool] = False

    def concerns(self, offer: Offer) -> bool:
        """Return whether the stage takes part in calls of this offer; asked at composition."""
        return True

    @abstractmethod
    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """
        Process the call.

        This is usually a coroutine function. A plain function can return the awaitable of
        `proceed`, which costs almost nothing for a call that it does not touch.
        """


class RaisedReason(msgspec.Struct, frozen=True):
    """The outcome of a call that raised an exception, and what its record says about it."""

    outcome: str
    message: str = ""


_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (Unknown, "unknown"),
    (InsufficientScope, "insufficient_scope"),
    (InsufficientAuthentication, "insufficient_authentication"),
    (AuthError, "refused"),
    (MissingCapability, "missing_capability"),
    (ProtocolError, "protocol_error"),
    (InputNeeded, "input_required"),
    (Unaccepted, "refused"),
    (StoreUnavailable, "store_unavailable"),
    (asyncio.CancelledError, "cancelled"),
    (GeneratorExit, "cancelled"),
)


def reason_of(error: BaseException) -> RaisedReason:
    """Return what a record says about an exception; only messages that are known to be redacted."""
    outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "internal")
    if isinstance(error, Unknown):
        return RaisedReason(outcome, error.name)
    if isinstance(error, InsufficientScope):
        return RaisedReason(outcome, f"needs {' '.join(error.scopes)}")
    return RaisedReason(outcome, str(error.message) if isinstance(error, ProtocolError) else "")
