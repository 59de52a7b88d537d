"""The outcome of a call with an idempotency key, in memory and as it is stored."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.tools.api import Failure, Outcome
from gatepost.tools.client import ProtocolError

KEPT_BYTES = 4_194_304
"""Maximum size of a stored outcome: every answer within the default size limit fits."""

_encode = msgspec.json.encode


class CallOutcome(msgspec.Struct, frozen=True):
    """
    The outcome that all calls with the key get.

    If it is not ``shared``, nothing was done: the outcome is only for the call that ran, and the
    other calls try again.
    """

    outcome: Outcome | None = None
    error: BaseException | None = None
    shared: bool = True

    @property
    def refuses(self) -> bool:
        """Return whether it is a conflict over the idempotency key instead of a tool's outcome."""
        failure = None if self.outcome is None else self.outcome.failure
        return failure is not None and failure.kind == "conflict"

    def answer(self) -> Outcome | None:
        """Return the outcome, raise the error, or return None if there is neither."""
        if self.error is not None:
            raise self.error
        return self.outcome


NOTHING_DONE = CallOutcome(shared=False)

Lost = Literal["stopped", "too large", "no room"]


class Error(msgspec.Struct, frozen=True):
    """A protocol error that a tool raised."""

    code: int
    message: str
    data: Any = None


class StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored outcome, as JSON in the idempotency record; the fields are those of `Outcome`."""

    content: tuple[Mapping[str, Any], ...] = ()
    structured: Raw | UnsetType = UNSET
    failure: Failure | None = None
    error: Error | None = None
    lost: Lost | None = None
    untrusted: str | None = None
    as_result: bool = False


_decode = msgspec.json.Decoder(StoredOutcome).decode


def refused(message: str, retry_after: float | None = None) -> CallOutcome:
    """Return the conflict that a call gets because of its idempotency key."""
    return CallOutcome(Outcome(failure=Failure("conflict", message, retry_after=retry_after)))


OTHER_ARGUMENTS = refused(
    "This idempotency key was used for a call with other arguments. "
    "Send these arguments with a key of their own."
)
UNKNOWN = refused(
    "It is unknown whether the first call with this idempotency key did its work: the server that "
    "ran it is gone. It was not run again. Check what was done before you call with another key."
)
LOST: Mapping[Lost, CallOutcome] = {
    "stopped": refused(
        "The first call with this idempotency key was stopped while its tool ran, so part of its "
        "work may be done. It was not run again. Check what was done before you call with another "
        "key."
    ),
    "too large": refused(
        "The first call with this idempotency key was carried out, but its answer was too large to "
        "be stored. It was not run again."
    ),
    "no room": refused(
        "The first call with this idempotency key was carried out, but its answer was not stored: "
        "the storage quota of its caller or tenant was used up. It was not run again."
    ),
}
STOPPED = _encode(StoredOutcome(lost="stopped"))
NO_ROOM = _encode(StoredOutcome(lost="no room"))


def keep(outcome: Outcome) -> bytes:
    """Encode an outcome for the store."""
    structured = outcome.structured
    if structured is not UNSET and not isinstance(structured, Raw):
        structured = Raw(_encode(structured))
    kept = StoredOutcome(
        outcome.content,
        structured,
        outcome.failure,
        untrusted=outcome.untrusted,
        as_result=outcome.as_result,
    )
    return _bounded(kept)


def keep_error(error: ProtocolError) -> bytes:
    """Encode a tool's protocol error for the store."""
    return _bounded(StoredOutcome(error=Error(error.code, error.message, error.data)))


def replay(kept: bytes) -> CallOutcome:
    """Decode a stored outcome for a retry."""
    ending = _decode(kept)
    if ending.lost is not None:
        return LOST[ending.lost]
    if ending.error is not None:
        error = ending.error
        return CallOutcome(error=ProtocolError(error.code, error.message, error.data))
    content, structured, failure = ending.content, ending.structured, ending.failure
    return CallOutcome(Outcome(content, structured, failure, ending.untrusted, ending.as_result))


def _bounded(ending: StoredOutcome) -> bytes:
    encoded = _encode(ending)
    return encoded if len(encoded) <= KEPT_BYTES else _encode(StoredOutcome(lost="too large"))
