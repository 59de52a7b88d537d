"""Spans of calls that no request of their own has: of other tools, in tasks, in batches."""

from typing import Any

from gatepost.telemetry.trace import CURRENT, Tracer
from gatepost.tools.api import Call, Offer, Outcome
from gatepost.tools.runner import Next


class Traced:
    """A stage that is there only where spans are sent."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        """See `Stage`."""
        if CURRENT.get() is not None and not call.depth:
            return await proceed(call, offer, arguments)
        said: dict[str, str | int] = {"gatepost.request_id": call.request_id}
        name: str = call.kind
        if call.kind == "tool":
            name = f"execute_tool {offer.name}"
            said |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": offer.name}
        with self._tracer.span(name, "internal", said=said) as span:
            outcome = await proceed(call, offer, arguments)
            if outcome.failure is not None:
                span.say("gatepost.outcome", outcome.failure.kind)
                span.failed(outcome.failure.kind)
            return outcome
