"""What goes over HTTP to an upstream, and what each of its answers means."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from gatepost.credentials.credential import CredentialUnavailable
from gatepost.tools.context.interfaces import SignedHeaders
from gatepost.upstreams.connection import (
    ConnectionFailure,
    RequestOptions,
    UpstreamConnection,
    UpstreamError,
    UpstreamMessage,
    UpstreamRequest,
    UpstreamResult,
)
from tests.support.connections import ConnectingProcess
from tests.support.internet import (
    EVENTS,
    Answer,
    Posted,
    ScriptedServer,
    begin_answer,
    error_answer,
    event_bytes,
    finish_answer,
    raw_answer,
    result_answer,
    scripted_server,
    send_final_event,
    send_more,
    stall,
)
from tests.support.issuers import Send

__all__ = ["scripted_server"]  # a fixture

WITHIN_S = 60


async def wait_until(condition: Callable[[], object], within: float = 20) -> None:
    """Return once *condition* holds, of which another thread or process takes care."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - no event crosses to this loop
            await asyncio.sleep(0.01)


async def messages_of(
    connection: UpstreamConnection,
    method: str = "tools/call",
    params: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[UpstreamMessage]:
    """Return all messages of one request."""
    call_params = {"name": "act", "arguments": {}} if params is None else params
    async with (
        asyncio.timeout(WITHIN_S),
        connection.exchange(method, call_params, RequestOptions(**options)) as exchange,
    ):
        return [message async for message in exchange.messages()]


async def result_of(
    connection: UpstreamConnection,
    method: str = "tools/call",
    params: Mapping[str, Any] | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """Return the result of one request."""
    last = (await messages_of(connection, method, params, **options))[-1]
    assert isinstance(last, UpstreamResult), last
    return last.value


async def failure_of(connection: UpstreamConnection, **options: Any) -> ConnectionFailure:
    """Return why a request fails."""
    with pytest.raises(ConnectionFailure) as failed:
        await messages_of(connection, **options)
    return failed.value


@pytest.fixture
async def crm(
    scripted_server: tuple[ScriptedServer, str],
) -> AsyncIterator[tuple[ScriptedServer, Any]]:
    """Yield a scripted server, and a function that connects to it."""
    app, url = scripted_server
    process = ConnectingProcess(url.split("/")[2])

    def connect(principal: tuple[str, ...] | None = None, **more: Any) -> UpstreamConnection:
        process_credential = more.pop("credential", None)
        if process_credential is not None:
            process.credential = process_credential
        return process.http(url, principal, **more)

    yield app, connect
    await process.aclose()


Crm = tuple[ScriptedServer, Callable[..., UpstreamConnection]]
DONE_RESULT = {"content": [{"type": "text", "text": "done"}]}


class RenewableCredential:
    """Has a new version after each refusal, *renewals* times."""

    def __init__(self, renewals: int = 1, **headers: str) -> None:
        self.version, self.renewals, self.headers_sent = 0, renewals, headers

    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        headers = {"authorization": f"Bearer v{self.version}", **self.headers_sent}
        return SignedHeaders(headers, str(self.version))

    async def refused(self, headers: SignedHeaders) -> bool:
        if headers.version == str(self.version) and self.version < self.renewals:
            self.version += 1
        return headers.version != str(self.version)


class MissingCredential:
    async def headers(self, principal: tuple[str, ...] | None = None) -> SignedHeaders:
        raise CredentialUnavailable("the token endpoint does not answer")

    async def refused(self, headers: SignedHeaders) -> bool:
        return False


def answer_for_token(bearer: str) -> Answer:
    async def answer(posted: Posted, send: Send) -> None:
        is_authorized = posted.headers.get("authorization") == bearer
        await (result_answer(DONE_RESULT) if is_authorized else raw_answer(b"", 401))(posted, send)

    return answer


async def test_a_modern_server_costs_one_post_a_request_on_one_connection(crm: Crm) -> None:
    """After discovery there is neither a session nor any other message."""
    app, connect = crm
    app.answers["tools/call"] = result_answer(DONE_RESULT)
    connection = connect()

    assert await result_of(connection) == DONE_RESULT
    assert await result_of(connection) == DONE_RESULT
    assert [seen_request.method for seen_request in app.seen] == [
        "server/discover",
        "tools/call",
        "tools/call",
    ]
    sent = app.seen[-1].headers
    assert (sent["mcp-method"], sent["mcp-name"]) == ("tools/call", "act")
    assert sent["mcp-protocol-version"] == "2026-07-28"
    assert "mcp-session-id" not in sent


async def test_a_second_connection_needs_no_discovery(crm: Crm) -> None:
    """Another caller's first call costs no discovery."""
    app, connect = crm
    app.answers["tools/call"] = result_answer(DONE_RESULT)
    await result_of(connect())
    await result_of(connect(("alice",)))

    assert len(app.of("server/discover")) == 1


async def test_cancelling_a_request_ends_the_wait_and_closes_its_stream(crm: Crm) -> None:
    """A modern server sees the closed stream."""
    app, connect = crm
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def call(posted: Posted, send: Send) -> None:
        await stall(posted)
        loop.call_soon_threadsafe(gone.set)

    app.answers["tools/call"] = call
    async with connect().exchange("tools/call", {"name": "act"}) as exchange:
        waiting = asyncio.ensure_future(anext(exchange.messages()))
        await wait_until(lambda: app.of("tools/call"))
        await exchange.cancel("the caller is gone")
        with pytest.raises(ConnectionFailure) as failed:
            await waiting
    assert failed.value.reason == "timeout"
    async with asyncio.timeout(10):
        await gone.wait()


@pytest.mark.parametrize("has_sessions", [False, True])
async def test_a_stream_that_ends_without_an_answer_leaves_the_outcome_unknown(
    crm: Crm, has_sessions: bool
) -> None:
    """The request is not sent again."""
    app, connect = crm
    if has_sessions:
        app.has_sessions("s1")
    app.answers["tools/call"] = raw_answer(b": nothing\n\n", kind=EVENTS)

    failure = await failure_of(connect())
    assert (failure.reason, len(app.of("tools/call"))) == ("outcome_unknown", 1)
    assert "crm" in failure.message


async def test_a_refused_credential_is_renewed_once(crm: Crm) -> None:
    """Gatepost retries only after 401, which says that no tool ran."""
    app, connect = crm
    app.answers["tools/call"] = answer_for_token("Bearer v1")
    assert await result_of(connect(credential=RenewableCredential())) == DONE_RESULT
    assert len(app.of("tools/call")) == 2


async def test_a_credential_that_stays_refused_is_reported(crm: Crm) -> None:
    """Gatepost reports it after one retry, without quoting the credential."""
    app, connect = crm
    app.answers["tools/call"] = answer_for_token("Bearer never")
    failure = await failure_of(connect(credential=RenewableCredential(renewals=9)))

    assert (failure.reason, len(app.of("tools/call"))) == ("unauthorized", 2)
    assert "v1" not in failure.message


REFUSED_ANSWERS: dict[str, tuple[Answer, str, float | None]] = {
    "403": (raw_answer(b"", 403), "unauthorized", None),
    "429": (raw_answer(b"", 429, retry_after="7"), "overloaded", 7.0),
    "503": (raw_answer(b"", 503), "overloaded", None),
    "500": (raw_answer(b"oh", 500, "text/plain"), "invalid", None),
    "502": (raw_answer(b"<html>", 502, "text/html"), "outcome_unknown", None),
    "404 without a session": (raw_answer(b"", 404), "invalid", None),
    "202": (raw_answer(b"", 202), "invalid", None),
}


@pytest.mark.parametrize(
    ("answer", "reason", "after"), REFUSED_ANSWERS.values(), ids=REFUSED_ANSWERS
)
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
    app.answers["tools/call"] = error_answer(-32021, "Needs elicitation", 400, {"a": 1})

    assert await messages_of(connect()) == [UpstreamError(-32021, "Needs elicitation", {"a": 1})]


@pytest.mark.parametrize(
    "headers", [{"mcp-session-id": "x"}, {"host": "x"}, {"x": "a\r\nhost: y"}, {"cookie": "a=b"}]
)
async def test_a_credential_cannot_set_the_headers_of_the_protocol(
    crm: Crm, headers: dict[str, str]
) -> None:
    """It cannot break a header line, either."""
    app, connect = crm
    failure = await failure_of(connect(credential=RenewableCredential(**headers)))

    assert (failure.reason, app.seen) == ("denied", [])
    assert headers.get("x", "nothing") not in failure.message


async def test_a_missing_credential_is_denied(crm: Crm) -> None:
    """Gatepost refuses the call before it sends anything."""
    app, connect = crm
    failure = await failure_of(connect(credential=MissingCredential()))

    assert (failure.reason, app.seen) == ("denied", [])


async def test_a_server_that_cannot_be_reached_is_unreachable() -> None:
    """No request was sent; a disallowed address is denied."""
    process = ConnectingProcess("127.0.0.1:9")
    try:
        away = await failure_of(process.http("http://127.0.0.1:9/mcp"))
        forbidden = await failure_of(process.http("https://10.0.0.1/mcp", id="b"))
    finally:
        await process.aclose()
    assert (away.reason, forbidden.reason) == ("unreachable", "denied")


async def test_a_client_request_frees_concurrency_for_waiting_requests(crm: Crm) -> None:
    """While a person decides, the server does not work on the request."""
    app, connect = crm
    app.has_sessions("s1")

    async def call(posted: Posted, send: Send) -> None:
        if posted.body["params"]["name"] == "quick":
            await result_answer(DONE_RESULT)(posted, send)
            return
        await begin_answer(send, kind=EVENTS)
        ask: Any = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}}
        await send_more(send, event_bytes(ask))
        await wait_until(lambda: app.of("response"))
        await finish_answer(send, event_bytes(send_final_event(posted, DONE_RESULT)))

    app.answers["tools/call"] = call
    connection = connect(concurrency=1)
    async with connection.exchange("tools/call", {"name": "asks"}) as exchange:
        messages = exchange.messages()
        asked_message = await anext(messages)
        assert isinstance(asked_message, UpstreamRequest)
        assert await result_of(connection, params={"name": "quick"}) == DONE_RESULT
        await exchange.respond(asked_message.id, {"result": {"action": "decline"}})
        assert await anext(messages) == UpstreamResult(DONE_RESULT)
