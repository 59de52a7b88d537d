"""The decisions of a connection that need no connection."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.mcp.request import decode_value
from gatepost.upstreams.connection import (
    ConnectionFailure,
    RequestOptions,
    ServerDescription,
    UpstreamError,
    UpstreamNotification,
    UpstreamRequest,
    UpstreamResult,
)
from gatepost.upstreams.transport import era
from gatepost.upstreams.transport.attribution import owner_of
from gatepost.upstreams.transport.concurrency import UpstreamConcurrency
from gatepost.upstreams.transport.exchange_timeouts import ExchangeTimeouts
from gatepost.upstreams.transport.failures import retry_after
from gatepost.upstreams.transport.incoming import InvalidMessage, UpstreamResponse
from gatepost.upstreams.transport.outgoing import PreparedRequest, encoded_value
from gatepost.upstreams.transport.reader import (
    MAX_MESSAGES,
    Announce,
    AnswerItself,
    Deliver,
    MessageReader,
)

SESSION_ERAS: list[era.DiscoveryAnswer] = [
    None,
    UpstreamError(-32601, "Method not found"),
    UpstreamError(-32602, "Received request before initialization was complete"),
    UpstreamError(-32022, "no", {"supported": ["2025-11-25"]}),
    UpstreamError(-32022, "no", "nothing"),
    UpstreamResult({"supportedVersions": ["2025-06-18"]}),
    UpstreamResult({"supportedVersions": 7}),
    UpstreamResult({}),
]


@pytest.mark.parametrize("outcome", SESSION_ERAS)
def test_a_server_without_the_newest_revision_gets_a_handshake(
    outcome: era.DiscoveryAnswer,
) -> None:
    """A list without any common revision gets none."""
    assert era.of_discovery(outcome) == "initialize"


def test_a_server_without_a_common_revision_is_incompatible() -> None:
    """The error names the server's revisions."""
    refusal = UpstreamError(-32022, "no", {"supported": ["2031-01-01"]})

    assert era.of_discovery(refusal) == "incompatible"


@given(st.dictionaries(st.text(max_size=20), st.none() | st.integers() | st.text()))
def test_a_description_has_the_right_types(value: dict[str, Any]) -> None:
    """This holds for anything that a server says about itself."""
    description = era.of_discovery(UpstreamResult({**value, "supportedVersions": ["2026-07-28"]}))

    assert isinstance(description, ServerDescription)
    assert msgspec.convert(msgspec.to_builtins(description), ServerDescription) == description


def test_a_handshake_falls_back_to_a_revision_that_the_server_names() -> None:
    """The newest one of those that it names."""
    refusal = UpstreamError(-32602, "no", {"supported": ["2024-11-05", "2025-03-26"]})

    assert era.second_offer(refusal, "2025-11-25") == "2025-03-26"
    assert era.of_handshake(UpstreamResult({"protocolVersion": "2023-01-01"})) is None


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_header_carries_every_text(text: str) -> None:
    """The gate of another Gatepost reads the same text from it, and it breaks no line."""
    value = encoded_value(text)

    assert value.isascii()
    assert value.isprintable()
    assert decode_value(value.encode()) == text


def test_a_modern_request_is_self_contained() -> None:
    """It has version, capabilities, log level and routing headers, and no data of the caller."""
    options = RequestOptions(
        capabilities={"elicitation": {}},
        progress_token="theirs",
        log_level="debug",
        idempotency_key="k1",
        input_responses={"a": {"action": "accept"}},
        request_state="s",
        header_arguments={"Region": "Zürich"},
    )
    call_params = {
        "name": "act",
        "_meta": {"progressToken": 9, "io.modelcontextprotocol/protocolVersion": "x", "own": 1},
    }
    request = PreparedRequest(7, "tools/call", call_params, options, "modern", "2026-07-28")
    body = msgspec.json.decode(request.body())

    assert body["id"] == 7
    meta = body["params"].pop("_meta")
    assert meta.pop("io.modelcontextprotocol/clientInfo")["name"] == "gatepost"
    assert meta == {
        "own": 1,
        "progressToken": 7,
        "io.gatepost/idempotency-key": "k1",
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        "io.modelcontextprotocol/logLevel": "debug",
    }
    assert body["params"] == {
        "name": "act",
        "inputResponses": {"a": {"action": "accept"}},
        "requestState": "s",
    }
    assert request.headers() == {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "act",
        "mcp-param-region": "=?base64?WsO8cmljaA==?=",
        "idempotency-key": "k1",
    }


def test_a_reader_passes_on_only_messages_of_its_request() -> None:
    """Progress under the caller's token, its own response, and no other's."""
    reader = MessageReader(5, "theirs", has_requests=True)
    ask = UpstreamRequest("a", "elicitation/create", {})
    change = UpstreamNotification("notifications/tools/list_changed", {})
    progress = UpstreamNotification("notifications/progress", {"progressToken": 5, "progress": 1})
    fields = {"progressToken": "theirs", "progress": 1}
    done = UpstreamResult({})

    assert reader.judge(progress) == Deliver(UpstreamNotification(progress.method, fields))
    assert reader.judge(UpstreamNotification(progress.method, {"progressToken": 6})) == "ignored"
    assert reader.judge(UpstreamResponse(6, done)) == "ignored"
    assert reader.judge(UpstreamRequest(1, "ping", {})) == AnswerItself(1, {"result": {}})
    assert isinstance(reader.judge(UpstreamRequest(1, "tools/call", {})), AnswerItself)
    assert reader.judge(ask) == Deliver(ask)
    assert reader.judge(change) == Announce(change)
    assert reader.judge(UpstreamNotification("notifications/own", {})) == "ignored"
    assert reader.judge(UpstreamResponse("5", done)) == Deliver(done, final=True)
    assert isinstance(MessageReader(5, None, has_requests=False).judge(ask), AnswerItself)
    assert MessageReader(5, None, has_requests=False).judge(progress) == "alive"


def test_the_number_of_messages_is_bounded() -> None:
    """Ignored ones count too."""
    reader = MessageReader(5, None, has_requests=False)
    other = UpstreamResponse(6, UpstreamResult({}))

    assert {reader.judge(other) for _ in range(MAX_MESSAGES)} == {"ignored"}
    with pytest.raises(InvalidMessage, match="more messages"):
        reader.judge(other)


def test_a_message_on_a_pipe_belongs_to_the_request_it_names_or_to_the_only_one() -> None:
    """If several requests run, a message that names none is dropped."""
    bare = UpstreamRequest(1, "elicitation/create", {})
    named = UpstreamRequest(1, "elicitation/create", {"_meta": {"progressToken": 3}})
    progress = UpstreamNotification("notifications/progress", {"progressToken": 9})

    assert owner_of(bare, {3}) == 3
    assert owner_of(bare, {3, 4}) is None
    assert owner_of(bare, ()) is None
    assert owner_of(named, {3, 4}) == 3
    assert owner_of(progress, {3}) is None


async def wait_for_silence(clock: ExchangeTimeouts, seconds: float = 60) -> None:
    """Wait for an upstream that sends nothing for so long."""
    async with clock.waiting():
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=seconds)


async def test_the_timeouts_pause_while_the_upstream_waits() -> None:
    """They are the limit of silence and the limit of the whole call."""
    clock = ExchangeTimeouts(timeout_s=0.3, idle_s=0.1)
    clock.pause()
    await wait_for_silence(clock, 0.4)
    clock.resume()

    for _ in range(3):
        with pytest.raises(TimeoutError):
            await wait_for_silence(clock)
    spent = ExchangeTimeouts(timeout_s=0.0, idle_s=60)
    with pytest.raises(TimeoutError):
        await wait_for_silence(spent)


async def test_an_answer_resumes_the_timeouts_of_a_running_wait() -> None:
    """The wait that began without a limit gets one."""
    clock = ExchangeTimeouts(timeout_s=5, idle_s=0.1)
    clock.pause()
    asyncio.get_running_loop().call_later(0.2, clock.resume)

    with pytest.raises(TimeoutError):
        await wait_for_silence(clock)


async def test_requests_beyond_the_limit_are_queued_in_order_and_then_refused() -> None:
    """Then they are refused without being sent."""
    limit = UpstreamConcurrency("crm", 1, wait_s=0.1)
    await limit.acquire()
    with pytest.raises(ConnectionFailure) as refused:
        await limit.acquire()
    assert refused.value.reason == "overloaded"

    waiting = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    limit.release()
    await waiting
    cancelled = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    limit.release()
    await limit.acquire()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), ("7", 7.0), ("99999999999", None), ("-1", None), ("soon", None),
        ("100000", 3600.0), ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after_is_read_in_both_forms(value: str | None, seconds: float | None) -> None:
    """Any other form is ignored."""
    assert retry_after(value, 100.0) == seconds
