"""The older revisions: the call's stream stays open, and tells what is waited for."""

from typing import Any

import pytest

from tests.mcp.conftest import MESSAGE, PAGE, DecisionStage, Paid, Verdict, with_decision_stage
from tests.support.endpoint import a_caller, message
from tests.support.endpoint_clients import EndpointPair, OpenExchange

VERSIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]
PAGES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
VERDICTS: list[tuple[Verdict, str]] = [
    ("approved", "paid 1"),
    ("rejected", "It was rejected."),
    ("expired", "It was expired."),
]


async def opened_pair(
    decision_stage: DecisionStage, version: str = "2025-11-25", **declared: Any
) -> EndpointPair:
    return await with_decision_stage(decision_stage, EndpointPair, version=version).open(**declared)


def call_without_progress(pair: EndpointPair, identity: Any = 7) -> OpenExchange:
    """Send a call whose client did not ask for progress."""
    params = {"name": "pay", "arguments": {}}
    return pair.post(pair.one, message("tools/call", params, identity=identity))


def text(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


@pytest.mark.requirement("A7", "A8", "PR-01")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("verdict", "words"), VERDICTS)
async def test_a7_progress_names_the_pending_approval(
    decision_stage: DecisionStage, version: str, verdict: Verdict, words: str
) -> None:
    """Progress shows the approval message first and only grows; the answer ends the stream."""
    pair = await opened_pair(decision_stage, version)
    live = pair.call(pair.one, "pay")
    first = (await live.event())[1]
    (await decision_stage.only()).decide(verdict)
    rest = await live.rest()
    steps = [notification["params"]["progress"] for notification in (first, *rest[:-1])]

    assert first["params"]["message"] == f"{MESSAGE} {PAGE}"
    assert steps == sorted(set(steps))
    assert text(rest[-1]) == words
    assert Paid.amounts == ([1] if verdict == "approved" else [])


@pytest.mark.requirement("A7")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a7_without_a_progress_token_comments_keep_the_stream_alive(
    decision_stage: DecisionStage, version: str
) -> None:
    """The response head comes at once, and a comment now and then."""
    pair = await opened_pair(decision_stage, version)
    live = await call_without_progress(pair).opened()
    await live.wait_for_sends(3)
    (await decision_stage.only()).decide("approved")

    assert [text(event) for event in await live.rest()] == ["paid 1"]


@pytest.mark.requirement("A7", "E-05", "E-15")
async def test_a7_a_client_with_url_elicitation_is_sent_the_page(
    decision_stage: DecisionStage,
) -> None:
    """After the decision, the client is told that the page is no longer needed."""
    pair = await opened_pair(decision_stage, **PAGES)
    live = call_without_progress(pair)
    request = (await live.event())[1]
    (await decision_stage.only()).decide("approved")
    rest = await live.rest()

    assert request["method"] == "elicitation/create"
    assert request["params"].pop("elicitationId")
    assert request["params"] == {"mode": "url", "message": MESSAGE, "url": PAGE}
    taken_back, complete, answer = rest
    assert taken_back["method"] == "notifications/cancelled"
    assert taken_back["params"]["requestId"] == request["id"]
    assert complete["method"] == "notifications/elicitation/complete"
    assert text(answer) == "paid 1"


@pytest.mark.requirement("A7", "E-14", "E-12")
@pytest.mark.parametrize(
    "member",
    [
        {"result": {"action": "accept"}},
        {"result": {"action": "accept", "content": {"approved": True}}},
        {"result": {"action": "approved"}},
        {"error": {"code": -32603, "message": "no browser"}},
        {"error": {"code": -1, "message": "rejected"}},
        {"result": "yes"},
    ],
)
async def test_a7_a_clients_answer_to_the_page_is_not_an_approval(
    decision_stage: DecisionStage, member: Any
) -> None:
    """An error at opening the page does not fail the call, either: it waits for the decision."""
    pair = await opened_pair(decision_stage, **PAGES)
    live = call_without_progress(pair)
    client_request = (await live.event())[1]
    request = await decision_stage.only()
    before = live.taken
    assert await pair.answer(pair.two, client_request["id"], **member) == 202
    await live.wait_for_sends(before + 3)
    assert (Paid.amounts, request.watchers) == ([], 1)
    request.decide("approved")

    assert text((await live.rest())[-1]) == "paid 1"


@pytest.mark.requirement("A7", "E-12")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a7_declining_the_page_ends_the_wait(
    decision_stage: DecisionStage, action: str
) -> None:
    """The call fails; its request stays, and the same call finds it again."""
    pair = await opened_pair(decision_stage, **PAGES)
    live = call_without_progress(pair)
    request = (await live.event())[1]
    await pair.answer(pair.two, request["id"], result={"action": action})
    (answer,) = await live.rest()

    assert answer["result"]["isError"]
    assert text(answer).startswith(f"{MESSAGE} {PAGE} Try again")
    (await decision_stage.only()).decide("approved")
    paid = await pair.one.within(
        pair.session, message("tools/call", {"name": "pay", "arguments": {}})
    )
    assert text(paid.json) == "paid 1"


@pytest.mark.requirement("A7", "E-01", "L-04")
@pytest.mark.parametrize(
    ("version", "declared"),
    [("2025-06-18", PAGES), ("2025-03-26", PAGES), ("2025-11-25", {"elicitation": {}})],
)
async def test_e_01_a_client_without_url_elicitation_is_sent_no_page(
    decision_stage: DecisionStage, version: str, declared: Any
) -> None:
    """The client reads the page's address in progress notifications."""
    pair = await opened_pair(decision_stage, version, **declared)
    live = pair.call(pair.one, "pay")
    first = (await live.event())[1]
    (await decision_stage.only()).decide("approved")

    assert first["method"] == "notifications/progress"
    assert {event.get("method") for event in await live.rest()} <= {"notifications/progress", None}


@pytest.mark.requirement("A7", "S-10")
async def test_a7_a_broken_connection_loses_neither_the_answer_nor_the_request(
    decision_stage: DecisionStage,
) -> None:
    """The client resumes the stream or calls again, at another process."""
    pair = await opened_pair(decision_stage)
    live = pair.call(pair.one, "pay")
    last, _ = await live.event()
    live.hang_up()
    again = pair.call(pair.two, "pay", identity=8)
    await again.event()
    request = await decision_stage.only()
    await request.watched_by(2)
    resumed = pair.resume(pair.two, last)
    request.decide("rejected")
    streams = [await resumed.rest(), await again.rest()]

    assert [text(stream[-1]) for stream in streams] == ["It was rejected."] * 2
    assert [stream[-1]["id"] for stream in streams] == [7, 8]


@pytest.mark.requirement("CX-01", "A7")
async def test_cx_01_cancelling_a_waiting_call_ends_it_and_keeps_its_request(
    decision_stage: DecisionStage,
) -> None:
    """Another process may take the cancellation."""
    pair = await opened_pair(decision_stage, **PAGES)
    live = call_without_progress(pair)
    await live.event()
    request = await decision_stage.only()
    await request.watched_by(1)
    await pair.cancel(pair.two, 7)
    await live.over()

    assert (request.watchers, request.verdict) == (0, None)


@pytest.mark.requirement("A7", "DE-09")
@pytest.mark.usefixtures("short_wait")
async def test_a7_a_batch_or_a_json_answer_waits_only_briefly(
    decision_stage: DecisionStage,
) -> None:
    """Neither can be a stream, so each fails with what to do."""
    pair = await opened_pair(decision_stage, "2025-03-26")
    call = message("tools/call", {"name": "pay", "arguments": {}})
    ping = message("ping", identity=8)
    batch = await pair.one.within(pair.session, b"[" + call + b"," + ping + b"]")
    single = await pair.one.within(pair.session, call, ("accept", "application/json"))

    waits, pong = batch.json
    for answer in (waits, single.json):
        assert answer["result"]["isError"]
        assert text(answer).startswith(f"{MESSAGE} {PAGE} Try again")
    assert pong["id"] == 8


@pytest.mark.requirement("A7")
async def test_a7_a_call_waits_no_longer_than_its_token_lasts(
    decision_stage: DecisionStage,
) -> None:
    """The call fails and says that its request still waits."""
    pair = await opened_pair(decision_stage)
    pair.become(a_caller(expires_at=0))
    pair.one.runner.grace_s = 0.05
    (answer,) = await call_without_progress(pair).rest()

    assert answer["result"]["isError"]
    assert text(answer).startswith(MESSAGE)


@pytest.mark.requirement("A7")
@pytest.mark.usefixtures("short_wait")
async def test_a7_beyond_the_stream_limit_a_call_waits_only_briefly(
    decision_stage: DecisionStage,
) -> None:
    """No further stream may keep the connection alive."""
    pair = await opened_pair(decision_stage)
    pair.one.streams.max_streams = 0
    live = call_without_progress(pair)
    await live.over()

    assert live.headers["content-type"] == "application/json"


async def test_a_stopping_server_answers_its_waiting_calls(decision_stage: DecisionStage) -> None:
    """A stop does not wait for an approver, and the request is kept."""
    pair = await opened_pair(decision_stage)
    live = pair.call(pair.one, "pay")
    await live.event()
    await (await decision_stage.only()).watched_by(1)
    pair.one.streams.close()

    assert PAGE in text((await live.rest())[-1])
