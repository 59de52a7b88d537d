"""Collect the answers of a batch within limits of time and size."""

from gatepost.mcp.jsonrpc import RATE_LIMITED, JsonRpcError
from gatepost.mcp.responses import ACCEPTED, ExchangeResponse
from gatepost.tools.calls.runner import Runner
from gatepost_authz.caller import TenantContext

BATCH_S = 60.0
"""How long after the arrival of a batch its last request may start."""

TOO_LONG = JsonRpcError(
    RATE_LIMITED, "Not started: earlier requests of the batch took too long. Send it again."
)
TOO_LARGE = JsonRpcError(
    RATE_LIMITED, "Not started: the earlier answers of the batch are too large. Send it again."
)


class BatchAnswers:
    """
    The answers of a batch so far.

    They stay in memory until the last one is complete. No limit of unread answers counts them
    before. Therefore no further request starts once they have reached the maximum size of one
    answer.
    """

    def __init__(self, runner: Runner, caller: TenantContext) -> None:
        self._clock, self._most_bytes = runner.clock, runner.max_result_bytes
        self._until = runner.clock() + min(BATCH_S, runner.allowed_s(caller))
        self._answers: list[bytes] = []
        self._size = 0

    def add(self, answer: bytes | None) -> None:
        """Add the answer to the next message; None if it has none."""
        if answer is not None:
            self._answers.append(answer)
            self._size += len(answer)

    def check(self) -> None:
        """Raise JsonRpcError unless the next request may start."""
        if self._clock() >= self._until:
            raise TOO_LONG
        if self._size >= self._most_bytes:
            raise TOO_LARGE

    def response(self) -> ExchangeResponse:
        """Return all answers; 202 if there are none."""
        if not self._answers:
            return ACCEPTED
        return ExchangeResponse(200, b"[" + b",".join(self._answers) + b"]")
