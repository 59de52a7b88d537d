"""What `log.level = "debug"` shows of each request, beside the line that the edge writes."""

import time

import msgspec
import structlog
from msgspec import UNSET

from gatepost.mcp.endpoint import Endpoint
from gatepost.mcp.exchange import Answer, Exchange
from gatepost.mcp.jsonrpc import Message, Refused
from gatepost.mcp.line import Line
from gatepost.mcp.params import Params

log = structlog.get_logger("gatepost.mcp")

SHOWN_CHARACTERS = 64


class TalkativeEndpoint(Endpoint):
    """
    An Endpoint that tells of each request: method, id, what it names, duration, outcome.

    Of its own class, so that nobody pays for it who has not asked; never with arguments, which may
    be anybody's secrets.
    """

    async def _request(
        self,
        exchange: Exchange,
        message: Message,
        identity: bytes,
        params: Params,
        problem: Refused | None,
    ) -> Answer | Line | None:
        told = {
            "method": (message.method or "")[:SHOWN_CHARACTERS],
            "id": identity[:SHOWN_CHARACTERS].decode(errors="replace"),
            "request_id": exchange.request_id,
        }
        if params.name is not UNSET:
            told["tool" if message.method == "tools/call" else "named"] = params.name[
                :SHOWN_CHARACTERS
            ]
        log.debug("request_received", **told)
        began = time.perf_counter()
        answer = await super()._request(exchange, message, identity, params, problem)
        duration_ms = round((time.perf_counter() - began) * 1000, 1)
        log.debug("response_made", **told, duration_ms=duration_ms, outcome=outcome_of(answer))
        return answer


def outcome_of(answer: Answer | Line | None) -> str:
    """`success`, `failure` (of a tool), `error` and its code, or `streamed`."""
    if not isinstance(answer, Answer):
        return "streamed"
    told = msgspec.json.decode(answer.body) if answer.body else {}
    if "error" in told:
        return f"error {told['error']['code']}"
    return "failure" if told.get("result", {}).get("isError") else "success"
