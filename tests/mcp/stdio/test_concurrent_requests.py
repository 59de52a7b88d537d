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
def talk(tmp_path: Path) -> Iterator[StdioClient]:
    """Yield a new process that must exit without an error when its client leaves."""
    with stdio_process(tmp_path, drain_s=3) as talk:
        yield talk
        assert talk.hang_up() == 0, talk.output
        assert "Traceback" not in talk.stderr


def call(
    talk: StdioClient, modern: bool, tool: str, identity: Any, can: Any = None, **meta: Any
) -> Any:
    """Call a tool with its fixed arguments, in either era."""
    arguments = {"tell": {"times": 3}, "wait": {"seconds": 30}}.get(tool, {})
    params = {"name": tool, "arguments": arguments}
    if modern:
        return talk.modern("tools/call", params, identity=identity, can=can, **meta)
    return talk.say("tools/call", params, identity=identity, meta=meta)


@pytest.mark.parametrize("modern", [True, False])
def test_a_call_sends_progress_and_logs_before_its_answer(talk: StdioClient, modern: bool) -> None:
    """All are on the one output, in order."""
    if not modern:
        talk.open()
    call(talk, modern, "tell", 1, **{"progressToken": "p", META + "logLevel": "info"})
    talk.of(1)
    methods = [message.get("method", "answer") for message in talk.messages()[0 if modern else 1 :]]

    assert methods == [*["notifications/progress"] * 3, "notifications/message", "answer"]
    assert [params["progress"] for params in talk.told("notifications/progress")] == [1, 2, 3]


def test_a_stream_that_pauses_is_fetched(talk: StdioClient) -> None:
    """Over HTTP the client would resume with the last event id (S-06); pipes have no gaps."""
    talk.open()
    call(talk, False, "let_go", 1, progressToken="p")

    assert answered_text(talk.of(1)) == "came back"
    assert [params["progress"] for params in talk.told("notifications/progress")] == [1, 2]


def test_a_pause_of_any_length_delays_no_other_call(talk: StdioClient) -> None:
    """Messages sent during the pause are fetched without a connection of the client."""
    talk.open()
    params = {"name": "let_go", "arguments": {"back_after_s": 1000}}
    talk.say("tools/call", params, identity=1, meta={"progressToken": "p"})

    assert answered_text(talk.of(1)) == "came back"


def test_the_process_exits_without_draining_once_a_paused_call_is_answered(tmp_path: Path) -> None:
    """At the end of input the process does not wait for `drain_s`."""
    with stdio_process(tmp_path, drain_s=1000) as talk:
        talk.open()
        call(talk, False, "let_go", 1, progressToken="p")
        assert answered_text(talk.of(1)) == "came back"

        assert talk.hang_up() == 0, talk.output


def test_a_client_request_of_an_older_revision_is_sent_and_answered(talk: StdioClient) -> None:
    """The response arrives on the same pipe while the call waits."""
    talk.open(**ELICIT)
    call(talk, False, "ask_colour", 1)
    request = talk.hears("elicitation/create")
    (client_request,) = [
        message for message in talk.messages() if message.get("method") == "elicitation/create"
    ]
    talk.write_line(
        json.dumps({"jsonrpc": "2.0", "id": client_request["id"], "result": ACCEPT_ANSWER})
    )

    assert request[0]["message"] == "Which colour?"
    assert answered_text(talk.of(1)) == "accept red"


def test_a_client_request_of_the_newest_revision_is_the_result(talk: StdioClient) -> None:
    """The client repeats the call with its answer."""
    call(talk, True, "ask_colour", 1, can=ELICIT)
    result = talk.of(1)["result"]
    (key,) = result["inputRequests"]
    params = {
        "name": "ask_colour",
        "arguments": {},
        "inputResponses": {key: ACCEPT_ANSWER},
        "requestState": result["requestState"],
    }
    talk.modern("tools/call", params, identity=2, can=ELICIT)

    assert result["resultType"] == "input_required"
    assert answered_text(talk.of(2)) == "accept red"


@pytest.mark.parametrize("modern", [True, False])
def test_a_cancelled_call_stops_and_is_not_answered(talk: StdioClient, modern: bool) -> None:
    """Over pipes a notification cancels a call, in every era."""
    if not modern:
        talk.open()
    before = len(talk.messages())
    call(talk, modern, "wait", "w")
    call(talk, modern, "whoami", "x")
    talk.of("x")
    talk.say("notifications/cancelled", {"requestId": "w", "reason": "changed my mind"})
    eventually(lambda: STOPPED_TEXT in talk.stderr, within=WITHIN_S)
    call(talk, modern, "whoami", "y")
    talk.of("y")

    assert [message["id"] for message in talk.messages()[before:]] == ["x", "y"]


def test_the_number_of_concurrent_calls_is_bounded(talk: StdioClient) -> None:
    """One more is refused and does not wait, as answers for others come over the same pipe."""
    # Calls before the tenant's secrets are read have not begun, and say nothing when they stop.
    call(talk, True, "whoami", "first")
    talk.of("first")
    for identity in range(MAX_AT_ONCE + 1):
        call(talk, True, "wait", identity)
    refused = talk.of(MAX_AT_ONCE)
    assert refused["error"]["code"] == -32000

    for identity in range(MAX_AT_ONCE):
        talk.say("notifications/cancelled", {"requestId": identity})
    eventually(lambda: talk.stderr.count(STOPPED_TEXT) == MAX_AT_ONCE, within=WITHIN_S)
    call(talk, True, "whoami", "free again")
    assert "result" in talk.of("free again")


def test_changes_are_announced_in_both_eras(talk: StdioClient) -> None:
    """`subscriptions/listen` is a request that stays open; a session needs no request."""
    talk.open()
    filters = {"notifications": {"toolsListChanged": True}}
    talk.modern("subscriptions/listen", filters, identity="l")
    talk.hears("notifications/subscriptions/acknowledged")
    # The session's own stream opens behind the scenes; it is there once it has told something.
    changed = "notifications/tools/list_changed"

    def both_heard() -> bool:
        call(talk, True, "announce", f"a{len(talk.messages())}")
        notifications = talk.told(changed)
        return any(notification.get("_meta") for notification in notifications) and any(
            not notification.get("_meta") for notification in notifications
        )

    eventually(both_heard, within=WITHIN_S, every=0.2)
    talk.say("notifications/cancelled", {"requestId": "l"})
    talk.of(talk.modern("server/discover", identity="z"))

    assert not [message for message in talk.messages() if message.get("id") == "l"]


def test_listening_ends_with_its_result_when_the_server_stops(tmp_path: Path) -> None:
    """SU-07: the client learns that this was the end, and not a pause."""
    with stdio_process(tmp_path) as talk:
        filters = {"notifications": {"toolsListChanged": True}}
        talk.modern("subscriptions/listen", filters, identity="l")
        talk.hears("notifications/subscriptions/acknowledged")

        assert talk.hang_up() == 0
        assert talk.of("l")["result"]["resultType"] == "complete"
