"""Progress, streams, and requests that are taken back."""

import asyncio
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost_authz.errors import InsufficientScope
from tests.support.endpoint import JSON, META, VERSION, EndpointClient, Response, message

pack = Pack("slow")
SEEN_PROGRESS: list[str] = []


class ProgressSignal:
    """Set when the waiting tool has started."""

    started = asyncio.Event()


TOKEN = {"progressToken": "p1"}


@pack.tool(timeout_s=60)
async def wait_forever(ctx: CallContext, report: bool = False) -> str:
    """Wait until it is ended."""
    SEEN_PROGRESS.append("started")
    if report:
        await ctx.progress(1)
    ProgressSignal.started.set()
    try:
        await asyncio.Event().wait()
    finally:
        SEEN_PROGRESS.append("ended")
    return "never"


@pack.tool()
async def count(ctx: CallContext, values: list[float]) -> str:
    """Report each value."""
    for value in values:
        await ctx.progress(value, 10, f"at {value:g}")
    return "counted"


@pack.tool()
async def count_too_far(ctx: CallContext) -> str:
    """Report numbers that clients do not have, and some that they have."""
    await ctx.progress(1, 10**400)
    await ctx.progress(2, math.inf)
    await ctx.progress(3, 4)
    await ctx.progress(10**400)
    await ctx.progress(math.inf)
    return "counted"


@pack.tool()
async def count_in_other_numbers(ctx: CallContext) -> str:
    """Report numbers of other types than JSON's."""
    await ctx.progress(True, Fraction(7, 2))
    await ctx.progress(Decimal("1.5"), Decimal(3))
    with pytest.raises(TypeError):
        await ctx.progress("2")  # type: ignore[arg-type]  # what a tool may do all the same
    return "counted"


@pack.tool()
async def say_half_a_character(ctx: CallContext) -> str:
    """Report faster than any client is told, and then what is no text."""
    for value in range(100):
        await ctx.progress(value)
    try:
        await ctx.progress(100, message="\ud800")
    except UnicodeEncodeError:
        return "refused"
    return "reported"


@pack.tool()
async def say_a_list(ctx: CallContext) -> str:
    """Report what is no text."""
    await ctx.progress(1, message=["hidden"])  # type: ignore[arg-type]
    return "reported"


@pack.tool()
async def step_up_late(ctx: CallContext, report: bool) -> str:
    """Find out in the middle that more is needed."""
    if report:
        await ctx.progress(1)
    raise InsufficientScope(("files:write",))


@pack.tool(timeout_s=0.05)
async def too_slow(ctx: CallContext) -> str:
    """Take longer than it may."""
    await asyncio.Event().wait()
    return "never"


@pytest.fixture
def client() -> EndpointClient:
    SEEN_PROGRESS.clear()
    ProgressSignal.started = asyncio.Event()  # each test has a loop of its own
    return EndpointClient(pack.tools.values())


def progress_of(response: Response) -> list[dict[str, Any]]:
    return [event["params"] for event in response.events if "method" in event]


async def call_with_progress(
    client: EndpointClient, tool: str, arguments: dict[str, Any], **headers: str
) -> Response:
    params = {"name": tool, "arguments": arguments}
    return await client.ask("tools/call", params, meta=TOKEN, **headers)


@pytest.mark.requirement("PR-01", "PR-03", "T-05", "T-07", "J-08")
async def test_pr_03_a_tool_that_reports_turns_the_answer_into_a_stream(
    client: EndpointClient,
) -> None:
    """Its reports come first, with the client's token; the result comes last and ends it."""
    response = await call_with_progress(client, "count", {"values": [1, 2.5]})

    assert response.headers["x-accel-buffering"] == "no"
    assert progress_of(response) == [
        {"progressToken": "p1", "progress": 1, "total": 10, "message": "at 1"},
        {"progressToken": "p1", "progress": 2.5, "total": 10, "message": "at 2.5"},
    ]
    assert response.events[-1]["id"] == 7
    assert response.events[-1]["result"]["resultType"] == "complete"


@pytest.mark.requirement("PR-01")
async def test_pr_01_progress_only_ever_grows(client: EndpointClient) -> None:
    """A report that does not is dropped, and so is one that is no number."""
    response = await call_with_progress(client, "count", {"values": [1, 1, 0.5, 2]})

    assert [report["progress"] for report in progress_of(response)] == [1, 2]


@pytest.mark.requirement("PR-01")
async def test_pr_01_progress_beyond_the_range_of_a_double_is_left_out(
    client: EndpointClient,
) -> None:
    """An integer may be larger than any double, and JSON has no infinity."""
    response = await call_with_progress(client, "count_too_far", {})

    assert [
        (notification["progress"], notification.get("total"))
        for notification in progress_of(response)
    ] == [
        (1, None),
        (2, None),
        (3, 4),
    ]
    assert response.events[-1]["result"]["isError"] is False


async def test_a_number_of_any_type_is_sent_as_a_number(client: EndpointClient) -> None:
    """Clients check the type, and some refuse a text."""
    response = await call_with_progress(client, "count_in_other_numbers", {})
    sent = [
        (notification["progress"], notification["total"]) for notification in progress_of(response)
    ]

    assert sent == [(1, 3.5), (1.5, 3)]
    assert {type(number) for pair in sent for number in pair} <= {int, float}
    assert response.events[-1]["result"]["content"][0]["text"] == "counted"


@pytest.mark.requirement("PR-02")
async def test_pr_02_a_message_that_cannot_be_encoded_fails_in_the_tool(
    client: EndpointClient,
) -> None:
    """So does a message that is held back because of the rate."""
    response = await call_with_progress(client, "say_half_a_character", {})

    assert response.events[-1]["result"]["content"][0]["text"] == "refused"


async def test_a_progress_message_that_is_no_text_is_an_error(client: EndpointClient) -> None:
    """Only texts are searched for secrets."""
    response = await call_with_progress(client, "say_a_list", {})

    assert response.json["result"]["isError"] is True
    assert "hidden" not in response.body.decode()


@pytest.mark.requirement("PR-01")
async def test_a_client_without_a_progress_token_gets_plain_json(client: EndpointClient) -> None:
    """The same holds for an invalid token and for a client that reads no events."""
    call = {"name": "count", "arguments": {"values": [1]}}

    without = await client.ask("tools/call", call)
    null = await client.ask("tools/call", call, meta={"progressToken": None})
    deaf = await client.ask("tools/call", call, meta=TOKEN, accept="application/json")

    for response in (without, null, deaf):
        assert response.json["result"]["content"][0]["text"] == "counted"


async def test_a_tool_without_reports_answers_json_despite_a_progress_token(
    client: EndpointClient,
) -> None:
    """The stream begins with the first report."""
    assert (await call_with_progress(client, "count", {"values": []})).json["result"][
        "isError"
    ] is False


@pytest.mark.requirement("PR-01")
async def test_progress_tokens_are_returned_unchanged(client: EndpointClient) -> None:
    """An integer stays one, however large."""
    params = {"name": "count", "arguments": {"values": [1]}}
    response = await client.ask("tools/call", params, meta={"progressToken": 2**70})

    assert progress_of(response)[0]["progressToken"] == 2**70


@pytest.mark.requirement("PR-01")
async def test_a_session_gets_progress_too(client: EndpointClient) -> None:
    """The result has none of the members that came with 2026-07-28."""
    session = await client.open()
    call = {"name": "count", "arguments": {"values": [1]}, "_meta": TOKEN}
    response = await client.within(session, message("tools/call", call))

    assert len(progress_of(response)) == 1
    assert "resultType" not in response.events[-1]["result"]


@pytest.mark.requirement("T-11", "CX-01", "CX-02", "CX-04")
@pytest.mark.parametrize("report", [True, False])
async def test_cx_01_cx_02_hanging_up_cancels_a_modern_request(
    client: EndpointClient, report: bool
) -> None:
    """The tool is cancelled, and no further message is sent."""
    hang_up = asyncio.Event()
    params = {
        "name": "wait_forever",
        "arguments": {"report": report},
        "_meta": {
            META + "protocolVersion": VERSION,
            META + "clientCapabilities": {},
            **TOKEN,
        },
    }
    headers = [
        JSON,
        ("mcp-protocol-version", VERSION),
        ("mcp-method", "tools/call"),
        ("mcp-name", "wait_forever"),
    ]
    asking = asyncio.create_task(
        client.send(message("tools/call", params), headers, hang_up=hang_up)
    )
    await asyncio.wait_for(ProgressSignal.started.wait(), 20)
    hang_up.set()
    response = await asyncio.wait_for(asking, 20)

    assert SEEN_PROGRESS == ["started", "ended"]
    assert b"result" not in response.body
    assert b"notifications/cancelled" not in response.body
    assert (response.status == 200) is report


@pytest.mark.requirement("L-07")
async def test_a_session_cancels_by_notification(client: EndpointClient) -> None:
    """Only a notification of the same session counts; the request gets no response."""
    mine, other = await client.open(), await client.open()
    body = message("tools/call", {"name": "wait_forever", "arguments": {}}, identity="a")
    asking = asyncio.create_task(client.within(mine, body))
    await asyncio.wait_for(ProgressSignal.started.wait(), 20)
    cancel = message("notifications/cancelled", {"requestId": "a"}, identity=None)

    assert (await client.within(other, cancel)).status == 202
    done, _ = await asyncio.wait({asking}, timeout=0.05)
    assert (done, SEEN_PROGRESS) == (set(), ["started"])
    assert (await client.within(mine, cancel)).status == 202
    response = await asyncio.wait_for(asking, 20)

    assert SEEN_PROGRESS == ["started", "ended"]
    assert (response.status, response.events) == (200, [])


@pytest.mark.requirement("L-07")
@pytest.mark.parametrize(
    "params", [{"requestId": "gone"}, {"requestId": None}, {"requestId": 0}, {}, [], None]
)
async def test_a_cancellation_of_an_unknown_request_is_ignored(
    client: EndpointClient, params: object
) -> None:
    """So is a malformed one, and one that names `initialize`."""
    session = await client.open()
    cancel = message("notifications/cancelled", params, identity=None)

    assert (await client.within(session, cancel)).status == 202
    assert (await client.within(session, message("ping"))).status == 200


async def test_a_session_survives_a_dropped_connection(client: EndpointClient) -> None:
    """In the older revisions a disconnect is no cancellation, so the tool runs on."""
    session, hang_up = await client.open(), asyncio.Event()
    hang_up.set()
    body = message("tools/call", {"name": "wait_forever", "arguments": {}}, identity=1)
    headers = [JSON, ("mcp-session-id", session)]
    asking = asyncio.create_task(client.send(body, headers, hang_up=hang_up))
    await asyncio.wait_for(ProgressSignal.started.wait(), 20)
    # Four times as long as it takes to notice.
    done, _ = await asyncio.wait({asking}, timeout=0.2)

    assert (done, SEEN_PROGRESS) == (set(), ["started"])
    cancel = message("notifications/cancelled", {"requestId": 1}, identity=None)
    await client.within(session, cancel)
    await asyncio.wait_for(asking, 20)


async def test_a_cancelled_server_cancels_its_calls(client: EndpointClient) -> None:
    """No stage swallows a cancellation from outside."""
    asking = asyncio.create_task(client.call("wait_forever"))
    await asyncio.wait_for(ProgressSignal.started.wait(), 20)
    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert SEEN_PROGRESS == ["started", "ended"]


async def test_a_tool_that_takes_too_long_is_stopped(client: EndpointClient) -> None:
    """The model gets the timeout in seconds."""
    result = (await client.call("too_slow")).json["result"]

    assert result["isError"] is True
    assert "0.05 seconds" in result["content"][0]["text"]


@pytest.mark.requirement("T-07")
async def test_a_scope_challenge_after_the_first_event_is_an_event(client: EndpointClient) -> None:
    """Before the first event it is a 403; afterwards the status has been sent."""
    before = await call_with_progress(client, "step_up_late", {"report": False})
    after = await call_with_progress(client, "step_up_late", {"report": True})

    assert before.status == 403
    assert 'scope="files:write"' in before.headers["www-authenticate"]
    assert after.status == 200
    assert after.events[-1]["error"]["data"] == {"scopes": ["files:write"]}
