"""Every kind of failure has a row, and every answer stays within the limit and an object."""

import asyncio
import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.rest.responses import TABLE, failed, succeeded
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.authoring.pack import Pack
from gatepost.tools.offers.offer import CallContext, Failure, FailureKind, Outcome
from tests.support.endpoint import EndpointClient, a_caller
from tests.support.endpoint_clients import RestEndpoint


def test_every_kind_of_failure_has_a_status() -> None:
    """A kind without a row would be a 500."""
    assert set(TABLE) == set(get_args(FailureKind)) - {"tool_error"}


RETRY_AFTER_CASES = [
    (None, 30), (0, 1), (0.2, 1), (7, 7), (7.1, 8), (float("nan"), 30), (float("inf"), 30), (-5, 1),
]  # fmt: skip


@pytest.mark.requirement("O5")
@pytest.mark.parametrize(("given_s", "expected_s"), RETRY_AFTER_CASES)
def test_a_wait_is_whole_seconds_and_at_least_one(given_s: float | None, expected_s: int) -> None:
    """RFC 9110 section 10.2.3 knows no fractions, and zero would be a busy loop."""
    reply = failed(Failure("upstream_unavailable", "Down.", retry_after=given_s))

    assert msgspec.json.decode(reply.body)["retry_after"] == expected_s
    assert dict(reply.headers)[b"retry-after"] == str(expected_s).encode()


def test_a_message_with_a_retry_time_is_unchanged() -> None:
    """The seed page's own example says it in the message."""
    reply = failed(Failure("upstream_unavailable", "Retry in 30 seconds.", retry_after=30))

    assert msgspec.json.decode(reply.body)["message"] == "Retry in 30 seconds."


def test_an_error_of_an_upstream_tool_is_a_result() -> None:
    """E12: the tool has run, and its own words are the answer."""
    reply = failed(Failure("tool_error", "no such row"))

    assert reply.status == 200
    assert msgspec.json.decode(reply.body) == {"result": {"error": "no such row"}}


def test_an_outage_of_a_store_is_503_without_its_address() -> None:
    """The caller needs the retry time and not the address of the database."""
    tools = EndpointClient().registry.tools.values()

    async def answers() -> list[Any]:
        client = EndpointClient(tools, stages=[out])
        client.registry.visible = out  # type: ignore[assignment]
        rest = RestEndpoint(client.runner, client.registry)
        called = await rest.call(a_caller(), "echo", {"text": "a"})
        return [called, await rest.tools(a_caller())]

    def out(*_: object) -> Any:
        raise StoreUnavailable("postgresql://user@db.internal")

    for answer in asyncio.run(answers()):
        assert (answer.status, answer.json["error"]) == (503, "unavailable")
        assert answer.json["retry_after"] == 5
        assert answer.headers["retry-after"] == "5"
        assert b"db.internal" not in answer.body


BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=400)),
    st.builds(
        lambda data: {"type": "image", "data": data, "mimeType": "image/png"},
        st.text("AB", max_size=200),
    ),
    st.builds(lambda uri: {"type": "resource_link", "uri": uri, "name": "n"}, st.text(max_size=50)),
)
OUTCOMES = st.builds(
    Outcome,
    content=st.lists(BLOCKS, max_size=30).map(tuple),
    structured=st.just(msgspec.UNSET)
    | st.recursive(
        st.integers(-9, 9) | st.text(max_size=300),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
        max_leaves=20,
    ),
)


@given(OUTCOMES)
def test_a_result_is_always_an_object(outcome: Outcome) -> None:
    """The client reads members, whatever the tool answers."""
    assert isinstance(json.loads(succeeded(outcome).body), dict)


@pytest.mark.requirement("O9")
@given(OUTCOMES, st.integers(1000, 4000))
def test_no_answer_is_larger_than_the_limit(outcome: Outcome, limit: int) -> None:
    """This includes answers at the edge of the limit."""
    pack = Pack("p")

    @pack.tool()
    async def answer(ctx: CallContext) -> Outcome:
        """Answer what the test says."""
        return outcome

    async def called() -> Any:
        client = EndpointClient(pack.tools.values(), max_result_bytes=limit)
        return await RestEndpoint(client.runner, client.registry).call(a_caller(), "answer")

    response = asyncio.run(called())

    assert len(response.body) <= limit
    assert isinstance(response.json, dict)
