"""2026-07-28: a client that opens pages is shown where it is decided, and calls again."""

import asyncio
from typing import Any

import pytest

from gatepost.mcp import client as mcp_client
from tests.mcp.conftest import MESSAGE, PAGE, DecisionStage, Paid, Verdict, with_decision_stage
from tests.support.client_requests import call_with_responses, input_requests_of, next_round
from tests.support.endpoint import EndpointClient, Response

PAGES = {"elicitation": {"form": {}, "url": {}}}
ACCEPT_ANSWER = {"action": "accept"}


@pytest.fixture
def client(decision_stage: DecisionStage) -> EndpointClient:
    return with_decision_stage(decision_stage, EndpointClient)


def key_of(response: Response) -> str:
    (key,) = input_requests_of(response)
    return key


def answer_of(response: Response) -> Any:
    """Return the result of a call, answered as events or as JSON."""
    if response.headers["content-type"] == "text/event-stream":
        return response.events[-1]["result"]
    return response.json["result"]


def failure(response: Response) -> str:
    result = answer_of(response)
    assert result["isError"], result
    return str(result["content"][0]["text"])


async def first_round(client: EndpointClient) -> Response:
    return await call_with_responses(client, "pay", capabilities=PAGES)


async def second_round(
    client: EndpointClient, before: Response, answer: Any = ACCEPT_ANSWER
) -> Response:
    state = answer_of(before)["requestState"]
    (key,) = answer_of(before)["inputRequests"]
    responses = {} if answer is None else {key: answer}
    return await call_with_responses(
        client, "pay", capabilities=PAGES, inputResponses=responses, requestState=state
    )


@pytest.mark.requirement("A7", "E-05", "M-02", "M-09")
async def test_a7_the_answer_is_the_page_and_no_call_keeps_waiting(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """The answer has the approval message and the page's address; the tool has not run."""
    requests = input_requests_of(await first_round(client))

    (client_request,) = requests.values()
    assert client_request["method"] == "elicitation/create"
    assert client_request["params"] == {"mode": "url", "message": MESSAGE, "url": PAGE}
    assert (await decision_stage.only()).watchers == 0
    assert Paid.amounts == []


@pytest.mark.requirement("A7", "A8", "E-14")
@pytest.mark.parametrize("while_held", [True, False])
@pytest.mark.parametrize(
    ("verdict", "words"),
    [("approved", "paid 1"), ("rejected", "It was rejected."), ("expired", "It was expired.")],
)
async def test_a7_the_next_round_has_the_decision(
    client: EndpointClient,
    decision_stage: DecisionStage,
    verdict: Verdict,
    words: str,
    *,
    while_held: bool,
) -> None:
    """The approver decides before the client calls again or while that call waits."""
    before = await first_round(client)
    request = await decision_stage.only()
    if while_held:
        work = asyncio.create_task(second_round(client, before))
        await request.watched_by(1)
        request.decide(verdict)
        response = await work
    else:
        request.decide(verdict)
        response = await second_round(client, before)

    assert answer_of(response)["content"][0]["text"] == words
    assert Paid.amounts == ([1] if verdict == "approved" else [])


@pytest.mark.requirement("A7", "E-14", "K-11")
@pytest.mark.parametrize(
    "answer", [ACCEPT_ANSWER, {"action": "accept", "content": {"ok": True}}, None]
)
@pytest.mark.usefixtures("short_wait")
async def test_a7_a_clients_answer_to_the_page_is_not_an_approval(
    client: EndpointClient, answer: Any
) -> None:
    """An opened page is no decision, so each round asks again with a new key."""
    response = await first_round(client)
    keys = [key_of(response)]
    for _ in range(40):  # more than a tool may ask
        response = await second_round(client, response, answer)
        keys += answer_of(response)["inputRequests"]

    assert len(set(keys)) == 41
    assert Paid.amounts == []


@pytest.mark.requirement("A7", "E-12")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a7_declining_the_page_ends_the_wait(
    client: EndpointClient, decision_stage: DecisionStage, action: str
) -> None:
    """The call fails; its request stays, and the same call finds it again."""
    response = await second_round(client, await first_round(client), {"action": action})

    assert failure(response).startswith(f"{MESSAGE} {PAGE} Try again")
    (await decision_stage.only()).decide("approved")
    assert answer_of(await first_round(client))["content"][0]["text"] == "paid 1"


@pytest.mark.requirement("A7", "E-12")
async def test_a7_declining_the_page_does_not_undo_an_approval(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """A call that was approved before the client declined still runs."""
    before = await first_round(client)
    (await decision_stage.only()).decide("approved")
    await second_round(client, before, {"action": "decline"})

    assert Paid.amounts == [1]


@pytest.mark.requirement("M-11")
@pytest.mark.parametrize("answer", ["yes", {"action": "approved"}, {}])
async def test_m_11_a_malformed_answer_is_refused(client: EndpointClient, answer: Any) -> None:
    """The error is that of any other round."""
    response = await second_round(client, await first_round(client), answer)

    assert response.error == (400, -32602)


@pytest.mark.requirement("M-06", "M-07")
async def test_m_07_a_state_counts_only_for_its_own_call(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """With other arguments it is refused, and so is an invented state."""
    before = await first_round(client)

    other = await next_round(client, "pay", before, {key_of(before): ACCEPT_ANSWER}, {"amount": 5})
    forged = await call_with_responses(client, "pay", capabilities=PAGES, requestState="x" * 80)

    assert other.error == forged.error == (400, -32602)
    assert len(decision_stage.requests) == 1


@pytest.mark.requirement("PR-01", "A7")
async def test_pr_01_a_client_with_a_progress_token_learns_that_its_call_waits(
    client: EndpointClient, decision_stage: DecisionStage
) -> None:
    """Progress grows over the waiting and the work together."""
    before = await first_round(client)
    request = await decision_stage.only()
    state = answer_of(before)["requestState"]
    work = asyncio.create_task(
        call_with_responses(
            client, "pay", capabilities=PAGES, requestState=state, meta={"progressToken": "p"}
        )
    )
    await request.watched_by(1)
    request.decide("approved")
    *notifications, answer = (await work).events
    steps = [notification["params"]["progress"] for notification in notifications]

    assert [notification["params"]["message"] for notification in notifications] == [
        f"{MESSAGE} {PAGE}",
        "begun",
        "half",
    ]
    assert steps == sorted(set(steps))
    assert answer["result"]["content"][0]["text"] == "paid 1"


async def test_ten_rounds_are_longer_than_the_time_of_an_approval(client: EndpointClient) -> None:
    """Clients accept ten rounds of input requests."""
    assert 10 * mcp_client.HOLD_S > 300
    assert mcp_client.HOLD_S < 60
