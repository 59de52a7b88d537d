"""2026-07-28 without pages and tasks: the call is held, and its client is shown that it lives."""

from typing import Any

import pytest

from tests.mcp.conftest import MESSAGE, PAGE, DecisionStage, Paid, Verdict, with_decision_stage
from tests.support.endpoint import JSON, META, VERSION, EndpointClient, Header, a_caller, message
from tests.support.endpoint_clients import OpenExchange

VERDICTS: list[tuple[Verdict, str]] = [
    ("approved", "paid 1"),
    ("rejected", "It was rejected."),
    ("expired", "It was expired."),
]


@pytest.fixture
def client(decision_stage: DecisionStage) -> EndpointClient:
    return with_decision_stage(decision_stage, EndpointClient)


def call(
    client: EndpointClient,
    *headers: Header,
    capabilities: Any = None,
    events: bool = True,
    **meta: Any,
) -> OpenExchange:
    """Begin a call of `pay`."""
    request_meta = {
        META + "protocolVersion": VERSION,
        META + "clientCapabilities": capabilities or {},
    }
    named = [("mcp-protocol-version", VERSION), ("mcp-method", "tools/call"), ("mcp-name", "pay")]
    accept = ("accept", "application/json, text/event-stream" if events else "application/json")
    body = message(
        "tools/call", {"name": "pay", "arguments": {}, "_meta": {**request_meta, **meta}}
    )
    return OpenExchange(client, "POST", body, [JSON, accept, *named, *headers], slow=False)


def text(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


@pytest.mark.requirement("A7", "A8", "PR-01")
@pytest.mark.parametrize(("verdict", "words"), VERDICTS)
async def test_a7_progress_names_the_pending_approval(
    client: EndpointClient, decision_stage: DecisionStage, verdict: Verdict, words: str
) -> None:
    """Progress first repeats the approval message, then the tool's reports; it only grows."""
    live = call(client, progressToken="p")
    first, second = (await live.event())[1], (await live.event())[1]
    (await decision_stage.only()).decide(verdict)
    rest = await live.rest()
    notifications = [first, second, *rest[:-1]]
    steps = [notification["params"]["progress"] for notification in notifications]

    assert first["params"]["message"] == second["params"]["message"] == f"{MESSAGE} {PAGE}"
    assert steps == sorted(set(steps))
    assert text(rest[-1]) == words
    if verdict == "approved":
        begun, half = rest[-3:-1]
        assert [notification["params"]["message"] for notification in (begun, half)] == [
            "begun",
            "half",
        ]
        assert half["params"]["total"] - half["params"]["progress"] == 1
    assert bool(Paid.amounts) == (verdict == "approved")


@pytest.mark.requirement("A7")
@pytest.mark.parametrize("capabilities", [{}, {"sampling": {}}, {"elicitation": {"form": {}}}])
async def test_a7_without_a_progress_token_comments_keep_the_stream_alive(
    client: EndpointClient, decision_stage: DecisionStage, capabilities: Any
) -> None:
    """The stream begins at once, with comments that every event parser skips."""
    live = await call(client, capabilities=capabilities).opened()
    request = await decision_stage.only()
    await request.watched_by(1)
    await live.wait_for_sends(3)
    request.decide("approved")
    (answer,) = await live.rest()

    assert live.headers["content-type"] == "text/event-stream"
    assert text(answer) == "paid 1"


@pytest.mark.requirement("A7")
async def test_a7_calls_that_need_no_approval_answer_as_before(
    decision_stage: DecisionStage,
) -> None:
    """Only a call that may have to wait is answered with a stream."""
    client = with_decision_stage(decision_stage, EndpointClient)
    response = await client.call("spend")

    assert response.headers["content-type"] == "application/json"


@pytest.mark.requirement("A7", "A8")
async def test_a7_a_call_waits_no_longer_than_its_token_lasts(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """The call fails and says that its request still waits; with a fresh token it is found."""
    client.caller, client.runner.grace_s = a_caller(expires_at=0), 0.05
    (answer,) = await call(client).rest()

    assert answer["result"]["isError"]
    assert text(answer).startswith(f"{MESSAGE} {PAGE} Try again")
    assert text(answer).endswith("Try again in 7 seconds.")
    (await decision_stage.only()).decide("approved")
    client.caller = a_caller()
    assert text((await client.call("pay")).json) == "paid 1"


@pytest.mark.requirement("A7")
@pytest.mark.usefixtures("short_wait")
async def test_a7_a_client_that_reads_no_events_waits_only_briefly(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """A silent connection would be closed, so such a client gets JSON after a short wait."""
    live = call(client, events=False, progressToken="p")
    await live.over()

    assert live.headers["content-type"] == "application/json"
    assert (await decision_stage.only()).watchers == 0


@pytest.mark.requirement("A7", "T-11")
async def test_t_11_a_disconnect_leaves_the_approval_request_open(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """No watcher stays for the closed connection; the same call made again gets the decision."""
    live = call(client)
    request = await decision_stage.only()
    await request.watched_by(1)
    live.hang_up()
    await live.over()
    assert request.watchers == 0
    request.decide("approved")

    assert Paid.amounts == []
    assert text((await client.call("pay")).json) == "paid 1"


@pytest.mark.requirement("A7")
async def test_a7_a_short_store_outage_does_not_end_the_wait(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """An approver's five minutes are longer than most restarts of a database."""
    live = call(client)
    request = await decision_stage.only()
    await request.watched_by(1)
    request.hiccup()
    await request.watched_by(0)
    await request.watched_by(1)
    request.decide("approved")

    assert text((await live.rest())[-1]) == "paid 1"


@pytest.mark.requirement("A7")
async def test_a7_a_stopping_server_answers_its_waiting_calls(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """A stop does not wait for an approver, and the request is kept."""
    live = call(client)
    await (await decision_stage.only()).watched_by(1)
    client.streams.close()
    (answer,) = await live.rest()

    assert answer["result"]["isError"]
    assert text(answer).startswith(MESSAGE)


@pytest.mark.requirement("A7", "O12")
async def test_a7_a_pending_answer_does_not_use_up_the_idempotency_key(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """The call that is made again with the key runs the tool once."""
    key = ("idempotency-key", "k-1")
    client.caller, client.runner.grace_s = a_caller(expires_at=0), 0.05
    (waits,) = await call(client, key).rest()
    (await decision_stage.only()).decide("approved")
    client.caller = a_caller()
    params = {"name": "pay", "arguments": {}}
    done = [await client.ask("tools/call", params, idempotency_key="k-1") for _ in range(2)]

    assert waits["result"]["isError"]
    assert [text(answer.json) for answer in done] == ["paid 1", "paid 1"]
    assert Paid.amounts == [1]
