"""Progress, questions, cancellation, changes and many requests at once over two pipes (P1)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.mcp.stdio import MAX_AT_ONCE
from tests.support.connections import WITHIN_S, StdioClient, answered_text, stdio_process
from tests.support.endpoint import META
from tests.support.measuring import eventually

pytestmark = pytest.mark.requirement("P1")

ELICIT: dict[str, Any] = {"elicitation": {"form": {}}}
ACCEPT_ANSWER = {"action": "accept", "content": {"colour": "red"}}
STOPPED_TEXT = "the wait was stopped"


@pytest.fixture
def stdio_client(tmp_path: Path) -> Iterator[StdioClient]:
    """Yield a new process that must exit without an error when its client leaves."""
    with stdio_process(tmp_path, drain_s=3) as stdio_client:
        yield stdio_client
        assert stdio_client.hang_up() == 0, stdio_client.output
        assert "Traceback" not in stdio_client.stderr


def call(
    stdio_client: StdioClient, modern: bool, tool: str, identity: Any, can: Any = None, **meta: Any
) -> Any:
    """Call a tool with its fixed arguments, in either era."""
    arguments = {"tell": {"times": 3}, "wait": {"seconds": 30}}.get(tool, {})
    params = {"name": tool, "arguments": arguments}
    if modern:
        return stdio_client.modern("tools/call", params, identity=identity, can=can, **meta)
    return stdio_client.say("tools/call", params, identity=identity, meta=meta)


@pytest.mark.parametrize("modern", [True, False])
def test_a_call_sends_progress_and_logs_before_its_answer(
    stdio_client: StdioClient, modern: bool
) -> None:
    """All are on the one output, in order."""
    if not modern:
        stdio_client.open()
    call(stdio_client, modern, "tell", 1, **{"progressToken": "p", META + "logLevel": "info"})
    stdio_client.of(1)
    methods = [
        message.get("method", "answer") for message in stdio_client.messages()[0 if modern else 1 :]
    ]

    assert methods == [*["notifications/progress"] * 3, "notifications/message", "answer"]
    assert [params["progress"] for params in stdio_client.told("notifications/progress")] == [
        1,
        2,
        3,
    ]


def test_a_stream_that_pauses_is_fetched(stdio_client: StdioClient) -> None:
    """Over HTTP the client would resume with the last event id (S-06); pipes have no gaps."""
    stdio_client.open()
    call(stdio_client, False, "let_go", 1, progressToken="p")

    assert answered_text(stdio_client.of(1)) == "came back"
    assert [params["progress"] for params in stdio_client.told("notifications/progress")] == [1, 2]


def test_a_pause_of_any_length_delays_no_other_call(stdio_client: StdioClient) -> None:
    """Messages sent during the pause are fetched without a connection of the client."""
    stdio_client.open()
    params = {"name": "let_go", "arguments": {"back_after_s": 1000}}
    stdio_client.say("tools/call", params, identity=1, meta={"progressToken": "p"})

    assert answered_text(stdio_client.of(1)) == "came back"


def test_the_process_exits_without_draining_once_a_paused_call_is_answered(tmp_path: Path) -> None:
    """At the end of input the process does not wait for `drain_s`."""
    with stdio_process(tmp_path, drain_s=1000) as stdio_client:
        stdio_client.open()
        call(stdio_client, False, "let_go", 1, progressToken="p")
        assert answered_text(stdio_client.of(1)) == "came back"

        assert stdio_client.hang_up() == 0, stdio_client.output


def test_a_client_request_of_an_older_revision_is_sent_and_answered(
    stdio_client: StdioClient,
) -> None:
    """The response arrives on the same pipe while the call waits."""
    stdio_client.open(**ELICIT)
    call(stdio_client, False, "ask_colour", 1)
    request = stdio_client.hears("elicitation/create")
    (client_request,) = [
        message
        for message in stdio_client.messages()
        if message.get("method") == "elicitation/create"
    ]
    stdio_client.write_line(
        json.dumps({"jsonrpc": "2.0", "id": client_request["id"], "result": ACCEPT_ANSWER})
    )

    assert request[0]["message"] == "Which colour?"
    assert answered_text(stdio_client.of(1)) == "accept red"


def test_a_client_request_of_the_newest_revision_is_the_result(stdio_client: StdioClient) -> None:
    """The client repeats the call with its answer."""
    call(stdio_client, True, "ask_colour", 1, can=ELICIT)
    result = stdio_client.of(1)["result"]
    (key,) = result["inputRequests"]
    params = {
        "name": "ask_colour",
        "arguments": {},
        "inputResponses": {key: ACCEPT_ANSWER},
        "requestState": result["requestState"],
    }
    stdio_client.modern("tools/call", params, identity=2, can=ELICIT)

    assert result["resultType"] == "input_required"
    assert answered_text(stdio_client.of(2)) == "accept red"


@pytest.mark.parametrize("modern", [True, False])
def test_a_cancelled_call_stops_and_is_not_answered(
    stdio_client: StdioClient, modern: bool
) -> None:
    """Over pipes a notification cancels a call, in every era."""
    if not modern:
        stdio_client.open()
    before = len(stdio_client.messages())
    call(stdio_client, modern, "wait", "w")
    call(stdio_client, modern, "whoami", "x")
    stdio_client.of("x")
    stdio_client.say("notifications/cancelled", {"requestId": "w", "reason": "changed my mind"})
    eventually(lambda: STOPPED_TEXT in stdio_client.stderr, within=WITHIN_S)
    call(stdio_client, modern, "whoami", "y")
    stdio_client.of("y")

    assert [message["id"] for message in stdio_client.messages()[before:]] == ["x", "y"]


def test_the_number_of_concurrent_calls_is_bounded(stdio_client: StdioClient) -> None:
    """One more is refused and does not wait, as answers for others come over the same pipe."""
    # Calls before the tenant's secrets are read have not begun, and say nothing when they stop.
    call(stdio_client, True, "whoami", "first")
    stdio_client.of("first")
    for identity in range(MAX_AT_ONCE + 1):
        call(stdio_client, True, "wait", identity)
    refused = stdio_client.of(MAX_AT_ONCE)
    assert refused["error"]["code"] == -32000

    for identity in range(MAX_AT_ONCE):
        stdio_client.say("notifications/cancelled", {"requestId": identity})
    eventually(lambda: stdio_client.stderr.count(STOPPED_TEXT) == MAX_AT_ONCE, within=WITHIN_S)
    call(stdio_client, True, "whoami", "free again")
    assert "result" in stdio_client.of("free again")


def test_changes_are_announced_in_both_eras(stdio_client: StdioClient) -> None:
    """`subscriptions/listen` is a request that stays open; a session needs no request."""
    stdio_client.open()
    filters = {"notifications": {"toolsListChanged": True}}
    stdio_client.modern("subscriptions/listen", filters, identity="l")
    stdio_client.hears("notifications/subscriptions/acknowledged")
    # The session's own stream opens behind the scenes; it is there once it has told something.
    changed = "notifications/tools/list_changed"

    def both_heard() -> bool:
        call(stdio_client, True, "announce", f"a{len(stdio_client.messages())}")
        notifications = stdio_client.told(changed)
        return any(notification.get("_meta") for notification in notifications) and any(
            not notification.get("_meta") for notification in notifications
        )

    eventually(both_heard, within=WITHIN_S, every=0.2)
    stdio_client.say("notifications/cancelled", {"requestId": "l"})
    stdio_client.of(stdio_client.modern("server/discover", identity="z"))

    assert not [message for message in stdio_client.messages() if message.get("id") == "l"]


def test_listening_ends_with_its_result_when_the_server_stops(tmp_path: Path) -> None:
    """SU-07: the client learns that this was the end, and not a pause."""
    with stdio_process(tmp_path) as stdio_client:
        filters = {"notifications": {"toolsListChanged": True}}
        stdio_client.modern("subscriptions/listen", filters, identity="l")
        stdio_client.hears("notifications/subscriptions/acknowledged")

        assert stdio_client.hang_up() == 0
        assert stdio_client.of("l")["result"]["resultType"] == "complete"
