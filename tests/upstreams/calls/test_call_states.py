"""The state machines alone, driven by hypothesis: no socket, no clock, no event loop."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gatepost.upstreams.calls.call_states import (
    MAX_ROUNDS,
    PARKED_S,
    Answer,
    AskCaller,
    Concluded,
    Ended,
    ExchangeStep,
    Finish,
    Forward,
    HolderAction,
    InputRequested,
    ModernCall,
    Refuse,
    Respond,
    RoundAction,
    Send,
    SessionCall,
    StopExchange,
)
from gatepost.upstreams.calls.round_state import ModernState, RoundState, UpstreamTarget
from gatepost.upstreams.connection import (
    UpstreamError,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.upstream_server import UpstreamServer

FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
SERVER = UpstreamServer(
    id="1", tenant="acme", name="crm", allow=("elicitation", "roots"), timeout_s=60, idle_s=30
)
CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}, "roots": {}}
TARGET = UpstreamTarget("acme", "1", "tools", "act", "d", "c")
ACCEPT_ANSWER: dict[str, Any] = {"action": "accept", "content": {"ok": True}}


def input_required(keys: list[str], state: str | None) -> UpstreamResult:
    """Return a modern upstream's answer that asks for these inputs."""
    form = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": FORM}}
    value: dict[str, Any] = {
        "resultType": "input_required",
        "inputRequests": dict.fromkeys(keys, form),
    }
    return UpstreamResult(value if state is None else {**value, "requestState": state})


ROUNDS = st.lists(
    st.tuples(
        st.lists(st.text(max_size=8), max_size=3, unique=True),
        st.none() | st.text(max_size=20),
    ),
    max_size=MAX_ROUNDS + 2,
)


def call_actions(rounds: list[tuple[list[str], str | None]], *, anew: bool) -> list[RoundAction]:
    """Return the actions of a call; with *anew* the machine is made again for each round."""
    machine, remaining_rounds, actions = ModernCall(SERVER, CAPABILITIES, TARGET), [*rounds], []
    action = machine.begin()
    while True:
        actions.append(action)
        if isinstance(action, Send):
            last = UpstreamResult({"content": []})
            action = machine.received(
                input_required(*remaining_rounds.pop(0)) if remaining_rounds else last
            )
        elif isinstance(action, AskCaller):
            if anew:
                round_state = msgspec.json.decode(action.state, type=RoundState)
                assert isinstance(round_state, ModernState)
                machine = ModernCall(SERVER, CAPABILITIES, TARGET, round_state)
                assert machine.begin() == action
            action = machine.answered(dict.fromkeys(action.requests, ACCEPT_ANSWER))
        else:
            return actions


@given(ROUNDS)
def test_a_modern_caller_and_a_session_caller_make_the_same_call(
    rounds: list[tuple[list[str], str | None]],
) -> None:
    """A state machine restored from its kept state continues like the original."""
    assert call_actions(rounds, anew=True) == call_actions(rounds, anew=False)


@given(ROUNDS)
def test_each_round_returns_the_upstreams_own_state_and_keys(
    rounds: list[tuple[list[str], str | None]],
) -> None:
    actions = call_actions(rounds, anew=True)
    sent = [action for action in actions if isinstance(action, Send)]
    asked_rounds = rounds[:MAX_ROUNDS]

    assert sent[0] == Send()
    assert [
        ([*(sent_round.responses or {})], sent_round.state) for sent_round in sent[1:]
    ] == asked_rounds
    assert isinstance(actions[-1], Refuse if len(rounds) > MAX_ROUNDS else Finish)


@given(
    st.dictionaries(
        st.text(max_size=5), st.none() | st.integers() | st.text() | st.lists(st.none())
    )
)
def test_a_client_request_of_any_shape_is_refused_or_asked(asked: Any) -> None:
    """No request of an upstream raises an unhandled error."""
    for value in ({"inputRequests": asked}, {"inputRequests": {"a": {"method": asked}}}, asked):
        machine = ModernCall(SERVER, CAPABILITIES, TARGET)
        machine.begin()
        received = machine.received(UpstreamResult({**value, "resultType": "input_required"}))
        assert isinstance(received, Refuse | Send)


class OnceSent(RuleBasedStateMachine):
    """An upstream, a caller that comes and goes, and time, around one call that is sent once."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.call = SessionCall(SERVER, CAPABILITIES, self.now)
        self.ids = 0
        self.responses: list[int | str] = []
        self.stops = 0
        self.before: list[ExchangeStep] = []

    def note(self, actions: list[HolderAction]) -> None:
        for action in actions:
            if isinstance(action, Respond):
                self.responses.append(action.id)
            elif isinstance(action, StopExchange):
                self.stops += 1

    @rule(
        method=st.sampled_from(["elicitation/create", "roots/list", "sampling/createMessage", "x"])
    )
    def asks(self, method: str) -> None:
        self.ids += 1
        params = {"message": "?", "requestedSchema": FORM}
        self.note(self.call.received(UpstreamRequest(self.ids, method, params), self.now))

    @rule()
    def notifies(self) -> None:
        message = UpstreamNotification("notifications/progress", {"progress": 1})
        expected = [] if self.call.over else [Forward(message)]
        assert self.call.received(message, self.now) == expected

    @rule(last=st.sampled_from([UpstreamResult({"a": 1}), UpstreamError(-1, "no")]))
    def answers(self, last: UpstreamResult | UpstreamError) -> None:
        self.note(self.call.received(last, self.now))
        assert self.call.over

    @rule(step=st.integers(0, 20), refuses=st.booleans())
    def caller_answers(self, step: int, refuses: bool) -> None:
        responses = None if refuses else {f"upstream-{step}-{n}": ACCEPT_ANSWER for n in range(8)}
        was_open = self.call.waits and step == len(self.call.steps)
        before = len(self.responses)
        self.note(self.call.answered(step, Answer(responses), self.now))
        assert (len(self.responses) > before) is was_open

    @rule(seconds=st.sampled_from([1.0, 29.0, 31.0, 61.0, PARKED_S]))
    def time_passes(self, seconds: float) -> None:
        waits, was_over = self.call.waits, self.call.over
        due = not was_over and self.now + seconds >= self.call.deadline()
        self.now += seconds
        self.note(self.call.tick(self.now))
        if due:
            last = self.call.steps[-1]
            assert isinstance(last, Ended)
            assert last.reason == ("expired" if waits else "timeout")

    @rule()
    def breaks(self) -> None:
        self.call.failed("outcome_unknown", "broken")
        assert self.call.over

    @precondition(lambda self: self.ids > 1)
    @rule()
    def is_cancelled(self) -> None:
        self.note(self.call.cancelled("left"))
        assert self.call.over

    @invariant()
    def holds(self) -> None:
        steps = self.call.steps
        assert steps[: len(self.before)] == self.before, "a step never changes"
        assert all(isinstance(step, InputRequested) for step in steps[:-1]), (
            "only the last step is an end"
        )
        assert len(self.responses) == len(set(self.responses)), "no question is answered twice"
        assert self.stops <= 1
        assert not (self.call.over and self.call.waits)
        self.before = [*steps]


OnceSent.TestCase.settings = settings(stateful_step_count=30)
TestOnceSent = OnceSent.TestCase


def test_waiting_for_a_person_does_not_count_against_the_timeout() -> None:
    """A question of 14 minutes does not count against the call's 60 seconds."""
    call = SessionCall(SERVER, CAPABILITIES, 0.0)
    call.received(UpstreamRequest(1, "roots/list", {}), 20.0)
    assert call.deadline() == 20.0 + PARKED_S

    call.answered(1, Answer({"upstream-1-0": {"roots": []}}), 20.0 + 840)
    assert call.deadline() == 20.0 + 840 + SERVER.idle_s
    call.received(UpstreamNotification("notifications/progress", {}), 880.0)
    assert call.deadline() == 20.0 + 840 + 40.0

    call.received(UpstreamResult({"a": 1}), 890.0)
    assert call.steps[-1] == Concluded({"a": 1})
