"""What a tool keeps for its next run: sealed, bounded, and given back to the same call alone."""

import pytest

from gatepost import CallContext, Elicitation, Pack
from gatepost.tools.context.client import MAX_KEPT_BYTES, InputNeeded, all_needed
from tests.support.client_requests import (
    accepted_form,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import EndpointClient

PACK = Pack("kept")
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
SECRET = "kept-for-the-next-run"  # no secret, a marker that must not be seen


@PACK.tool()
async def keep(ctx: CallContext, size: int = 0) -> str:
    """Ask twice, and count the runs in what is kept."""
    runs = len(ctx.client.previous_state.splitlines())
    state = (f"{SECRET}\n" * (runs + 1)).encode() + b"x" * size
    for key in ("first", "second"):
        await ctx.client.request({key: Elicitation(key, FORM).request}, state=state)
    return f"after {runs} runs"


async def test_each_run_gets_the_state_that_the_previous_run_kept() -> None:
    client = EndpointClient(PACK.tools.values())
    first = await call_with_responses(client, "keep")
    second = await next_round(client, "keep", first, {"first": accepted_form(ok=True)})
    third = await next_round(client, "keep", second, {"second": accepted_form(ok=True)})

    assert [*input_requests_of(first)] == ["first"]
    assert [*input_requests_of(second)] == ["second"]
    assert SECRET not in first.body.decode() + second.body.decode()
    assert result_text(third) == "after 2 runs"


async def test_a_call_without_a_request_state_starts_without_kept_state() -> None:
    client = EndpointClient(PACK.tools.values())
    for _ in range(2):
        first = await call_with_responses(client, "keep")
        last = await next_round(
            client,
            "keep",
            first,
            {"first": accepted_form(ok=True), "second": accepted_form(ok=True)},
        )
        assert [*input_requests_of(last)] == ["second"]


async def test_the_size_of_a_kept_state_is_bounded() -> None:
    client = EndpointClient(PACK.tools.values())

    fits = await call_with_responses(client, "keep", {"size": MAX_KEPT_BYTES // 2})
    large = await call_with_responses(client, "keep", {"size": MAX_KEPT_BYTES})

    assert input_requests_of(fits)
    assert large.json["result"]["isError"]


@pytest.mark.parametrize(("states", "expected"), [([b"", b""], b""), ([b"", b"a"], b"a")])
def test_only_one_of_two_simultaneous_requests_may_keep_a_state(
    states: list[bytes], expected: bytes
) -> None:
    group = BaseExceptionGroup("", [InputNeeded({}, state) for state in states])
    merged = all_needed(group)
    assert merged is not None
    assert merged.state == expected

    assert (
        all_needed(BaseExceptionGroup("", [InputNeeded({}, b"a"), InputNeeded({}, b"b")])) is None
    )
