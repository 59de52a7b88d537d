"""What `log.level = "debug"` shows of each call, whichever protocol brought it."""

import time
from typing import Any

import structlog

from gatepost.tools.api import Call, Offer, Outcome, ToolFailure
from gatepost.tools.runner import Next

log = structlog.get_logger("gatepost.calls")


class Debug:
    """Tells how each call ended and how long it took; a stage that is there only when asked for."""

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        """See `Stage`."""
        began = time.perf_counter()
        ended = "cancelled or refused"
        try:
            outcome = await proceed(call, offer, arguments)
            ended = "success" if outcome.failure is None else outcome.failure.kind
            return outcome
        except ToolFailure as failed:
            ended = failed.failure.kind
            raise
        finally:
            log.debug(
                "call_completed",
                kind=call.kind,
                offer=offer.name,
                tenant=call.caller.tenant_id,
                request_id=call.request_id,
                correlation=call.correlation,
                duration_ms=round((time.perf_counter() - began) * 1000, 1),
                outcome=ended,
            )
