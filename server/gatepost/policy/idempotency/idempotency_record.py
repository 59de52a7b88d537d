"""Describe the call that an idempotency key protects, its record, and its stored outcome."""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.quota import QuotaExceeded
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.calls.runner import outcome_of
from gatepost.tools.calls.stage import Next
from gatepost.tools.calls.truncation import UNENCODABLE, truncate
from gatepost.tools.context.client import (
    InputNeeded,
    MissingCapability,
    ProtocolError,
    TaskNotAccepted,
)
from gatepost.tools.offers.offer import (
    Call,
    Failure,
    FailureKind,
    IdempotencyKey,
    Outcome,
    Tool,
    ToolFailure,
)
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import AuthError

DAY_S = 86_400.0
MINUTE_S = 60.0
KEPT_S = {"idempotency": DAY_S, "correlation": MINUTE_S}
EXACT = 1e25


# These outcomes say that nothing was done and that a retry may succeed. If they were stored, every
# retry would get them for a day.
RETRIED_KINDS: frozenset[FailureKind] = frozenset(
    {"rate_limit", "upstream_unavailable", "approval_pending"}
)
# A tool raises these to be called again: with answers, by a more capable client, or with more
# permissions. The last one is raised before the tool runs.
NOT_AN_OUTCOME = (InputNeeded, MissingCapability, AuthError, TaskNotAccepted)

KEPT_BYTES = 4_194_304
"""Maximum size of a stored outcome: every answer within the default size limit fits."""

_encode = msgspec.json.encode


Lost = Literal["stopped", "too large", "no room"]
"""Why the outcome of a call that has run is not stored."""
ConflictReason = Lost | Literal["other arguments", "unknown"]


class CallOutcome(msgspec.Struct, frozen=True):
    """
    The outcome that all calls with the key get.

    If it is not ``shared``, nothing was done: the outcome is only for the call that ran, and the
    other calls try again.
    """

    outcome: Outcome | None = None
    error: BaseException | None = None
    shared: bool = True
    conflict: ConflictReason | None = None
    """Why the idempotency key refused the call; None: it did not."""

    @property
    def is_from_tool(self) -> bool:
        """Return whether the tool's outcome is in it, and other calls with the key get it too."""
        is_answer = self.error is None or isinstance(self.error, ProtocolError)
        return is_answer and self.shared and self.conflict is None

    def answer(self) -> Outcome | None:
        """Return the outcome, raise the error, or return None if there is neither."""
        if self.error is not None:
            raise self.error
        return self.outcome


NOT_RUN = CallOutcome(shared=False)


class StoredProtocolError(msgspec.Struct, frozen=True):
    """A protocol error that a tool raised."""

    code: int
    message: str
    data: Any = None


class StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored outcome, as JSON in the idempotency record; the fields are those of `Outcome`."""

    content: tuple[Mapping[str, Any], ...] = ()
    structured: Raw | UnsetType = UNSET
    failure: Failure | None = None
    error: StoredProtocolError | None = None
    lost: Lost | None = None
    untrusted: str | None = None
    as_result: bool = False


_read_outcome = msgspec.json.Decoder(StoredOutcome).decode


CONFLICT_MESSAGES: Mapping[ConflictReason, str] = {
    "other arguments": "This idempotency key was used for a call with other arguments. "
    "Send these arguments with a key of their own.",
    "unknown": "It is unknown whether the first call with this idempotency key did its work: the "
    "server that ran it is gone. It was not run again. Check what was done before you call with "
    "another key.",
    "stopped": "The first call with this idempotency key was stopped while its tool ran, so part "
    "of its work may be done. It was not run again. Check what was done before you call with "
    "another key.",
    "too large": "The first call with this idempotency key was carried out, but its answer was too "
    "large to be stored. It was not run again.",
    "no room": "The first call with this idempotency key was carried out, but its answer was not "
    "stored: the storage quota of its caller or tenant was used up. It was not run again.",
}


def refused(reason: ConflictReason) -> CallOutcome:
    """Return the conflict that a call gets because of its idempotency key."""
    failure = Failure("conflict", CONFLICT_MESSAGES[reason])
    return CallOutcome(Outcome(failure=failure), conflict=reason)


STOPPED_RECORD = _encode(StoredOutcome(lost="stopped"))
TOO_LARGE_RECORD = _encode(StoredOutcome(lost="no room"))


def encode_outcome(outcome: Outcome) -> bytes:
    """Encode an outcome for the store."""
    structured = outcome.structured
    if structured is not UNSET and not isinstance(structured, Raw):
        structured = Raw(_encode(structured))
    stored = StoredOutcome(
        outcome.content,
        structured,
        outcome.failure,
        untrusted=outcome.untrusted,
        as_result=outcome.as_result,
    )
    return _bounded(stored)


def keep_error(error: ProtocolError) -> bytes:
    """Encode a tool's protocol error for the store."""
    return _bounded(StoredOutcome(error=StoredProtocolError(error.code, error.message, error.data)))


def replay(stored: bytes) -> CallOutcome:
    """Decode a stored outcome for a retry."""
    ending = _read_outcome(stored)
    if ending.lost is not None:
        return refused(ending.lost)
    if ending.error is not None:
        error = ending.error
        return CallOutcome(error=ProtocolError(error.code, error.message, error.data))
    content, structured, failure = ending.content, ending.structured, ending.failure
    return CallOutcome(Outcome(content, structured, failure, ending.untrusted, ending.as_result))


def _bounded(ending: StoredOutcome) -> bytes:
    encoded = _encode(ending)
    return encoded if len(encoded) <= KEPT_BYTES else _encode(StoredOutcome(lost="too large"))


def no_room(full: QuotaExceeded) -> ToolFailure:
    """Return the refusal of a call whose idempotency key the quota has no room for."""
    message = f"{full} The call was not carried out: send it without an idempotency key, or later."
    refusal = ToolFailure("rate_limit", message)
    refusal.failure = Failure("rate_limit", message, retry_after=full.wait_s, limit=full.limit)
    return refusal


class IdempotentWork(msgspec.Struct, frozen=True):
    """The call that an idempotency key protects."""

    call: Call
    tool: Tool
    arguments: Any
    proceed: Next
    repeatable: bool
    """Whether the tool may run again if the outcome of the first run is unknown."""
    limit_s: float
    max_result_bytes: int
    redacted: RedactedCall
    """Redacts secrets from the outcome before it is stored."""

    def failed(self, error: BaseException) -> Outcome:
        """Return the outcome of a tool that raised this."""
        return outcome_of(error, self.call, self.limit_s)


class RecordTemplate(msgspec.Struct, frozen=True):
    """The idempotency record that the call needs, and how long its outcome is kept, in seconds."""

    key: bytes
    digest: bytes
    holder: str
    running_s: float
    kept_s: float
    unknown_s: float | None
    """How long after the lease an unknown outcome blocks the key; None: as long as the record."""
    owner: bytes | None = None
    """
    Digest of the principal whose quota the record counts against; None: no quota applies, because
    a person has approved the call.
    """


def judged(
    work: IdempotentWork, doing: "asyncio.Task[Outcome]", *, invoked: bool, stopped: bool
) -> tuple[CallOutcome, bytes | None]:
    """
    Return the outcome of a call that has ended, and its stored form.

    Only what an invoked tool returned is stored.
    """
    if doing.cancelled() and stopped:
        if not invoked or work.repeatable:
            return NOT_RUN, None
        return replay(STOPPED_RECORD), STOPPED_RECORD
    error = asyncio.CancelledError() if doing.cancelled() else doing.exception()
    if not invoked or isinstance(error, NOT_AN_OUTCOME):
        outcome = doing.result() if error is None else None
        return CallOutcome(outcome, error, shared=False), None
    if isinstance(error, StoreUnavailable):
        return CallOutcome(error=error), None if work.repeatable else STOPPED_RECORD
    try:
        if isinstance(error, ProtocolError):
            redacted_error = work.redacted.protocol_error(error)
            return CallOutcome(error=redacted_error), keep_error(redacted_error)
        return _fitted(work, doing.result() if error is None else work.failed(error))
    except UNENCODABLE as unencodable:
        return _fitted(work, work.failed(unencodable))


def _fitted(work: IdempotentWork, outcome: Outcome) -> tuple[CallOutcome, bytes | None]:
    if outcome.failure is not None:
        outcome = work.redacted.outcome(outcome)
    if outcome.failure is not None and outcome.failure.kind in RETRIED_KINDS:
        return CallOutcome(outcome), None
    fitted = truncate(outcome, work.tool, work.max_result_bytes)
    return CallOutcome(fitted), encode_outcome(fitted)


def _number(text: str) -> float | int | str:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return text
    # Integers stay exact however they are written: as doubles, neighbours would become equal. Huge
    # numbers stay doubles, because writing hundreds of digits takes long.
    return int(value) if abs(value) < EXACT and value.is_integer() else value


_read_arguments = msgspec.json.Decoder(float_hook=_number).decode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


def only_reads(tool: Tool, arguments: Any) -> bool:
    """Return whether the call only reads, as its tool declares."""
    if tool.effects.read_only:
        return True
    return tool.read_only_form is not None and tool.read_only_form(arguments)


def may_repeat(tool: Tool, arguments: Any) -> bool:
    """Return whether the call may run again after an unknown outcome, as its tool declares."""
    return only_reads(tool, arguments) or tool.effects.idempotent


def template_of(
    caller: TenantContext,
    tool: Tool,
    idempotency_key: IdempotencyKey,
    arguments: bytes,
    kept_s: Mapping[str, float] = KEPT_S,
) -> RecordTemplate:
    """
    Return the idempotency record that a call needs.

    The key covers the caller, its client and actor, and the tool, so callers cannot reach each
    other's records. An agent may use one correlation id for many calls; there, other arguments mean
    another call.
    """
    digest = digest_of(arguments)
    if tool.secret_arguments or tool.forwards:
        # It is stored for a day, and a reader of the database must not be able to test passwords
        # against it. The idempotency key, which only the client has, is not stored.
        digest = hmac.digest(idempotency_key.key.encode(errors="surrogatepass"), digest, "sha256")
    identity = (*caller.identity_key, tool.name, idempotency_key.kind, idempotency_key.key)
    bound_to = digest.hex() if idempotency_key.kind == "correlation" else None
    return RecordTemplate(
        # As JSON, so that no choice of ids makes two different callers the same.
        key=hashlib.sha256(msgspec.json.encode((*identity, bound_to))).digest(),
        digest=digest,
        holder=secrets.token_hex(8),
        running_s=DAY_S,
        kept_s=kept_s[idempotency_key.kind],
        unknown_s=MINUTE_S if idempotency_key.kind == "correlation" else None,
        owner=caller.principal_digest,
    )


def digest_of(arguments: bytes) -> bytes:
    """Return a digest of the canonical arguments (as RFC 8785, but with exact integers)."""
    # The tool's parser may accept what this one does not; then the raw bytes are hashed.
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        arguments = _encode_sorted(_read_arguments(arguments))
    return hashlib.sha256(arguments).digest()
