"""Sessions of older revisions over HTTP: opened, kept, lost, continued and ended."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gatepost.upstreams.connection import (
    ConnectionFailure,
    RequestOptions,
    UpstreamConnection,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from tests.support.connections import ConnectingProcess
from tests.support.internet import (
    EVENTS,
    Posted,
    ScriptedServer,
    begin_answer,
    error_answer,
    event_bytes,
    finish_answer,
    result_answer,
    scripted_server,
    send_final_event,
    send_more,
    stall,
)
from tests.support.issuers import Send
from tests.upstreams.transport.test_http_requests import (
    crm,
    failure_of,
    result_of,
    wait_until,
)

__all__ = ["crm", "scripted_server"]  # fixtures

Crm = tuple[ScriptedServer, Callable[..., UpstreamConnection]]
DONE_RESULT = {"content": [{"type": "text", "text": "done"}]}


async def test_a_session_is_opened_once_and_kept(crm: Crm) -> None:
    """Requests that start together share the handshake; the session ends with the connection."""
    app, connect = crm
    app.has_sessions("s1")
    app.answers["tools/call"] = result_answer(DONE_RESULT)
    connection = connect()
    await asyncio.gather(*(result_of(connection) for _ in range(5)))

    assert len(app.of("initialize")) == 1
    assert app.of("initialize")[0].body["params"]["protocolVersion"] == "2025-11-25"
    assert "mcp-protocol-version" not in app.of("initialize")[0].headers
    assert {request.headers["mcp-session-id"] for request in app.of("tools/call")} == {"s1"}
    assert {request.headers["mcp-protocol-version"] for request in app.of("tools/call")} == {
        "2025-11-25"
    }
    await connection.aclose()
    assert app.of("DELETE")[0].headers["mcp-session-id"] == "s1"


async def test_a_server_without_session_ids_gets_none(crm: Crm) -> None:
    """Another set of capabilities needs no handshake of its own then."""
    app, connect = crm
    app.has_sessions()
    app.answers["tools/call"] = result_answer(DONE_RESULT)
    connection = connect()
    await result_of(connection)
    await result_of(connection, capabilities={"elicitation": {}})

    assert len(app.of("initialize")) == 1
    assert all("mcp-session-id" not in request.headers for request in app.seen)


async def test_each_set_of_capabilities_has_a_session(crm: Crm) -> None:
    """The server then asks each client only for what it can do."""
    app, connect = crm
    app.has_sessions("s1", "s2", "s3")
    app.answers["tools/call"] = result_answer(DONE_RESULT)
    for capabilities in ({}, {"elicitation": {}}, {}):
        await result_of(connect(), capabilities=capabilities)
    for capabilities in ({}, {"elicitation": {}}):
        await result_of(connect(("alice",)), capabilities=capabilities)

    used = [request.headers["mcp-session-id"] for request in app.of("tools/call")]
    assert used == ["s1", "s2", "s1", "s3", "s3"]


@pytest.mark.parametrize("lost", [(404, "gone"), (400, "Bad Request: No valid session ID")])
async def test_a_lost_session_fails_the_request_and_the_next_opens_another(
    crm: Crm, lost: tuple[int, str]
) -> None:
    """The failed request is not sent again."""
    app, connect = crm
    app.has_sessions("s1", "s2")
    app.answers["tools/call"] = error_answer(-32000, lost[1], lost[0])
    connection = connect()

    assert (await failure_of(connection)).reason == "session_lost"
    app.answers["tools/call"] = result_answer(DONE_RESULT)
    assert await result_of(connection) == DONE_RESULT
    assert [request.headers["mcp-session-id"] for request in app.of("tools/call")] == ["s1", "s2"]
    assert app.of("DELETE") == []


async def test_a_server_that_changed_its_era_is_asked_again(crm: Crm) -> None:
    """The request with the refused version did not run; the next one discovers the era."""
    app, connect = crm
    connection = connect()
    app.answers["tools/call"] = result_answer(DONE_RESULT)
    await result_of(connection)
    app.has_sessions("s1")
    app.answers["tools/call"] = error_answer(-32022, "no", 400, {"supported": ["2025-11-25"]})
    assert (await failure_of(connection)).reason == "session_lost"
    app.answers["tools/call"] = result_answer(DONE_RESULT)

    assert await result_of(connection) == DONE_RESULT
    assert app.seen[-1].headers["mcp-session-id"] == "s1"


async def test_progress_and_client_requests_arrive_on_the_stream_of_a_request(crm: Crm) -> None:
    """A question is answered by a POST of its own, and a ping by the connection itself."""
    app, connect = crm
    app.has_sessions("s1")
    answered = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def call(posted: Posted, send: Send) -> None:
        await begin_answer(send, kind=EVENTS)
        token = posted.body["params"]["_meta"]["progressToken"]
        progress = {"progressToken": token, "progress": 1}
        await send_more(send, b": hello\n\n")
        await send_more(
            send,
            event_bytes({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}),
        )
        await send_more(send, event_bytes({"jsonrpc": "2.0", "id": 8, "method": "ping"}))
        await send_more(
            send,
            event_bytes(
                {"jsonrpc": "2.0", "id": 9, "method": "elicitation/create", "params": {"a": 1}}
            ),
        )
        await wait_until(lambda: len(app.of("response")) == 2)
        await finish_answer(send, event_bytes(send_final_event(posted, DONE_RESULT)))
        loop.call_soon_threadsafe(answered.set)

    app.answers["tools/call"] = call
    answers_seen = []
    async with connect().exchange(
        "tools/call", {"name": "act"}, RequestOptions(progress_token="p")
    ) as exchange:
        async for message in exchange.messages():
            answers_seen.append(message)
            if isinstance(message, UpstreamRequest):
                await exchange.respond(message.id, {"result": {"action": "accept"}})

    assert answers_seen == [
        UpstreamNotification("notifications/progress", {"progressToken": "p", "progress": 1}),
        UpstreamRequest(9, "elicitation/create", {"a": 1}),
        UpstreamResult(DONE_RESULT),
    ]
    replies = {request.body["id"]: request.body["result"] for request in app.of("response")}
    assert replies == {8: {}, 9: {"action": "accept"}}


async def test_a_request_that_is_given_up_is_cancelled_in_its_session(crm: Crm) -> None:
    """A closed stream is no cancellation there."""
    app, connect = crm
    app.has_sessions("s1")

    async def call(posted: Posted, send: Send) -> None:
        await stall(posted)

    app.answers["tools/call"] = call
    connection = connect()
    assert (await failure_of(connection, idle_s=0.3)).reason == "timeout"
    await wait_until(lambda: app.of("notifications/cancelled"))

    cancelled = app.of("notifications/cancelled")[0]
    assert cancelled.body["params"]["requestId"] == app.of("tools/call")[0].id


async def test_a_stream_that_breaks_is_continued_if_its_events_have_ids(crm: Crm) -> None:
    """Gatepost continues it with a GET, which does not repeat the request."""
    app, connect = crm
    app.has_sessions("s1")

    async def call(posted: Posted, send: Send) -> None:
        await begin_answer(send, kind=EVENTS)
        await finish_answer(send, b"id: e1\nretry: 10\ndata:\n\n")

    async def again(posted: Posted, send: Send) -> None:
        await begin_answer(send, kind=EVENTS)
        await finish_answer(
            send, event_bytes(send_final_event(app.of("tools/call")[0], DONE_RESULT), "e2")
        )

    app.answers["tools/call"], app.answers["GET"] = call, again

    assert await result_of(connect()) == DONE_RESULT
    assert len(app.of("tools/call")) == 1
    assert app.of("GET")[0].headers["last-event-id"] == "e1"
    assert app.of("GET")[0].headers["mcp-session-id"] == "s1"


@pytest.mark.parametrize("has_sessions", [False, True])
async def test_changes_are_followed(crm: Crm, has_sessions: bool) -> None:
    """Gatepost opens `subscriptions/listen`, or a session's GET stream; its end is a failure."""
    app, connect = crm
    ending = asyncio.Event()

    async def stream(posted: Posted, send: Send) -> None:
        await begin_answer(send, kind=EVENTS)
        method = "notifications/subscriptions/acknowledged"
        if not has_sessions:
            await send_more(send, event_bytes({"jsonrpc": "2.0", "method": method, "params": {}}))
        await send_more(
            send, event_bytes({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        )
        await wait_until(ending.is_set)
        await finish_answer(send)

    if has_sessions:
        app.has_sessions("s1")
    app.answers["GET" if has_sessions else "subscriptions/listen"] = stream
    async with connect().notifications(["file:///a"]) as changes:
        change = await anext(changes)
        ending.set()
        with pytest.raises(ConnectionFailure):
            await anext(changes)
    assert change.method == "notifications/tools/list_changed"
    if not has_sessions:
        filters = app.of("subscriptions/listen")[0].body["params"]["notifications"]
        assert filters == {"toolsListChanged": True, "resourceSubscriptions": ["file:///a"]}


@pytest.mark.parametrize("has_sessions", [False, True])
async def test_a_server_without_a_stream_of_changes_is_reported_at_once(
    crm: Crm, has_sessions: bool
) -> None:
    """Gatepost can then poll it instead."""
    app, connect = crm
    if has_sessions:
        app.has_sessions("s1")
    with pytest.raises(ConnectionFailure) as failed:
        async with connect().notifications():
            pytest.fail("there is no stream")
    assert failed.value.reason == "invalid"


async def test_a_log_level_is_set_once_in_a_session(crm: Crm) -> None:
    """The modern era says it with each request instead."""
    app, connect = crm
    app.has_sessions("s1")
    app.answers |= {"tools/call": result_answer(DONE_RESULT), "logging/setLevel": result_answer({})}
    connection = connect()
    for level in ("debug", "debug", "error"):
        await result_of(connection, log_level=level)

    levels = [request.body["params"]["level"] for request in app.of("logging/setLevel")]
    assert levels == ["debug", "error"]


async def test_idle_connections_are_kept_within_a_limit(
    scripted_server: tuple[ScriptedServer, str],
) -> None:
    """The session of the one that was not used for longest ends; forgetting ends all of them."""
    app, url = scripted_server
    app.has_sessions("s1", "s2", "s3")
    app.answers["tools/call"] = result_answer(DONE_RESULT)
    process = ConnectingProcess(url.split("/")[2], kept_connections=2)
    for person in ("a", "b", "a", "c"):
        await result_of(process.http(url, (person,)))
    await wait_until(lambda: app.of("DELETE"))
    assert app.of("DELETE")[0].headers["mcp-session-id"] == "s2"

    await process.connections.forget(url)
    ended = {request.headers["mcp-session-id"] for request in app.of("DELETE")}
    assert ended == {"s1", "s2", "s3"}
    await process.aclose()


async def test_a_client_request_on_the_stream_of_the_session_reaches_the_only_request(
    crm: Crm,
) -> None:
    """Servers of the TypeScript SDK ask there; with several requests it is refused."""
    app, connect = crm
    app.has_sessions("s1")
    ask: Any = {"jsonrpc": "2.0", "id": 4, "method": "elicitation/create", "params": {}}

    async def stream(posted: Posted, send: Send) -> None:
        await begin_answer(send, kind=EVENTS)
        for number in (1, 2):
            await wait_until(lambda number=number: len(app.of("tools/call")) >= number)  # type: ignore[misc]
            await send_more(send, event_bytes(ask | {"id": number}))
            await wait_until(lambda number=number: len(app.of("response")) >= number)  # type: ignore[misc]
        await stall(posted)

    async def call(posted: Posted, send: Send) -> None:
        await wait_until(lambda: len(app.of("response")) == 2)
        await result_answer(DONE_RESULT)(posted, send)

    app.answers |= {"GET": stream, "tools/call": call}
    connection = connect()
    options = RequestOptions(capabilities={"elicitation": {}})
    async with connection.exchange("tools/call", {"name": "act"}, options) as exchange:
        messages = exchange.messages()
        input_request = await anext(messages)
        assert input_request == UpstreamRequest(1, "elicitation/create", {})
        other = asyncio.create_task(result_of(connection, capabilities={"elicitation": {}}))
        await wait_until(lambda: len(app.of("tools/call")) == 2)
        await exchange.respond(1, {"result": {"action": "accept"}})
        assert await anext(messages) == UpstreamResult(DONE_RESULT)
        assert await other == DONE_RESULT
    replies = {request.body["id"]: request.body for request in app.of("response")}
    assert replies[1]["result"] == {"action": "accept"}
    assert replies[2]["error"]["code"] == -32601
