"""Run the steps of a call, the same for every protocol."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.execution.failure import Failure, ToolFailure
from gatepost.execution.interruption import DeadlinePassed, TokenExpired, is_cancelled
from gatepost.redaction.redactor import CURRENT_CALL
from gatepost.storage.commit import NO_COMMIT, CommitFailed, CommitFuture
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.calls.redacted_call import RUNNING_CALLS, RedactedCall
from gatepost.tools.calls.redaction import Redaction, is_harmless
from gatepost.tools.calls.registry import Registry, Unknown
from gatepost.tools.calls.stage import (
    UNLIMITED,
    Next,
    Recorder,
    RequestLimits,
    Stage,
    StageFunction,
)
from gatepost.tools.calls.tool_deadline import ToolDeadline
from gatepost.tools.calls.truncation import encodable_failure, safe_text_bytes
from gatepost.tools.context.call_context import ToolServices
from gatepost.tools.context.client import (
    NO_CLIENT,
    ApprovalPending,
    InputNeeded,
    MissingCapability,
    ProtocolError,
    TaskNotAccepted,
    all_needed,
)
from gatepost.tools.context.interfaces import ChangeNotifier, Workspace
from gatepost.tools.offers.offer import (
    FAILURE_EVENTS,
    NOT_AUDITED,
    WORDS,
    Call,
    CallContext,
    Offer,
    Outcome,
)
from gatepost.tools.schemas.argument_size import LONG_BYTES, SHORT_BYTES, is_large
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import AuthError, InsufficientAuthentication, InsufficientScope

log = logging.getLogger(__name__)

GRACE_S = 45.0
"""How long a call may outlive its token: longer than most calls take, but below a minute."""
LONGEST_NAME = 8_192
"""The longest name that is looked up and redacted; a longer one could take long."""
NO_LIMIT_S = 1e8
"""Three years, because the loops' timers know no infinity."""

NOT_FAILURES = (InputNeeded, TaskNotAccepted, GeneratorExit)
"""
The exceptions that are no failure of a tool. With GeneratorExit Python closes a coroutine; one that
a tool raises itself arrives as another error (`failed_with`). All others are failures: a library
that calls `sys.exit` in a tool must not end the server.
"""

EXPIRED = Outcome(
    failure=Failure(
        "timeout", "The access token expired during the call. Call again with a fresh one."
    )
)

UNRECORDED = (
    "The call was carried out, but the record of it could not be written in time. It was not "
    "undone: check what was done before you call again."
)
UNRECORDED_EFFECT = Outcome(failure=Failure("internal", UNRECORDED))
"""It is not an outage: after an outage clients call again, and the work would be done twice."""


class CallContexts:
    """
    Makes the context of each call of one configuration, with the services that its tools may use.

    *of_tenant* returns the workspace of a tenant and its change notifications, which its calls
    share.
    """

    def __init__(
        self, of_tenant: Callable[[str], tuple[Workspace, ChangeNotifier]], services: ToolServices
    ) -> None:
        self._of_tenant, self._services = of_tenant, services

    def __call__(self, call: Call) -> CallContext:
        """Return the context of a call."""
        workspace, changes = self._of_tenant(call.caller.tenant_id)
        return CallContext(
            caller=call.caller,
            request_id=call.request_id,
            workspace=workspace,
            client=call.client,
            changes=changes,
            correlation=call.correlation,
            depth=call.depth,
            lasting=call.lasting,
            idempotency_key=call.idempotency_key,
            services=self._services,
        )


class Runner:
    """
    The only way to call an offer: find → require → stages → invoke → redact → truncate → record.
    `gatepost.runtime.stages` has the order of the stages.

    Scopes are checked before arguments, so that a caller learns nothing about offers that it may
    not use. Limits are applied before the check of arguments, because checking costs more than
    refusing. Secrets are removed before long text is cut, because half a secret would not be found.
    """

    grace_s = GRACE_S

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        registry: Registry,
        *,
        context_for: Callable[[Call], CallContext],
        stages: Sequence[Stage | StageFunction] = (),
        timeout_s: float = 30.0,
        max_result_bytes: int = 4_000_000,
        redaction: Redaction | None = None,
        recorder: Recorder | None = None,
        requests: RequestLimits = UNLIMITED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.recorder = recorder
        self.requests = requests
        self.redaction = redaction or Redaction()
        self.context_for = context_for
        self.timeout_s = timeout_s
        self.max_result_bytes = max_result_bytes
        self.clock = clock
        self._prompt_bytes = min(safe_text_bytes(max_result_bytes), LONG_BYTES)
        self._stages = tuple(stages)
        # By the identity of offers: these live as long as the registry, and have no other key.
        self._handlers: dict[int, Next] = {}
        self._retry_handlers: dict[int, Next] = {}
        # Keyed by the stages that concern an offer, for the offers of tenants, which come and go.
        self._composed: dict[tuple[Stage | StageFunction, ...], Next] = {}
        for offer in registry.offers:
            self._handlers[id(offer)] = self._handler_of(offer, is_retry=False)
            self._retry_handlers[id(offer)] = self._handler_of(offer, is_retry=True)

    def _handler_of(self, offer: Offer, *, is_retry: bool) -> Next:
        """Return the invocation of an offer with the stages around it that concern it."""
        stages = tuple(
            stage
            for stage in self._stages
            if not isinstance(stage, Stage)
            or (stage.concerns(offer) and (is_retry or not stage.for_retries))
        )
        handler = self._composed.get(stages)
        if handler is None:
            handler = self._composed[stages] = checking(stages, self._invoke)
        return handler

    async def run(self, call: Call) -> Outcome:
        """
        Do what *call* asks, or say in its Outcome why not; its audit record is durable.

        Raises Unknown, InsufficientScope or InsufficientAuthentication where more permissions
        or a new sign-in would help, MissingCapability, ProtocolError, InputNeeded and
        StoreUnavailable; these are for the protocol to answer.
        """
        outcome, commit = await self.run_uncommitted(call)
        try:
            await commit
        except CommitFailed:
            return UNRECORDED_EFFECT
        return outcome

    async def run_uncommitted(self, call: Call) -> tuple[Outcome, CommitFuture]:
        """
        Do the same, and return a success before its audit record is durable.

        The commit must be awaited before the outcome leaves the server. A failure is durable
        already.
        """
        if self.registry.source is not None:
            await self.registry.prepare(call.caller)
        recorder = self.recorder
        if recorder is None or call.kind in NOT_AUDITED:
            return await self._proceed(call, []), NO_COMMIT
        if recorder.refusing:
            raise StoreUnavailable("calls cannot be put on record")
        redacted_calls: list[RedactedCall] = []
        began = perf_counter()
        try:
            outcome = await self._proceed(call, redacted_calls)
        except (asyncio.CancelledError, GeneratorExit) as interruption:
            # The caller is gone, so no code can wait for the commit.
            recorder.record_end(call, began, redacted_calls, interruption)
            raise
        except BaseException as error:
            with suppress(CommitFailed):  # the raised error says more, and the log says the rest
                await recorder.record_end(call, began, redacted_calls, error)
            raise
        commit = recorder.record_end(call, began, redacted_calls, outcome.failure)
        if outcome.failure is None:
            return outcome, commit
        with suppress(CommitFailed):  # the failure says more than the lost record
            await commit
        return outcome, NO_COMMIT

    async def _counted(self, call: Call, refused: Exception) -> Outcome:
        """Raise *refused* after counting the request: it reaches no stage, but must not be free."""
        if (refusal := await self.requests.take(call.caller)) is not None:
            return refusal
        try:
            raise refused
        finally:
            del refused  # its traceback would hold this frame, and with it the call

    async def _proceed(self, call: Call, redacted_calls: list[RedactedCall]) -> Outcome:
        try:
            offer = self.allowed(call)
        except (Unknown, AuthError) as refused:
            return await self._counted(call, refused)
        tenant, redaction = call.caller.tenant_id, self.redaction
        if (redactor := redaction.at_hand(tenant)) is None:
            await redaction.prepare(tenant)
            redactor = redaction.redactor_for(tenant)
        # If the caller may write secrets itself, the redacted call has to look for them.
        secrets_version = -1 if offer.secret_arguments else redaction.secrets.version
        redacted = RedactedCall(redaction, call, offer, redactor, secrets_version)
        redacted_calls.append(redacted)
        # A tool may call others, and is the current call again afterwards, with its own secrets.
        outer, running = CURRENT_CALL.get(), (asyncio.current_task(), redacted)
        CURRENT_CALL.set(redacted)
        RUNNING_CALLS[running] = None
        if call.client is not NO_CLIENT:
            call = replace(call, client=redacted)
        try:
            is_retry = call.idempotency_key is not None
            handlers = self._retry_handlers if is_retry else self._handlers
            handler = handlers.get(id(offer)) or self._handler_of(offer, is_retry=is_retry)
            outcome = await handler(call, offer, None)
            if not redacted.checked:
                return outcome  # refused before any secret was read
            # Within the `try`: these may be the first to find that an outcome cannot be encoded.
            if secrets_version == redaction.secrets.version and is_harmless(
                outcome, redactor, self._prompt_bytes
            ):
                return outcome  # true for nearly all outcomes, without encoding them
            return await redacted.redact(outcome, self.max_result_bytes)
        except asyncio.CancelledError as cancelled:
            if is_cancelled():
                raise
            # The tool awaited what other code cancelled: the tool's fault, not the client's.
            outcome = outcome_of(cancelled, call, offer.timeout_s or self.timeout_s)
        except NOT_FAILURES:
            raise
        except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
            outcome = outcome_of(redacted.error(error), call, offer.timeout_s or self.timeout_s)
        finally:
            redacted.over = True
            CURRENT_CALL.set(outer)
            del RUNNING_CALLS[running]
        return await redacted.redact(outcome, self.max_result_bytes)

    def allowed(self, call: Call) -> Offer:
        """
        Return the offer that the call names, if its caller may use it.

        Raises Unknown, InsufficientScope or InsufficientAuthentication.
        """
        try:
            offer = self.registry.offer(call.kind, call.name, call.caller)
        except Unknown as unknown:
            # No offer has a long name, and half a secret would not be found in it.
            name = unknown.name if len(unknown.name) <= LONGEST_NAME else ""
            unknown.name = self.redaction.clean(call.caller.tenant_id, name)
            raise
        if offer.scopes or offer.acr_values or offer.max_age_s is not None:
            self._require(call.caller, offer)
        return offer

    def is_permitted(self, caller: TenantContext, offer: Offer) -> bool:
        """Return whether the caller's token is sufficient for an offer."""
        try:
            self._require(caller, offer)
        except (InsufficientScope, InsufficientAuthentication):
            return False
        return True

    def _require(self, caller: TenantContext, offer: Offer) -> None:
        if offer.scopes:
            caller.require(offer.scopes)
        if offer.acr_values or offer.max_age_s is not None:
            caller.require_authentication(offer.acr_values, offer.max_age_s, now=self.clock())

    def _invoke(self, call: Call, offer: Offer, arguments: Any) -> Awaitable[Outcome]:
        redacted: Any = CURRENT_CALL.get()  # of this call
        redacted.has_begun = True
        # The clock runs while the tool runs, not while a stage waits for a person.
        limit = offer.timeout_s or self.timeout_s
        work = offer.invoke(self.context_for(call), arguments)
        if call.client is NO_CLIENT:
            # All tokens are valid for the time of grace.
            allowed_s = NO_LIMIT_S if limit <= self.grace_s else self._call_s(call)
            return ToolDeadline(limit, allowed_s, work)
        deadline = ToolDeadline(limit, self._call_s(call), work)
        redacted.suspend_while_waiting(deadline)
        return deadline

    def _call_s(self, call: Call) -> float:
        return NO_LIMIT_S if call.lasting else self.allowed_s(call.caller)

    def allowed_s(self, caller: TenantContext) -> float:
        """
        Return how many seconds a call of this caller may hold its connection.

        A caller that has lost its access must not keep receiving messages on an open stream. A
        token within its leeway counts as valid until now.
        """
        return max(caller.expires_at - self.clock(), 0.0) + self.grace_s


def outcome_of(error: BaseException, call: Call, limit_s: float) -> Outcome:
    """Return the outcome of a call that raised; reraise what the protocol answers."""
    if isinstance(error, BaseExceptionGroup) and (needed := all_needed(error)):
        # The tool asks in several tasks at once.
        raise needed from None
    if isinstance(error, ToolFailure):
        return Outcome(failure=encodable_failure(error.failure), untrusted=error.untrusted)
    if isinstance(error, AuthError | MissingCapability | ProtocolError | StoreUnavailable):
        raise error
    if isinstance(error, ApprovalPending):
        message, after_s = error.message, error.retry_after_s
        return Outcome(failure=Failure("approval_pending", message, retry_after=after_s))
    if isinstance(error, TokenExpired):
        return EXPIRED
    if isinstance(error, DeadlinePassed):
        message = f"The {WORDS[call.kind]} did not finish within {limit_s:g} seconds."
        return Outcome(failure=Failure("timeout", message))
    log.error(
        FAILURE_EVENTS[call.kind],
        extra={"request_id": call.request_id, "offer": call.name, "correlation": call.correlation},
        exc_info=error,
    )
    message = f"The {WORDS[call.kind]} failed unexpectedly. Reference: {call.request_id}"
    return Outcome(failure=Failure("internal", message))


def checking(stages: Sequence[Stage | StageFunction], invoke: Next) -> Next:
    """Return *invoke* inside these stages, with the check of the arguments where it belongs."""
    first = list(takewhile(lambda stage: isinstance(stage, Stage) and stage.before_check, stages))
    proceed = composed(stages[len(first) :], invoke)

    def check(call: Call, offer: Offer, arguments: Any) -> Awaitable[Outcome]:
        redacted: Any = CURRENT_CALL.get()  # set by the runner for this call
        if offer.secret_arguments or len(call.arguments) > SHORT_BYTES:
            if is_large(call.arguments, reads_texts=offer.reads_texts):
                return run_checked(call, offer, redacted)
            return proceed(call, offer, redacted.arguments())
        # The same as `redacted.arguments`, which most calls do not need.
        arguments = offer.check(call.arguments)
        redacted.checked = True
        return proceed(call, offer, arguments)

    async def run_checked(call: Call, offer: Offer, redacted: RedactedCall) -> Outcome:
        # A check that takes milliseconds runs in a thread, so that other calls are served.
        return await proceed(call, offer, await in_cpu_thread(call.caller, redacted.arguments))

    return composed(first, check)


def composed(stages: Sequence[Stage | StageFunction], invoke: Next) -> Next:
    """Return *invoke* inside these stages, the first one outermost."""
    for stage in reversed(stages):
        invoke = _wrapped(stage.__call__ if isinstance(stage, Stage) else stage, invoke)
    return invoke


def _wrapped(stage: StageFunction, proceed: Next) -> Next:
    # A closure around a bound method costs half as much as a partial of a callable object.
    def perform(call: Call, offer: Offer, arguments: Any) -> Awaitable[Outcome]:
        return stage(call, offer, arguments, proceed)

    return perform
