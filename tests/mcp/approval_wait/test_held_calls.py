"""2026-07-28 without pages and tasks: the call is held, and its client is shown that it lives."""

from typing import Any

import pytest

from tests.mcp.conftest import MESSAGE, PAGE, DecisionStage, Paid, Verdict, with_decisions
from tests.support.endpoint import JSON, META, VERSION, EndpointClient, Header, a_caller, message
from tests.support.endpoint_clients import OpenExchange

VERDICTS: list[tuple[Verdict, str]] = [
    ("approved", "paid 1"),
    ("rejected", "It was rejected."),
    ("expired", "It was expired."),
]


@pytest.fixture
def client(decisions: DecisionStage) -> EndpointClient:
    return with_decisions(decisions, EndpointClient)


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
async def test_a7_progress_says_what_is_waited_for(
    client: EndpointClient, decisions: DecisionStage, verdict: Verdict, words: str
) -> None:
    """
    Notifications with the client's token repeat what the call waits for, then tell the work;
    progress grows.
    """
    live = call(client, progressToken="p")
    first, second = (await live.event())[1], (await live.event())[1]
    (await decisions.only()).decide(verdict)
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
async def test_a7_without_a_token_it_sees_that_the_call_lives(
    client: EndpointClient, decisions: DecisionStage, capabilities: Any
) -> None:
    """The answer begins at once, with comments that every reader of events skips."""
    live = await call(client, capabilities=capabilities).opened()
    request = await decisions.only()
    await request.watched_by(1)
    await live.took(3)
    request.decide("approved")
    (answer,) = await live.rest()

    assert live.headers["content-type"] == "text/event-stream"
    assert text(answer) == "paid 1"


@pytest.mark.requirement("A7")
async def test_a7_calls_that_need_no_approval_answer_as_before(decisions: DecisionStage) -> None:
    """Only a call that may have to wait is answered with a stream."""
    client = with_decisions(decisions, EndpointClient)
    response = await client.call("spend")

    assert response.headers["content-type"] == "application/json"


@pytest.mark.requirement("A7", "A8")
async def test_a7_a_call_waits_no_longer_than_its_token_lasts(
    client: EndpointClient, decisions: DecisionStage
) -> None:
    """The call fails and says that its request still waits; with a fresh token it is found."""
    client.caller, client.runner.grace_s = a_caller(expires_at=0), 0.05
    (answer,) = await call(client).rest()

    assert answer["result"]["isError"]
    assert text(answer).startswith(f"{MESSAGE} {PAGE} Try again")
    assert text(answer).endswith("Try again in 7 seconds.")
    (await decisions.only()).decide("approved")
    client.caller = a_caller()
    assert text((await client.call("pay")).json) == "paid 1"


@pytest.mark.requirement("A7")
@pytest.mark.usefixtures("hasty")
async def test_a7_who_reads_no_events_waits_for_a_moment(
    client: EndpointClient, decisions: DecisionStage
) -> None:
    """Nothing could show it that the call lives, and a silent minute is the end of connections."""
    live = call(client, events=False, progressToken="p")
    await live.over()

    assert live.headers["content-type"] == "application/json"
    assert (await decisions.only()).watchers == 0


@pytest.mark.requirement("A7", "T-11")
async def test_t_11_who_hangs_up_leaves_its_request_behind(
    client: EndpointClient, decisions: DecisionStage
) -> None:
    """No watcher stays for the closed connection; the same call made again finds the decision."""
    live = call(client)
    request = await decisions.only()
    await request.watched_by(1)
    live.hang_up()
    await live.over()
    assert request.watchers == 0
    request.decide("approved")

    assert Paid.amounts == []
    assert text((await client.call("pay")).json) == "paid 1"


@pytest.mark.requirement("A7")
async def test_a7_a_store_that_is_away_for_a_moment_ends_no_waiting(
    client: EndpointClient, decisions: DecisionStage
) -> None:
    """A person's five minutes are longer than most restarts of a database."""
    live = call(client)
    request = await decisions.only()
    await request.watched_by(1)
    request.hiccup()
    await request.watched_by(0)
    await request.watched_by(1)
    request.decide("approved")

    assert text((await live.rest())[-1]) == "paid 1"


@pytest.mark.requirement("A7")
async def test_a7_a_server_that_stops_sends_its_callers_elsewhere(
    client: EndpointClient, decisions: DecisionStage
) -> None:
    """A stop does not wait for a person, and the request is kept."""
    live = call(client)
    await (await decisions.only()).watched_by(1)
    client.streams.close()
    (answer,) = await live.rest()

    assert answer["result"]["isError"]
    assert text(answer).startswith(MESSAGE)


@pytest.mark.requirement("A7", "O12")
async def test_a7_a_retry_key_is_not_spent_on_waiting(
    client: EndpointClient, decisions: DecisionStage
) -> None:
    """It goes with the call that is made again, which is done once."""
    key = ("idempotency-key", "k-1")
    client.caller, client.runner.grace_s = a_caller(expires_at=0), 0.05
    (waits,) = await call(client, key).rest()
    (await decisions.only()).decide("approved")
    client.caller = a_caller()
    params = {"name": "pay", "arguments": {}}
    done = [await client.ask("tools/call", params, idempotency_key="k-1") for _ in range(2)]

    assert waits["result"]["isError"]
    assert [text(answer.json) for answer in done] == ["paid 1", "paid 1"]
    assert Paid.amounts == [1]
