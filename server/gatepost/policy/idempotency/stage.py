"""A retried call gets the first outcome and runs its tool once."""

from collections.abc import Awaitable
from typing import Any

from gatepost.execution.cpu_thread import in_cpu_thread
from gatepost.policy.idempotency.execution import RunningCalls
from gatepost.policy.idempotency.idempotency_record import (
    DAY_S,
    KEPT_S,
    IdempotentWork,
    RecordTemplate,
    may_repeat,
    only_reads,
    template_of,
)
from gatepost.tools.calls.redacted_call import RedactedCall
from gatepost.tools.calls.redaction import Redaction
from gatepost.tools.calls.stage import Next, Stage
from gatepost.tools.offers.offer import Call, IdempotencyKey, Offer, Outcome, Tool
from gatepost.tools.schemas.argument_size import LONG_BYTES


class IdempotencyStage(Stage):
    """
    The stage around rate limits, approval and the tool.

    Only what an invoked tool returned is stored, so a refused call leaves its key free. Calls
    without an idempotency key pass unchanged.
    """

    for_retries = True

    def __init__(
        self,
        runs: RunningCalls,
        *,
        timeout_s: float,
        max_result_bytes: int,
        kept_s: float = DAY_S,
        redaction: Redaction | None = None,
    ) -> None:
        self._runs = runs
        self._redaction = redaction or Redaction()
        self._timeout_s = timeout_s
        self._max_result_bytes = max_result_bytes
        self._kept_s = KEPT_S | {"idempotency": kept_s}

    def __call__(
        self, call: Call, offer: Offer, arguments: Any, proceed: Next
    ) -> Awaitable[Outcome]:
        """Handle the call; implements `Stage`."""
        idempotency_key = call.idempotency_key
        if idempotency_key is None or not isinstance(offer, Tool):
            return proceed(call, offer, arguments)
        if only_reads(offer, arguments):
            # A caller that reads again wants the current value, and stored outcomes of read-only
            # calls would only fill the disk.
            return proceed(call, offer, arguments)
        if len(call.arguments) > LONG_BYTES:
            return self._hash_and_join(call, offer, idempotency_key, arguments, proceed)
        template = template_of(call.caller, offer, idempotency_key, call.arguments, self._kept_s)
        return self._join(call, offer, arguments, proceed, template)

    async def _hash_and_join(
        self,
        call: Call,
        offer: Tool,
        idempotency_key: IdempotencyKey,
        arguments: Any,
        proceed: Next,
    ) -> Outcome:
        # Hashed in a thread, so that other calls are served meanwhile.
        template = await in_cpu_thread(
            call.caller,
            template_of,
            call.caller,
            offer,
            idempotency_key,
            call.arguments,
            self._kept_s,
        )
        return await self._join(call, offer, arguments, proceed, template)

    async def _join(
        self, call: Call, offer: Tool, arguments: Any, proceed: Next, template: RecordTemplate
    ) -> Outcome:
        work = IdempotentWork(
            call,
            offer,
            arguments,
            proceed,
            repeatable=may_repeat(offer, arguments),
            limit_s=offer.timeout_s or self._timeout_s,
            max_result_bytes=self._max_result_bytes,
            redacted=RedactedCall(self._redaction, call, offer),
        )
        outcome, _ = await self._runs.join(work, template)
        return outcome
