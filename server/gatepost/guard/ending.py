"""How a call under a retry key ended: for those who wait for it, and as it is kept."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.tools.api import Failure, Outcome
from gatepost.tools.client import ProtocolError

KEPT_BYTES = 4_194_304
"""The largest outcome that is kept: whatever the default size limit of answers lets out."""

_encode = msgspec.json.encode


class Ending(msgspec.Struct, frozen=True):
    """
    What everybody gets who called with the key meanwhile.

    One that is not ``shared`` is an answer to the very call that ran, if it holds one; nothing was
    done, and the others try for themselves.
    """

    outcome: Outcome | None = None
    error: BaseException | None = None
    shared: bool = True

    @property
    def refuses(self) -> bool:
        """Whether it says that the retry key cannot be answered, and no tool has."""
        failure = None if self.outcome is None else self.outcome.failure
        return failure is not None and failure.kind == "conflict"

    def answer(self) -> Outcome | None:
        """The outcome; raises the error; None when there is neither."""
        if self.error is not None:
            raise self.error
        return self.outcome


NOTHING_DONE = Ending(shared=False)

Lost = Literal["stopped", "too large"]


class Error(msgspec.Struct, frozen=True):
    """The error of the protocol that a tool answered."""

    code: int
    message: str
    data: Any = None


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ending, as JSON in the claim; of content, structured value, failure: an Outcome's own."""

    content: tuple[Mapping[str, Any], ...] = ()
    structured: Raw | UnsetType = UNSET
    failure: Failure | None = None
    error: Error | None = None
    lost: Lost | None = None


_decode = msgspec.json.Decoder(Kept).decode


def refused(message: str, retry_after: float | None = None) -> Ending:
    """A call that is answered by its retry key instead of its tool."""
    return Ending(Outcome(failure=Failure("conflict", message, retry_after=retry_after)))


OTHER_ARGUMENTS = refused(
    "This retry key was used for a call with other arguments. "
    "Send these arguments with a key of their own."
)
UNKNOWN = refused(
    "Whether the first call with this retry key did its work is not known: the server that ran it "
    "is gone. It was not run again. Check what was done before you call with another key."
)
LOST: Mapping[Lost, Ending] = {
    "stopped": refused(
        "The first call with this retry key was stopped while its tool ran, so part of its work "
        "may be done. It was not run again. Check what was done before you call with another key."
    ),
    "too large": refused(
        "The first call with this retry key was carried out, and its answer was too large to be "
        "kept. It was not run again."
    ),
}
STOPPED = _encode(Kept(lost="stopped"))


def keep(outcome: Outcome) -> bytes:
    """An outcome as it is kept."""
    structured = outcome.structured
    if structured is not UNSET and not isinstance(structured, Raw):
        structured = Raw(_encode(structured))
    return _bounded(Kept(outcome.content, structured, outcome.failure))


def keep_error(error: ProtocolError) -> bytes:
    """A tool's error of the protocol as it is kept."""
    return _bounded(Kept(error=Error(error.code, error.message, error.data)))


def replay(kept: bytes) -> Ending:
    """What was kept, as it is answered again."""
    ending = _decode(kept)
    if ending.lost is not None:
        return LOST[ending.lost]
    if ending.error is not None:
        error = ending.error
        return Ending(error=ProtocolError(error.code, error.message, error.data))
    return Ending(Outcome(ending.content, ending.structured, ending.failure))


def _bounded(ending: Kept) -> bytes:
    encoded = _encode(ending)
    return encoded if len(encoded) <= KEPT_BYTES else _encode(Kept(lost="too large"))
