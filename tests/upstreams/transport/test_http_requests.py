"""What goes over HTTP to an upstream, and what each of its answers means."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gatepost.credentials.credential import CredentialUnavailable, SignedHeaders
from gatepost.upstreams.connection import (
    ConnectionFailure,
    RequestOptions,
    UpstreamConnection,
    UpstreamError,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from tests.support.issuers import Send
from tests.upstreams.transport.conftest import (
    ConnectingProcess,
    failure_of,
    messages_of,
    result_of,
)
from tests.upstreams.transport.scripted import (
    EVENTS,
    Answer,
    Posted,
    ScriptedServer,
    begin,
    error,
    event,
    final,
    finish,
    more,
    raw,
    result,
    stall,
    until,
)

Crm = tuple[ScriptedServer, Callable[..., UpstreamConnection]]
DONE = {"content": [{"type": "text", "text": "done"}]}


class RenewableCredential:
    """Has a new version after each refusal, *renewals* times."""

    def __init__(self, renewals: int = 1, **headers: str) -> None:
        self.version, self.renewals, self.headers_sent = 0, renewals, headers

    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        found = {"authorization": f"Bearer v{self.version}", **self.headers_sent}
        return SignedHeaders(found, str(self.version))

    async def refused(self, headers: SignedHeaders) -> bool:
        if headers.version == str(self.version) and self.version < self.renewals:
            self.version += 1
        return headers.version != str(self.version)


class MissingCredential:
    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        raise CredentialUnavailable("the token endpoint does not answer")

    async def refused(self, headers: SignedHeaders) -> bool:
        return False


def wants(bearer: str) -> Answer:
    async def answer(posted: Posted, send: Send) -> None:
        good = posted.headers.get("authorization") == bearer
        await (result(DONE) if good else raw(b"", 401))(posted, send)

    return answer


async def test_a_modern_server_costs_one_post_a_request_on_one_connection(crm: Crm) -> None:
    """After discovery there is no session and no other message."""
    app, connect = crm
    app.answers["tools/call"] = result(DONE)
    connection = connect()

    assert await result_of(connection) == DONE
    assert await result_of(connection) == DONE
    assert [one.method for one in app.seen] == ["server/discover", "tools/call", "tools/call"]
    sent = app.seen[-1].headers
    assert (sent["mcp-method"], sent["mcp-name"]) == ("tools/call", "act")
    assert sent["mcp-protocol-version"] == "2026-07-28"
    assert "mcp-session-id" not in sent


async def test_a_second_connection_knows_the_era_already(crm: Crm) -> None:
    """Another caller's first call costs no discovery."""
    app, connect = crm
    app.answers["tools/call"] = result(DONE)
    await result_of(connect())
    await result_of(connect(("alice",)))

    assert len(app.of("server/discover")) == 1


async def test_a_session_is_opened_once_and_kept(crm: Crm) -> None:
    """Requests that start together share the handshake; the session ends with the connection."""
    app, connect = crm
    app.has_sessions("s1")
    app.answers["tools/call"] = result(DONE)
    connection = connect()
    await asyncio.gather(*(result_of(connection) for _ in range(5)))

    assert len(app.of("initialize")) == 1
    assert app.of("initialize")[0].body["params"]["protocolVersion"] == "2025-11-25"
    assert "mcp-protocol-version" not in app.of("initialize")[0].headers
    assert {one.headers["mcp-session-id"] for one in app.of("tools/call")} == {"s1"}
    assert {one.headers["mcp-protocol-version"] for one in app.of("tools/call")} == {"2025-11-25"}
    await connection.aclose()
    assert app.of("DELETE")[0].headers["mcp-session-id"] == "s1"


async def test_a_server_without_session_ids_gets_none(crm: Crm) -> None:
    """Another set of capabilities needs no handshake of its own then."""
    app, connect = crm
    app.has_sessions()
    app.answers["tools/call"] = result(DONE)
    connection = connect()
    await result_of(connection)
    await result_of(connection, capabilities={"elicitation": {}})

    assert len(app.of("initialize")) == 1
    assert all("mcp-session-id" not in one.headers for one in app.seen)


async def test_each_set_of_capabilities_has_a_session(crm: Crm) -> None:
    """A server asks no caller's client for what it cannot do; a caller's own session is one."""
    app, connect = crm
    app.has_sessions("s1", "s2", "s3")
    app.answers["tools/call"] = result(DONE)
    for capabilities in ({}, {"elicitation": {}}, {}):
        await result_of(connect(), capabilities=capabilities)
    for capabilities in ({}, {"elicitation": {}}):
        await result_of(connect(("alice",)), capabilities=capabilities)

    used = [one.headers["mcp-session-id"] for one in app.of("tools/call")]
    assert used == ["s1", "s2", "s1", "s3", "s3"]


@pytest.mark.parametrize("lost", [(404, "gone"), (400, "Bad Request: No valid session ID")])
async def test_a_lost_session_fails_the_request_and_the_next_opens_another(
    crm: Crm, lost: tuple[int, str]
) -> None:
    """The request is not sent again, although nothing was run."""
    app, connect = crm
    app.has_sessions("s1", "s2")
    app.answers["tools/call"] = error(-32000, lost[1], lost[0])
    connection = connect()

    assert (await failure_of(connection)).reason == "session_lost"
    app.answers["tools/call"] = result(DONE)
    assert await result_of(connection) == DONE
    assert [one.headers["mcp-session-id"] for one in app.of("tools/call")] == ["s1", "s2"]
    assert app.of("DELETE") == []


async def test_a_server_that_changed_its_era_is_asked_again(crm: Crm) -> None:
    """A refused version means that nothing was run; the next request finds out."""
    app, connect = crm
    connection = connect()
    app.answers["tools/call"] = result(DONE)
    await result_of(connection)
    app.has_sessions("s1")
    app.answers["tools/call"] = error(-32022, "no", 400, {"supported": ["2025-11-25"]})
    assert (await failure_of(connection)).reason == "session_lost"
    app.answers["tools/call"] = result(DONE)

    assert await result_of(connection) == DONE
    assert app.seen[-1].headers["mcp-session-id"] == "s1"


async def test_progress_and_questions_arrive_on_the_stream_of_a_request(crm: Crm) -> None:
    """A question is answered by a POST of its own, and a ping by the connection itself."""
    app, connect = crm
    app.has_sessions("s1")
    answered = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def call(posted: Posted, send: Send) -> None:
        await begin(send, kind=EVENTS)
        token = posted.body["params"]["_meta"]["progressToken"]
        progress = {"progressToken": token, "progress": 1}
        await more(send, b": hello\n\n")
        await more(
            send,
            event({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}),
        )
        await more(send, event({"jsonrpc": "2.0", "id": 8, "method": "ping"}))
        await more(
            send,
            event({"jsonrpc": "2.0", "id": 9, "method": "elicitation/create", "params": {"a": 1}}),
        )
        await until(lambda: len(app.of("response")) == 2)
        await finish(send, event(final(posted, DONE)))
        loop.call_soon_threadsafe(answered.set)

    app.answers["tools/call"] = call
    found = []
    async with connect().exchange(
        "tools/call", {"name": "act"}, RequestOptions(progress_token="p")
    ) as exchange:
        async for message in exchange.messages():
            found.append(message)
            if isinstance(message, UpstreamRequest):
                await exchange.respond(message.id, {"result": {"action": "accept"}})

    assert found == [
        UpstreamNotification("notifications/progress", {"progressToken": "p", "progress": 1}),
        UpstreamRequest(9, "elicitation/create", {"a": 1}),
        UpstreamResult(DONE),
    ]
    replies = {one.body["id"]: one.body["result"] for one in app.of("response")}
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
    await until(lambda: app.of("notifications/cancelled"))

    cancelled = app.of("notifications/cancelled")[0]
    assert cancelled.body["params"]["requestId"] == app.of("tools/call")[0].id


async def test_cancelling_ends_the_wait(crm: Crm) -> None:
    """In the modern era the closed stream says it to the server."""
    app, connect = crm
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def call(posted: Posted, send: Send) -> None:
        await stall(posted)
        loop.call_soon_threadsafe(gone.set)

    app.answers["tools/call"] = call
    async with connect().exchange("tools/call", {"name": "act"}) as exchange:
        waiting = asyncio.ensure_future(anext(exchange.messages()))
        await until(lambda: app.of("tools/call"))
        await exchange.cancel("the caller is gone")
        with pytest.raises(ConnectionFailure) as failed:
            await waiting
    assert failed.value.reason == "timeout"
    async with asyncio.timeout(10):
        await gone.wait()


async def test_a_stream_that_breaks_is_continued_if_its_events_have_ids(crm: Crm) -> None:
    """With a GET, which sends nothing again."""
    app, connect = crm
    app.has_sessions("s1")

    async def call(posted: Posted, send: Send) -> None:
        await begin(send, kind=EVENTS)
        await finish(send, b"id: e1\nretry: 10\ndata:\n\n")

    async def again(posted: Posted, send: Send) -> None:
        await begin(send, kind=EVENTS)
        await finish(send, event(final(app.of("tools/call")[0], DONE), "e2"))

    app.answers["tools/call"], app.answers["GET"] = call, again

    assert await result_of(connect()) == DONE
    assert len(app.of("tools/call")) == 1
    assert app.of("GET")[0].headers["last-event-id"] == "e1"
    assert app.of("GET")[0].headers["mcp-session-id"] == "s1"


@pytest.mark.parametrize("has_sessions", [False, True])
async def test_a_stream_that_ends_without_an_answer_leaves_the_outcome_unknown(
    crm: Crm, has_sessions: bool
) -> None:
    """It is not sent again."""
    app, connect = crm
    if has_sessions:
        app.has_sessions("s1")
    app.answers["tools/call"] = raw(b": nothing\n\n", kind=EVENTS)

    failure = await failure_of(connect())
    assert (failure.reason, len(app.of("tools/call"))) == ("outcome_unknown", 1)
    assert "crm" in failure.message


async def test_a_refused_credential_is_renewed_once(crm: Crm) -> None:
    """Only for 401, which says that nothing was run."""
    app, connect = crm
    app.answers["tools/call"] = wants("Bearer v1")
    assert await result_of(connect(credential=RenewableCredential())) == DONE
    assert len(app.of("tools/call")) == 2


async def test_a_credential_that_stays_refused_is_reported(crm: Crm) -> None:
    """After one retry, and as the gate's own problem."""
    app, connect = crm
    app.answers["tools/call"] = wants("Bearer never")
    failure = await failure_of(connect(credential=RenewableCredential(renewals=9)))

    assert (failure.reason, len(app.of("tools/call"))) == ("unauthorized", 2)
    assert "v1" not in failure.message


REFUSALS: dict[str, tuple[Answer, str, float | None]] = {
    "403": (raw(b"", 403), "unauthorized", None),
    "429": (raw(b"", 429, retry_after="7"), "overloaded", 7.0),
    "503": (raw(b"", 503), "overloaded", None),
    "500": (raw(b"oh", 500, "text/plain"), "invalid", None),
    "502": (raw(b"<html>", 502, "text/html"), "outcome_unknown", None),
    "404 without a session": (raw(b"", 404), "invalid", None),
    "202": (raw(b"", 202), "invalid", None),
}


@pytest.mark.parametrize(("answer", "reason", "after"), REFUSALS.values(), ids=REFUSALS)
async def test_each_status_has_its_reason(
    crm: Crm, answer: Answer, reason: str, after: float | None
) -> None:
    """A refused request is not sent again."""
    app, connect = crm
    app.answers["tools/call"] = answer
    failure = await failure_of(connect())

    assert (failure.reason, failure.retry_after_s) == (reason, after)
    assert len(app.of("tools/call")) == 1


async def test_an_error_in_a_refusal_is_the_servers_answer(crm: Crm) -> None:
    """400 and 404 of the modern era carry a JSON-RPC error."""
    app, connect = crm
    app.answers["tools/call"] = error(-32021, "Needs elicitation", 400, {"a": 1})

    assert await messages_of(connect()) == [UpstreamError(-32021, "Needs elicitation", {"a": 1})]


@pytest.mark.parametrize(
    "headers", [{"mcp-session-id": "x"}, {"host": "x"}, {"x": "a\r\nhost: y"}, {"cookie": "a=b"}]
)
async def test_a_credential_cannot_set_the_headers_of_the_protocol(
    crm: Crm, headers: dict[str, str]
) -> None:
    """Nor break a line."""
    app, connect = crm
    failure = await failure_of(connect(credential=RenewableCredential(**headers)))

    assert (failure.reason, app.seen) == ("denied", [])
    assert headers.get("x", "nothing") not in failure.message


async def test_a_missing_credential_is_denied(crm: Crm) -> None:
    """Before anything is sent."""
    app, connect = crm
    failure = await failure_of(connect(credential=MissingCredential()))

    assert (failure.reason, app.seen) == ("denied", [])


async def test_a_server_that_is_away_is_unreachable() -> None:
    """Nothing was sent; an address that is not allowed is denied."""
    process = ConnectingProcess("127.0.0.1:9")
    try:
        away = await failure_of(process.http("http://127.0.0.1:9/mcp"))
        forbidden = await failure_of(process.http("https://10.0.0.1/mcp", id="b"))
    finally:
        await process.aclose()
    assert (away.reason, forbidden.reason) == ("unreachable", "denied")


async def test_requests_beyond_the_concurrency_wait_and_a_question_makes_room(crm: Crm) -> None:
    """While a person decides, the server does nothing, so another request may run."""
    app, connect = crm
    app.has_sessions("s1")

    async def call(posted: Posted, send: Send) -> None:
        if posted.body["params"]["name"] == "quick":
            await result(DONE)(posted, send)
            return
        await begin(send, kind=EVENTS)
        ask: Any = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}}
        await more(send, event(ask))
        await until(lambda: app.of("response"))
        await finish(send, event(final(posted, DONE)))

    app.answers["tools/call"] = call
    connection = connect(concurrency=1)
    async with connection.exchange("tools/call", {"name": "asks"}) as exchange:
        messages = exchange.messages()
        asked = await anext(messages)
        assert isinstance(asked, UpstreamRequest)
        assert await result_of(connection, params={"name": "quick"}) == DONE
        await exchange.respond(asked.id, {"result": {"action": "decline"}})
        assert await anext(messages) == UpstreamResult(DONE)


@pytest.mark.parametrize("has_sessions", [False, True])
async def test_changes_are_followed(crm: Crm, has_sessions: bool) -> None:
    """By `subscriptions/listen`, or the GET stream of a session; the end of it is a failure."""
    app, connect = crm
    ending = asyncio.Event()

    async def stream(posted: Posted, send: Send) -> None:
        await begin(send, kind=EVENTS)
        method = "notifications/subscriptions/acknowledged"
        if not has_sessions:
            await more(send, event({"jsonrpc": "2.0", "method": method, "params": {}}))
        await more(send, event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
        await until(ending.is_set)
        await finish(send)

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
        asked = app.of("subscriptions/listen")[0].body["params"]["notifications"]
        assert asked == {"toolsListChanged": True, "resourceSubscriptions": ["file:///a"]}


@pytest.mark.parametrize("has_sessions", [False, True])
async def test_a_server_without_a_stream_of_changes_is_reported_at_once(
    crm: Crm, has_sessions: bool
) -> None:
    """So that it is polled instead."""
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
    app.answers |= {"tools/call": result(DONE), "logging/setLevel": result({})}
    connection = connect()
    for level in ("debug", "debug", "error"):
        await result_of(connection, log_level=level)

    levels = [one.body["params"]["level"] for one in app.of("logging/setLevel")]
    assert levels == ["debug", "error"]


async def test_idle_connections_are_kept_within_a_limit(
    scripted: tuple[ScriptedServer, str],
) -> None:
    """The session of the one that was not used for longest ends; forgetting ends all of them."""
    app, url = scripted
    app.has_sessions("s1", "s2", "s3")
    app.answers["tools/call"] = result(DONE)
    process = ConnectingProcess(url.split("/")[2], kept=2)
    for person in ("a", "b", "a", "c"):
        await result_of(process.http(url, (person,)))
    await until(lambda: app.of("DELETE"))
    assert app.of("DELETE")[0].headers["mcp-session-id"] == "s2"

    await process.connections.forget(url)
    ended = {one.headers["mcp-session-id"] for one in app.of("DELETE")}
    assert ended == {"s1", "s2", "s3"}
    await process.aclose()
