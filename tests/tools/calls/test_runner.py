"""The steps of a call, in their order, and what becomes of everything that goes wrong in them."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.tools.authoring.pack import Pack
from gatepost.tools.calls.registry import Registry, UnknownTool
from gatepost.tools.calls.runner import Runner
from gatepost.tools.calls.stage import Next, Stage
from gatepost.tools.calls.truncation import truncate
from gatepost.tools.offers.offer import (
    Annotations,
    Call,
    CallContext,
    Effects,
    Offer,
    Outcome,
    Tool,
    ToolFailure,
)
from gatepost.workspace import TenantWorkspace
from gatepost_authz.errors import InsufficientAuthentication, InsufficientScope
from tests.support.endpoint import a_caller
from tests.support.measuring import capture_logs

pack = Pack("steps")
SEEN_CALLS: list[str] = []


@pack.tool(scopes={"files:write", "files:read"})
async def guarded(ctx: CallContext, n: int) -> str:
    """Need scopes and a number."""
    SEEN_CALLS.append("ran")
    return str(n)


@pack.tool(acr_values=("phr",), max_age_s=300)
async def strong(ctx: CallContext) -> str:
    """Need a strong and recent sign-in."""
    return "strong"


@pack.tool()
async def broken(ctx: CallContext) -> str:
    """Fail unexpectedly."""
    raise RuntimeError("the password is hunter2")


@pack.tool()
async def refusing(ctx: CallContext) -> str:
    """Fail in a way the model can act on."""
    raise ToolFailure("not_found", "There is no such invoice.", field="number")


@pack.tool()
async def self_cancelled(ctx: CallContext) -> str:
    """Await a future that other code has cancelled."""
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


@pack.tool()
async def own_timeout(ctx: CallContext) -> str:
    """Run into a timeout of its own."""
    raise TimeoutError


@pack.tool()
async def lying(ctx: CallContext) -> dict[str, int]:
    """Answer something else than it declares."""
    return {"a": "b"}  # type: ignore[dict-item]


@pack.tool()
def threaded(ctx: CallContext) -> str:
    """Block a thread instead of the loop."""
    return threading.current_thread().name


def runner_of(*stages: Any, **options: Any) -> Runner:
    SEEN_CALLS.clear()

    def context_for(call: Call) -> CallContext:
        space = TenantWorkspace(-1, call.caller.tenant_id)
        return CallContext(caller=call.caller, request_id=call.request_id, workspace=space)

    registry = Registry(pack.tools.values(), obtainable=options.pop("obtainable", None))
    return Runner(registry, context_for=context_for, stages=stages, **options)


def call_of(tool: str, arguments: bytes = b"{}", **caller: Any) -> Call:
    granted = frozenset({"files:write", "files:read"})
    return Call(
        caller=a_caller(**{"scopes": granted, **caller}),
        name=tool,
        arguments=arguments,
        request_id="request-9",
    )


async def test_scopes_are_checked_before_arguments() -> None:
    """Without the scopes a caller gets all missing ones and nothing about arguments."""
    with pytest.raises(InsufficientScope) as raised:
        await runner_of().run(call_of("guarded", b'{"wrong":1}', scopes=frozenset()))

    assert raised.value.scopes == ("files:read", "files:write")
    assert SEEN_CALLS == []


async def test_a_stage_sees_the_offers_that_concern_it() -> None:
    """Stages that do not concern a tool cost its calls nothing."""
    met: list[str] = []

    class AboutStage(Stage):
        def concerns(self, offer: Offer) -> bool:
            return offer.name == "threaded"

        async def __call__(self, call: Call, offer: Offer, arguments: Any, proceed: Next) -> Any:
            met.append(call.name)
            return await proceed(call, offer, arguments)

    runner = runner_of(AboutStage())
    for tool in ("threaded", "lying"):
        await runner.run(call_of(tool))
    assert met == ["threaded"]


async def test_a_tool_whose_scopes_cannot_be_obtained_is_unknown() -> None:
    """Gatepost does not even read its arguments."""
    runner = runner_of(obtainable=frozenset())

    for name in ("guarded", "nonexistent"):
        with pytest.raises(UnknownTool):
            await runner.run(call_of(name, b"{}", scopes=frozenset()))


@pytest.mark.parametrize(
    ("sign_in", "enough"),
    [
        ({"acr": "phr", "auth_time": 900}, True),
        ({"acr": "phr", "auth_time": 670}, True),  # 330 s: within the clocks' difference
        ({"acr": "phr", "auth_time": 669}, False),
        ({"acr": "pwd", "auth_time": 900}, False),
        ({"acr": "phr"}, False),
        ({}, False),
    ],
)
async def test_a_strong_tool_needs_a_strong_and_recent_sign_in(
    sign_in: dict[str, Any], enough: bool
) -> None:
    """The challenge names the needed strength and age (RFC 9470)."""
    runner = runner_of(clock=lambda: 1000.0)
    if enough:
        assert (await runner.run(call_of("strong", **sign_in))).failure is None
        return
    with pytest.raises(InsufficientAuthentication) as raised:
        await runner.run(call_of("strong", **sign_in))
    assert (raised.value.acr_values, raised.value.max_age) == (("phr",), 300)


@pytest.mark.parametrize("tool", ["broken", "self_cancelled", "own_timeout", "lying"])
async def test_an_unexpected_error_is_answered_without_detail(tool: str) -> None:
    """The log has the story under the request's id; the client has the id."""
    with capture_logs() as logs:
        outcome = await runner_of().run(call_of(tool))

    assert outcome.failure is not None
    assert outcome.failure.kind == "internal"
    assert "request-9" in outcome.failure.message
    assert "hunter2" not in outcome.failure.message
    assert (logs[0]["request_id"], logs[0]["offer"]) == ("request-9", tool)


async def test_a_failure_the_model_can_act_on_is_passed_on() -> None:
    """Kind, sentence and field, as the tool raised them."""
    outcome = await runner_of().run(call_of("refusing"))

    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.field) == ("not_found", "number")


async def test_a_plain_function_runs_outside_the_event_loop() -> None:
    """A tool that blocks must not block other calls."""
    outcome = await runner_of().run(call_of("threaded"))

    assert outcome.content[0]["text"] != threading.main_thread().name


async def test_stages_run_around_the_tool_in_order() -> None:
    """They get checked calls only; a stage may answer instead of the tool."""

    def stage(name: str, *, answers: bool = False) -> Any:
        async def take_part(call: Call, tool: Tool, arguments: Any, proceed: Next) -> Outcome:
            SEEN_CALLS.append(name)
            if answers:
                raise ToolFailure("denied", "Not today.")
            outcome = await proceed(call, tool, arguments)
            SEEN_CALLS.append(f"after {name}")
            return outcome

        return take_part

    runner = runner_of(stage("outer"), stage("inner"))
    await runner.run(call_of("guarded", b'{"n":1}'))
    assert SEEN_CALLS == ["outer", "inner", "ran", "after inner", "after outer"]

    runner = runner_of(stage("outer"), stage("denying", answers=True))
    outcome = await runner.run(call_of("guarded", b'{"n":1}'))
    assert SEEN_CALLS == ["outer", "denying"]
    assert outcome.failure is not None

    runner = runner_of(stage("outer"))
    await runner.run(call_of("guarded", b'{"n":"x"}'))
    assert SEEN_CALLS == []


TOOL = pack.tools["guarded"]
LYING_TOOL = pack.tools["lying"]


def text(value: str) -> Outcome:
    return Outcome(({"type": "text", "text": value},))


def size(outcome: Outcome) -> int:
    return len(msgspec.json.encode(outcome.content)) + len(
        outcome.failure.message if outcome.failure else ""
    )


@pytest.mark.parametrize(
    "outcome",
    [
        text("x" * 5000),
        text("\x01" * 5000),
        text("ü😀" * 3000),
        Outcome(({"type": "text", "text": "small"}, {"type": "image", "data": "A" * 5000})),
        Outcome(({"type": "text", "text": "small"},), {"rows": ["x" * 5000]}),
        Outcome(tuple({"type": "text", "text": "x" * 300} for _ in range(20))),
    ],
)
def test_an_answer_too_large_is_cut_and_says_so(outcome: Outcome) -> None:
    """It stays valid and within the limit, and its last block says so."""
    fitted = truncate(outcome, TOOL, 1000)

    assert size(fitted) <= 1000
    assert "was cut" in fitted.content[-1]["text"]
    assert fitted.structured is msgspec.UNSET
    assert fitted.failure is None


def test_a_structured_answer_too_large_becomes_a_failure() -> None:
    """Half an object would not satisfy the schema that clients check it against."""
    outcome = Outcome(({"type": "text", "text": "{}"},), msgspec.Raw(b'{"a":"%b"}' % (b"x" * 5000)))
    fitted = truncate(outcome, LYING_TOOL, 1000)

    assert fitted.failure is not None
    assert fitted.failure.kind == "internal"
    assert "was carried out" in fitted.failure.message
    assert "1000" in fitted.failure.message


def test_the_text_of_a_structured_answer_is_cut_first() -> None:
    """The value that clients check is whole; its copy for other clients is cut, and says so."""
    value = b'{"a":"%b"}' % (b"x" * 500)
    outcome = Outcome(({"type": "text", "text": value.decode()},), msgspec.Raw(value))
    fitted = truncate(outcome, LYING_TOOL, 1030)

    assert fitted.failure is None
    assert bytes(fitted.structured) == value
    assert "was cut" in fitted.content[-1]["text"]
    assert size(fitted) <= 1030


def test_a_too_large_answer_of_a_read_asks_for_less() -> None:
    """The read had no effect that could happen twice."""
    reads = replace(LYING_TOOL, effects=Effects(read_only=True))
    outcome = Outcome(({"type": "text", "text": "{}"},), msgspec.Raw(b'{"a":"%b"}' % (b"x" * 5000)))
    failure = truncate(outcome, reads, 1000).failure

    assert failure is not None
    assert failure.kind == "internal"
    assert failure.message.endswith("Ask for less at once.")


def test_a_read_only_hint_does_not_prove_that_a_call_had_no_effect() -> None:
    """The advice depends on the tool's effects; hints may be copied from another product."""
    hinted = replace(LYING_TOOL, annotations=Annotations(read_only_hint=True), effects=Effects())
    outcome = Outcome(({"type": "text", "text": "{}"},), msgspec.Raw(b'{"a":"%b"}' % (b"x" * 5000)))
    failure = truncate(outcome, hinted, 1000).failure

    assert failure is not None
    assert failure.message.startswith("The call was carried out.")


def test_a_long_failure_is_shortened() -> None:
    """The limit of results holds for failures, too."""
    failed = Outcome(failure=ToolFailure("not_found", "x" * 5000).failure)

    assert size(truncate(failed, TOOL, 1000)) <= 1000


@pytest.mark.parametrize("outcome", [text("x" * 900), Outcome((), {"a": 1}), Outcome()])
def test_an_answer_within_the_limit_is_unchanged(outcome: Outcome) -> None:
    """The very same object is returned."""
    assert truncate(outcome, TOOL, 1000) is outcome
