"""Spans of calls without a request span of their own: nested calls, tasks, batches."""

from typing import Any

from gatepost.telemetry.trace import CURRENT_SPAN, Tracer
from gatepost.tools.calls.stage import Next, Stage
from gatepost.tools.offers.offer import Call, Offer, Outcome


class TracingStage(Stage):
    """A stage that is present only if spans are exported."""

    before_check = True

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        """Handle the call; implements `Stage`."""
        if CURRENT_SPAN.get() is not None and not call.depth:
            return await proceed(call, offer, arguments)
        attributes: dict[str, str | int] = {"gatepost.request_id": call.request_id}
        name: str = call.kind
        if call.kind == "tool":
            name = f"execute_tool {offer.name}"
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": offer.name}
        with self._tracer.span(name, "internal", attributes=attributes) as span:
            outcome = await proceed(call, offer, arguments)
            if outcome.failure is not None:
                span.set_attribute("gatepost.outcome", outcome.failure.kind)
                span.set_error(outcome.failure.kind)
            return outcome
