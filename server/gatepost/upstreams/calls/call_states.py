"""
Model the calls of upstreams as state machines: events go in, actions come out, and nothing is sent
here.

`ModernCall` drives a call of a modern upstream in rounds. `SessionCall` drives a call of a
session-era upstream that is sent once. They work the same whether the caller answers at once or in
its next round: a machine that is created from the kept state continues in the same way.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from gatepost.tools.context.client import Capabilities, InputRequest
from gatepost.upstreams.calls.input_requests import MAX_TOGETHER, Unsupported, input_request
from gatepost.upstreams.calls.round_state import ModernState, UpstreamTarget, encoded
from gatepost.upstreams.connection import (
    FailureReason,
    UpstreamError,
    UpstreamMessage,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.upstream_server import UpstreamServer

MAX_ROUNDS = 16
PARKED_S = 900.0
"""How long a request stays open: as long as the state of a round is valid."""
METHOD_NOT_FOUND, INTERNAL = -32601, -32603

# The actions of a call in rounds.


class Send(msgspec.Struct, frozen=True):
    """Send the same request, with the answers and the upstream's state of the round before."""

    responses: Mapping[str, Any] | None = None
    state: str | None = None


class AskCaller(msgspec.Struct, frozen=True):
    """Ask the caller's client; *state* continues the call if the caller answers in a new round."""

    requests: Mapping[str, InputRequest]
    state: bytes


class Finish(msgspec.Struct, frozen=True):
    """The call is over with this message of the upstream."""

    message: UpstreamResult | UpstreamError


class Refuse(msgspec.Struct, frozen=True):
    """The call ends because the upstream asked for something that it must not ask."""

    sentence: str


RoundAction = Send | AskCaller | Finish | Refuse


class ModernCall:
    """A call of a modern upstream, which may answer with requests and is then called again."""

    def __init__(
        self,
        server: UpstreamServer,
        declared: Capabilities,
        target: UpstreamTarget,
        state: ModernState | None = None,
    ) -> None:
        self._server, self._declared, self._target = server, declared, target
        self._open = state
        self.round = 0 if state is None else state.round

    def begin(self) -> RoundAction:
        """Return the first action of this run."""
        return Send() if self._open is None else self._ask(self._open)

    def answered(self, answers: Mapping[str, Mapping[str, Any]]) -> RoundAction:
        """Handle the answers of the caller's client to all open requests."""
        state, self._open = self._open, None
        if state is None:
            raise ValueError("no request is open")
        responses = {
            upstream_key: answers[own_key] for own_key, upstream_key in state.names.items()
        }
        return Send(responses, state.upstream)

    def received(self, message: UpstreamResult | UpstreamError) -> RoundAction:
        """Handle the answer of the upstream."""
        if isinstance(message, UpstreamError):
            return Finish(message)
        if message.value.get("resultType") != "input_required":
            return Finish(message)
        self.round += 1
        if self.round > MAX_ROUNDS:
            return Refuse(f"{self._server.name} asked for input too often.")
        return self._input_required(message.value)

    def _input_required(self, value: Mapping[str, Any]) -> RoundAction:
        state = value.get("requestState")
        input_requests = value.get("inputRequests") or {}
        if not isinstance(state, str | None) or not isinstance(input_requests, Mapping):
            return Refuse(f"{self._server.name} asked for input in a form that is no MCP.")
        if not input_requests:
            return Send({}, state)
        if len(input_requests) > MAX_TOGETHER:
            return Refuse(f"{self._server.name} asked for more than {MAX_TOGETHER} inputs at once.")
        requests, names = {}, {}
        for number, (upstream_key, request) in enumerate(input_requests.items()):
            own_key = f"upstream-{self.round}-{number}"
            try:
                method, params = str(request["method"]), request.get("params") or {}
                requests[own_key] = input_request(self._server, self._declared, method, params)
            except (Unsupported, TypeError, KeyError, AttributeError):
                return Refuse(
                    f"{self._server.name} asked for input that it may not ask for, or in a form "
                    "that no client can show. Its call was not finished."
                )
            names[own_key] = upstream_key
        self._open = ModernState(self._target, self.round, requests, names, state)
        return self._ask(self._open)

    def _ask(self, state: ModernState) -> RoundAction:
        text = encoded(state)
        if text is None:
            return Refuse(f"{self._server.name} asked for input with a state that is too large.")
        return AskCaller(state.requests, text)


# The steps of a call that is sent once, and its actions.


class InputRequested(msgspec.Struct, frozen=True, tag="asked"):
    """The upstream waits for these answers."""

    requests: dict[str, InputRequest]


class Concluded(msgspec.Struct, frozen=True, tag="result"):
    """The upstream's result."""

    value: dict[str, Any]


class Errored(msgspec.Struct, frozen=True, tag="error"):
    """The upstream's JSON-RPC error."""

    code: int
    message: str
    data: Any = None


EndReason = FailureReason | Literal["expired", "cancelled", "gone"]


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The call ended without an answer of the upstream."""

    reason: EndReason
    message: str = ""
    retry_after_s: float | None = None


ExchangeStep = InputRequested | Concluded | Errored | Ended
LastStep = Concluded | Errored | Ended


class Respond(msgspec.Struct, frozen=True):
    """Answer a request of the upstream."""

    id: int | str
    answer: Mapping[str, Any]


class Forward(msgspec.Struct, frozen=True):
    """Pass a notification on to the caller, if it listens."""

    notification: UpstreamNotification


class StopExchange(msgspec.Struct, frozen=True):
    """Tell the upstream that the call is cancelled, and end the exchange."""

    reason: str


HolderAction = Respond | Forward | StopExchange


class Answer(msgspec.Struct, frozen=True):
    """What the caller's client said to the requests of a step: answers, or why there are none."""

    answers: dict[str, dict[str, Any]] | None = None
    refusal: str = ""
    code: int = METHOD_NOT_FOUND


class SessionCall:
    """
    A call of a session-era upstream, which is sent once: a list of steps that only grows.

    A step is a request to the caller, or the end. `answered(n, …)` answers step *n*. A second
    answer to a step changes nothing, so a repeated round gets the same next step.
    """

    def __init__(self, server: UpstreamServer, declared: Capabilities, now: float) -> None:
        self._server, self._declared = server, declared
        self.steps: list[ExchangeStep] = []
        self._open: dict[str, int | str] = {}
        self._next: list[tuple[int | str, InputRequest]] = []
        self._count = 0
        self._left_s = server.timeout_s
        self._since = self._last_message = now
        self._asked_at = now

    @property
    def over(self) -> bool:
        """Return whether the last step has been taken."""
        return bool(self.steps) and not isinstance(self.steps[-1], InputRequested)

    @property
    def waits(self) -> bool:
        """Return whether a request is open."""
        return bool(self._open)

    def deadline(self) -> float:
        """Return the time at which `tick` must be called."""
        if self.waits:
            return self._asked_at + PARKED_S
        return min(self._since + self._left_s, self._last_message + self._server.idle_s)

    def received(self, message: UpstreamMessage, now: float) -> list[HolderAction]:
        """Handle a message of the upstream."""
        if self.over:
            return []
        self._last_message = now
        if isinstance(message, UpstreamNotification):
            return [Forward(message)]
        if isinstance(message, UpstreamRequest):
            return self._request(message, now)
        self._open, self._next = {}, []
        if isinstance(message, UpstreamError):
            self.steps.append(Errored(message.code, message.message, message.data))
        else:
            self.steps.append(Concluded(dict(message.value)))
        return []

    def answered(self, step: int, answer: Answer, now: float) -> list[HolderAction]:
        """Handle the caller's answer to the request of a step (1 is the first)."""
        if step != len(self.steps) or not self.waits:
            return []
        actions: list[HolderAction] = []
        for key, identity in self._open.items():
            result = None if answer.answers is None else answer.answers.get(key)
            if result is None:
                sentence = answer.refusal or "The client did not answer."
                response: dict[str, Any] = {"error": {"code": answer.code, "message": sentence}}
            else:
                response = {"result": result}
            actions.append(Respond(identity, response))
        self._open = {}
        self._since = self._last_message = now
        self._publish(now)
        return actions

    def failed(self, reason: EndReason, message: str, retry_after_s: float | None = None) -> None:
        """Handle a failure of the exchange."""
        if not self.over:
            self._open, self._next = {}, []
            self.steps.append(Ended(reason, message, retry_after_s))

    def cancelled(self, reason: str) -> list[HolderAction]:
        """Handle the cancellation by the caller, who needs no answer any more."""
        if self.over:
            return []
        self.failed("cancelled", "The call was cancelled.")
        return [StopExchange(reason)]

    def tick(self, now: float) -> list[HolderAction]:
        """End the call if its time is over."""
        if self.over or now < self.deadline():
            return []
        if self.waits:
            self.failed("expired", "The input was not given in time.")
            return [StopExchange("The input was not given in time")]
        silent = now >= self._last_message + self._server.idle_s
        limit_s = self._server.idle_s if silent else self._server.timeout_s
        event = "said nothing for" if silent else "did not finish within"
        self.failed("timeout", f"{self._server.name} {event} {limit_s:g} seconds.")
        return [StopExchange("The call took too long")]

    def _request(self, message: UpstreamRequest, now: float) -> list[HolderAction]:
        try:
            request = input_request(self._server, self._declared, message.method, message.params)
        except Unsupported as refusal:
            error = {"code": METHOD_NOT_FOUND, "message": str(refusal)}
            return [Respond(message.id, {"error": error})]
        self._count += 1
        if self._count > MAX_ROUNDS or len(self._next) >= MAX_TOGETHER:
            error = {"code": INTERNAL, "message": "The client was asked too often."}
            return [Respond(message.id, {"error": error})]
        self._next.append((message.id, request))
        if not self.waits:
            self._publish(now)
        return []

    def _publish(self, now: float) -> None:
        """Make the requests that came in the next step."""
        if not self._next:
            return
        self._left_s -= now - self._since
        step = len(self.steps) + 1
        requests = {}
        for number, (identity, request) in enumerate(self._next):
            key = f"upstream-{step}-{number}"
            requests[key], self._open[key] = request, identity
        self._next, self._asked_at = [], now
        self.steps.append(InputRequested(requests))
