"""The steps of a call, the same for every protocol that brings one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from gatepost.pledge import Broken
from gatepost.redaction.place import HERE
from gatepost.scope import HELD
from gatepost.stores.api import StoreUnavailable
from gatepost.tools.api import (
    WORDS,
    Call,
    CallContext,
    Failure,
    Kind,
    Offer,
    Outcome,
    ToolFailure,
)
from gatepost.tools.attend import DeadlinePassed, Patient, Within
from gatepost.tools.client import (
    NOBODY,
    InputNeeded,
    MissingCapability,
    Pending,
    ProtocolError,
    Unaccepted,
    all_needed,
)
from gatepost.tools.fit import fit, fitting_bytes, tellable
from gatepost.tools.record import Recorder
from gatepost.tools.redaction import Guard, Redaction
from gatepost.tools.registry import Registry, Unknown
from gatepost.tools.utterance import LONG_BYTES, is_harmless
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import AuthError

log = structlog.get_logger("gatepost.runner")

Next = Callable[[Call, Offer, Any], Awaitable[Outcome]]

GRACE_S = 45.0
"""How long a call may outlive its caller's token: longer than most calls take, below a minute."""
LONGEST_NAME = 8_192
"""Of what a caller asks for; what is longer is not looked at, as it could take long."""
FOREVER_S = 1e8
"""Three years; the loops' timers know no infinity."""

OURS = (InputNeeded, Unaccepted, GeneratorExit)
"""
What is no failure of a tool; the last is how Python throws a coroutine away. Everything else is:
a library that gives up with `sys.exit` on a tool's behalf must not end the server.
"""


EXPIRED = Outcome(
    failure=Failure(
        "timeout", "The access token expired during the call. Call again with a fresh one."
    )
)

OFF_RECORD: frozenset[Kind] = frozenset({"completion", "listing"})
"""What only looks, and is asked for with each key that somebody presses."""
UNRECORDED = (
    "The call was carried out, but the record of it could not be written in time. It was not "
    "undone: check what was done before you call again."
)
UNRECORDED_EFFECT = Outcome(failure=Failure("internal", UNRECORDED))
"""
Not an outage, which clients answer by calling again: the work is done, and would be done twice.
"""


class TokenOver(DeadlinePassed):
    """The caller's token expired while the tool ran."""


class WhileAllowed(Within[Outcome]):
    """Awaits what could run for longer than its caller's token lasts."""

    __slots__ = ()

    stopped = TokenOver


class Attentive(Patient[Outcome]):
    """Awaits a tool that may ask somebody; its clock stops meanwhile, the token's does not."""

    __slots__ = ()

    late = TokenOver


class Stage(Protocol):
    """
    Something that happens around a checked call: limits, approvals, the record of it.

    It answers ``await proceed(call, offer, arguments)``, or an Outcome of its own, or raises
    ToolFailure. Composed once, when the runner is built; it sees every kind of offer, and
    ``call.kind`` says which. One that has ``for_retries = True`` sees calls with a retry key only,
    one that has ``concerns(offer)`` those of offers for which that was true then.
    """

    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """
        Take this stage's part in the call.

        Usually a coroutine function; one that is none may hand on what `proceed` answers, and then
        costs a call that it does not touch next to nothing.
        """


class Runner:
    """
    The only way to what is offered: find → require → check → stages → invoke → redact → fit.

    Scopes come before arguments, so that a caller learns nothing about what it may not use; secrets
    go before what is too long is cut, as half a secret would not be found.
    """

    grace_s = GRACE_S

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        registry: Registry,
        *,
        context_for: Callable[[Call], CallContext],
        stages: Sequence[Stage] = (),
        timeout_s: float = 30.0,
        max_result_bytes: int = 4_000_000,
        redaction: Redaction | None = None,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.recorder = recorder
        self.redaction = redaction or Redaction()
        self.context_for = context_for
        self.timeout_s = timeout_s
        self.max_result_bytes = max_result_bytes
        self.clock = clock
        self._short = min(fitting_bytes(max_result_bytes), LONG_BYTES)
        # By their offers' identity: these live as long as the registry, and have no other.
        self._ways: dict[int, Next] = {}
        self._ways_again: dict[int, Next] = {}
        for offer in registry.offers:
            concerned = [stage for stage in stages if _concerns(stage, offer)]
            usual = [stage for stage in concerned if not getattr(stage, "for_retries", False)]
            self._ways[id(offer)] = composed(usual, self._invoke)
            self._ways_again[id(offer)] = composed(concerned, self._invoke)

    async def run(self, call: Call) -> Outcome:
        """
        Do what *call* asks, or say in its Outcome why not.

        Raises Unknown, InsufficientScope or InsufficientAuthentication where more permissions
        or a new sign-in would help, MissingCapability, ProtocolError, InputNeeded and
        StoreUnavailable; these are for the protocol to answer.
        """
        recorder = self.recorder
        if recorder is None or call.kind in OFF_RECORD:
            return await self._run(call, [])
        if recorder.refusing:
            raise StoreUnavailable("calls cannot be put on record")
        guards: list[Guard] = []
        began = perf_counter()
        try:
            outcome = await self._run(call, guards)
        except (asyncio.CancelledError, GeneratorExit) as left:
            # Nobody is there to wait with.
            recorder.ended(call, began, guards, left)
            raise
        except BaseException as error:
            with suppress(Broken):  # what is raised says more, and the log says the rest
                await recorder.ended(call, began, guards, error)
            raise
        pledge = recorder.ended(call, began, guards, outcome.failure)
        if call.holder is not None:
            call.holder[HELD] = pledge
            return outcome
        try:
            await pledge
        except Broken:
            return UNRECORDED_EFFECT if outcome.failure is None else outcome
        return outcome

    async def _run(self, call: Call, guards: list[Guard]) -> Outcome:
        offer = self.allowed(call)
        tenant, redaction = call.caller.tenant_id, self.redaction
        if (redactor := redaction.at_hand(tenant)) is None:
            await redaction.ready(tenant)
            redactor = redaction.of(tenant)
        # Where the caller may write secrets itself the guard has to look for them.
        known = -1 if offer.secret_arguments else redaction.secrets.version
        guard = Guard(redaction, call, offer, redactor, known)
        guards.append(guard)
        outer = HERE.get()  # a tool may call others, and has its own secrets again afterwards
        HERE.set(guard)
        if call.client is not NOBODY:
            call = replace(call, client=guard)
        try:
            arguments = guard.arguments()
            ways = self._ways if call.retry is None else self._ways_again
            outcome = await ways[id(offer)](call, offer, arguments)
            # In here, as these may be the first to find that an outcome cannot be told at all.
            if known == redaction.secrets.version and is_harmless(outcome, redactor, self._short):
                return outcome  # nearly always, and nothing needs to be encoded for it
            clean = guard.promptly(outcome) or await guard.apart(outcome)
            return fit(clean, offer, self.max_result_bytes)
        except asyncio.CancelledError as cancelled:
            if _is_ours():
                raise
            # The tool awaited something that somebody else cancelled: its fault, not the client's.
            outcome = outcome_of(cancelled, call, offer.timeout_s or self.timeout_s)
        except OURS:
            raise
        except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
            outcome = outcome_of(await guard.error(error), call, offer.timeout_s or self.timeout_s)
        finally:
            guard.over = True
            HERE.set(outer)
        clean = guard.promptly(outcome) or await guard.apart(outcome)
        return fit(clean, offer, self.max_result_bytes)

    def allowed(self, call: Call) -> Offer:
        """
        What the call is for, which its caller may use; raises Unknown, InsufficientScope or
        InsufficientAuthentication. Whoever tells what calls would meet asks here, too.
        """
        try:
            offer = self.registry.offer(call.kind, call.name, call.caller)
        except Unknown as unknown:
            # Nothing is called by a long name, and half a secret would not be found in it.
            name = unknown.name if len(unknown.name) <= LONGEST_NAME else ""
            unknown.name = self.redaction.clean(call.caller.tenant_id, name)
            raise
        if offer.scopes:
            call.caller.require(offer.scopes)
        if offer.acr_values or offer.max_age_s is not None:
            call.caller.require_authentication(offer.acr_values, offer.max_age_s, now=self.clock())
        return offer

    def _invoke(self, call: Call, offer: Offer, arguments: Any) -> Awaitable[Outcome]:
        # The clock runs while the tool runs, not while a stage waits for a person.
        limit = offer.timeout_s or self.timeout_s
        work = offer.invoke(self.context_for(call), arguments)
        if limit <= self.grace_s and call.client is NOBODY:
            return Within(limit, work)  # every token is good for that long
        allowed = FOREVER_S if call.lasting else self.allowed_s(call.caller)
        if call.client is NOBODY:
            return Within(limit, work) if limit <= allowed else WhileAllowed(allowed, work)
        attentive = Attentive(limit, allowed, work)
        call.client.timed(attentive)
        return attentive

    def allowed_s(self, caller: TenantContext) -> float:
        """
        Seconds that a call of this caller may hold its connection.

        Whoever lost the right to call must not keep what is said on an open stream; a token within
        its leeway counts as good until now.
        """
        return max(caller.expires_at - self.clock(), 0.0) + self.grace_s


def outcome_of(error: BaseException, call: Call, limit_s: float) -> Outcome:
    """What a call answers that ended with *error*; raises it when the protocol has to answer."""
    if isinstance(error, BaseExceptionGroup) and (needed := all_needed(error)):
        # It asks in tasks of its own, all at once.
        raise needed from None
    if isinstance(error, ToolFailure):
        return Outcome(failure=tellable(error.failure))
    if isinstance(error, AuthError | MissingCapability | ProtocolError | StoreUnavailable):
        raise error
    if isinstance(error, Pending):
        message, after_s = error.message, error.retry_after_s
        return Outcome(failure=Failure("approval_pending", message, retry_after=after_s))
    if isinstance(error, TokenOver):
        return EXPIRED
    if isinstance(error, DeadlinePassed):
        message = f"The {WORDS[call.kind]} did not finish within {limit_s:g} seconds."
        return Outcome(failure=Failure("timeout", message))
    log.error(
        f"{call.kind}_failed",
        request_id=call.request_id,
        offer=call.name,
        correlation=call.correlation,
        exc_info=error,
    )
    message = f"The {WORDS[call.kind]} failed unexpectedly. Reference: {call.request_id}"
    return Outcome(failure=Failure("internal", message))


def composed(stages: Sequence[Stage], invoke: Next) -> Next:
    """*invoke* with these stages around it, the first one outermost."""
    for stage in reversed(stages):
        invoke = _around(stage.__call__, invoke)
    return invoke


def _concerns(stage: Stage, offer: Offer) -> bool:
    judge = getattr(stage, "concerns", None)
    return judge is None or bool(judge(offer))


def _around(stage: Stage, proceed: Next) -> Next:
    # A closure around a bound method: half of what a partial of an object that can be called costs.
    def perform(call: Call, offer: Offer, arguments: Any) -> Awaitable[Outcome]:
        return stage(call, offer, arguments, proceed)

    return perform


def _is_ours() -> bool:
    """Whether the running task itself was asked to stop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
