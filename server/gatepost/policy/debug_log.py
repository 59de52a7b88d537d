"""The log event of each call at `log.level = "debug"`, for every protocol."""

import logging
import time
from typing import Any

from gatepost.tools.calls.stage import Next, Stage
from gatepost.tools.offers.offer import Call, Offer, Outcome, ToolFailure

log = logging.getLogger("gatepost.calls")


class DebugStage(Stage):
    """Log the outcome and the duration of each call; present only at the level `debug`."""

    before_check = True

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        """Handle the call; implements `Stage`."""
        began = time.perf_counter()
        result = "cancelled or refused"
        try:
            outcome = await proceed(call, offer, arguments)
            result = "success" if outcome.failure is None else outcome.failure.kind
            return outcome
        except ToolFailure as failed:
            result = failed.failure.kind
            raise
        finally:
            log.debug(
                "call_completed",
                extra={
                    "kind": call.kind,
                    "offer": offer.name,
                    "tenant": call.caller.tenant_id,
                    "request_id": call.request_id,
                    "correlation": call.correlation,
                    "duration_ms": round((time.perf_counter() - began) * 1000, 1),
                    "outcome": result,
                },
            )
