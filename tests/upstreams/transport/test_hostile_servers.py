"""Upstreams that mean harm or break every rule: each fails with its reason, and others go on."""

import asyncio
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.upstreams.connection import UpstreamConnection, UpstreamResult
from tests.support.connections import ConnectingProcess
from tests.support.internet import (
    EVENTS,
    Answer,
    Posted,
    ScriptedServer,
    begin_answer,
    event_bytes,
    finish_answer,
    raw_answer,
    result_answer,
    scripted_server,
    send_final_event,
    send_more,
    stall,
)
from tests.support.issuers import AsgiServer, Send
from tests.support.proxies import CertificateAuthority
from tests.upstreams.transport.test_http_requests import (
    crm,
    failure_of,
    messages_of,
    result_of,
)

__all__ = ["crm", "scripted_server"]  # fixtures

Crm = tuple[ScriptedServer, Callable[..., UpstreamConnection]]
BODY_CHUNK = b"x" * 65_536
EMPTY_RESULT = {"content": []}
MAX_MEMORY = 60_000_000
"""Bytes that one hostile answer may cost, in the server and the client together."""


def endless(piece: bytes, kind: str = EVENTS, begun: bytes = b"", **headers: str) -> Answer:
    """Return an answer that sends the same piece without end."""

    async def answer(posted: Posted, send: Send) -> None:
        await begin_answer(send, kind=kind, **headers)
        await send_more(send, begun)
        gone = asyncio.ensure_future(stall(posted))
        while not gone.done():
            await send_more(send, piece)
            await asyncio.sleep(0)

    return answer


async def answer_with_large_result(posted: Posted, send: Send) -> None:
    """Answer with a valid result of 100 MB."""
    await begin_answer(send)
    await send_more(send, b'{"jsonrpc":"2.0","id":%d,"result":{"a":"' % posted.id)
    for _ in range(100_000_000 // len(BODY_CHUNK)):
        await send_more(send, BODY_CHUNK)
    await finish_answer(send, b'"}}')


def answer_with_change(change: Callable[[dict[str, Any]], Any]) -> Answer:
    """Return an answer whose final message is changed."""

    async def answer(posted: Posted, send: Send) -> None:
        body = msgspec.json.encode(change(send_final_event(posted)))
        await raw_answer(body)(posted, send)

    return answer


async def stalls_at_once(posted: Posted, send: Send) -> None:
    await stall(posted)


async def stalls_in_its_stream(posted: Posted, send: Send) -> None:
    await begin_answer(send, kind=EVENTS)
    await send_more(send, b": still here\n\n")
    await stall(posted)


async def answer_by_bytes(posted: Posted, send: Send) -> None:
    """Answer with one byte of a comment at a time, which is no message."""
    await begin_answer(send, kind=EVENTS)
    gone = asyncio.ensure_future(stall(posted))
    while not gone.done():
        await send_more(send, b":\n")
        await asyncio.wait([gone], timeout=0.02)


def gzip_bomb() -> bytes:
    """Return two hundred megabytes of zeros in gzip: one block, repeated."""
    compressing = zlib.compressobj(9, wbits=31)
    blocks = [
        compressing.compress(b"\0" * 2_000_000) + compressing.flush(zlib.Z_FULL_FLUSH)
        for _ in range(2)
    ]
    return blocks[0] + blocks[1] * 99


GZIP_BOMB = gzip_bomb()
NOTIFICATION = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}}
HOSTILE_ANSWERS: dict[str, tuple[Answer, str]] = {
    "endless events": (endless(event_bytes(NOTIFICATION) * 100), "invalid"),
    "endless comments": (endless(b":\n" * 10_000), "invalid"),
    "endless other requests": (
        endless(event_bytes({"jsonrpc": "2.0", "id": 10**6, "result": {}}) * 100), "invalid",
    ),
    "endless line": (endless(BODY_CHUNK, begun=b"data: "), "invalid"),
    "endless JSON": (endless(BODY_CHUNK, "application/json", b'{"a":"'), "invalid"),
    "a message of 100 MB": (answer_with_large_result, "invalid"),
    "a gzip bomb": (raw_answer(GZIP_BOMB, content_encoding="gzip"), "invalid"),
    "a gzip bomb of events": (
        raw_answer(GZIP_BOMB, kind=EVENTS, content_encoding="gzip"), "invalid",
    ),
    "damaged gzip": (raw_answer(b"\x1f\x8bxxxx", content_encoding="gzip"), "invalid"),
    "an unknown coding": (raw_answer(b"{}", content_encoding="br"), "invalid"),
    "not JSON": (raw_answer(b"{'a': 1}"), "invalid"),
    "nothing": (raw_answer(b""), "invalid"),
    "no JSON-RPC": (raw_answer(b'{"ok": true}'), "invalid"),
    "deep JSON": (raw_answer(b"[" * 100_000), "invalid"),
    "many values": (
        raw_answer(b'{"jsonrpc":"2.0","id":2,"result":{"a":[%b0]}}' % (b"0," * 900_000)), "invalid",
    ),
    "another id": (answer_with_change(lambda body: body | {"id": 999}), "invalid"),
    "no id": (answer_with_change(lambda body: body | {"id": None}), "invalid"),
    "a list as result": (answer_with_change(lambda body: body | {"result": []}), "invalid"),
    "events of no JSON": (raw_answer(b"data: hello\n\n", kind=EVENTS), "invalid"),
    "HTML that claims to be JSON": (raw_answer(b"<html>"), "invalid"),
    "JSON that claims to be HTML": (raw_answer(b"{}", kind="text/html"), "invalid"),
    "JSON that claims to be events": (
        raw_answer(b'{"jsonrpc":"2.0"}', kind=EVENTS), "outcome_unknown",
    ),
    "no content type": (raw_answer(b"{}", kind=""), "invalid"),
    "a redirect": (raw_answer(b"", 307, location="http://169.254.169.254/latest"), "invalid"),
    "a stall": (stalls_at_once, "timeout"),
    "a stall in a stream": (stalls_in_its_stream, "timeout"),
    "comments instead of messages": (answer_by_bytes, "timeout"),
}  # fmt: skip


@pytest.fixture
async def neighbour(
    scripted_server: tuple[ScriptedServer, str],
) -> AsyncIterator[tuple[ScriptedServer, ConnectingProcess, str, str]]:
    """Yield a hostile server and a good one, and one process that connects to both."""
    app, url = scripted_server
    good_server = ScriptedServer()
    good_server.answers["tools/call"] = result_answer(EMPTY_RESULT)
    server = AsgiServer(good_server).start()
    other = f"{server.url}/mcp"
    process = ConnectingProcess(url.split("/")[2], other.split("/")[2])
    yield app, process, url, other
    await process.aclose()
    server.stop()


@pytest.mark.parametrize(("answer", "reason"), HOSTILE_ANSWERS.values(), ids=HOSTILE_ANSWERS)
@pytest.mark.requirement("E11")
async def test_a_hostile_answer_has_a_reason_and_does_not_affect_another_server(
    neighbour: tuple[ScriptedServer, ConnectingProcess, str, str], answer: Answer, reason: str
) -> None:
    """The request is sent once with bounded memory, and the failure does not quote the answer."""
    app, process, bad, good_server = neighbour
    app.answers["tools/call"] = answer
    await process.http(bad).describe()
    tracemalloc.start()
    idle_s = 2 if reason == "timeout" else 50  # a busy machine reads slowly
    failing = asyncio.create_task(
        failure_of(process.http(bad), idle_s=idle_s, timeout_s=50, max_bytes=1_000_000)
    )
    answered = 0
    while not failing.done():
        assert await result_of(process.http(good_server)) == EMPTY_RESULT
        answered += 1
        await asyncio.wait([failing], timeout=0.05)
    failure = await failing
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert failure.reason == reason, failure.message
    assert answered
    assert "crm" in failure.message
    assert len(failure.message) < 300
    assert len(app.of("tools/call")) == 1
    assert peak < MAX_MEMORY


async def test_a_hostile_discovery_leads_to_a_failure_and_not_to_a_wait(
    neighbour: tuple[ScriptedServer, ConnectingProcess, str, str],
) -> None:
    """A server that is no MCP server is recognized before any request."""
    app, process, bad, _ = neighbour
    for answer in (
        endless(BODY_CHUNK, begun=b"data: "),
        raw_answer(b"<html>", kind="text/html"),
        raw_answer(GZIP_BOMB),
    ):
        app.answers |= {"server/discover": answer, "initialize": answer}
        assert (await failure_of(process.http(bad))).reason == "invalid"
    assert app.of("tools/call") == []


async def test_a_session_id_cannot_inject_a_header(
    neighbour: tuple[ScriptedServer, ConnectingProcess, str, str],
) -> None:
    """It is sent in a header, so it must have only visible characters."""
    app, process, bad, _ = neighbour
    app.has_sessions("a b\tc")

    assert (await failure_of(process.http(bad))).reason == "invalid"


async def test_names_and_arguments_cannot_inject_a_header(
    neighbour: tuple[ScriptedServer, ConnectingProcess, str, str],
) -> None:
    """Values are encoded; an invalid header name is refused."""
    app, process, _, good_server = neighbour
    del app
    connection = process.http(good_server)
    name = "act\r\nx-admin: yes"
    await messages_of(connection, params={"name": name}, header_arguments={"Region": name})
    failure = await failure_of(connection, header_arguments={"a\r\nx-admin": "yes"})

    assert failure.reason == "denied"


async def test_a_stream_of_changes_is_read_within_bounds(
    neighbour: tuple[ScriptedServer, ConnectingProcess, str, str],
) -> None:
    """A flood of changes waits as one; an endless line ends the stream."""
    app, process, bad, _ = neighbour
    acknowledged = event_bytes(
        {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {}}
    )
    change = event_bytes({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    app.answers["subscriptions/listen"] = endless(BODY_CHUNK, begun=acknowledged + change * 5_000)

    methods_read = []
    with pytest.raises(Exception, match="larger than is read"):
        async with asyncio.timeout(30), process.http(bad).notifications() as changes:
            methods_read = [change.method async for change in changes]
    assert len(methods_read) < 5_000


async def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    """No request is sent; a valid certificate of the same authority is accepted."""
    company = CertificateAuthority(tmp_path)
    reasons = []
    for hours in (-1.0, 1.0):
        app = ScriptedServer()
        app.answers["tools/call"] = result_answer(EMPTY_RESULT)
        certificate, key = company.certify("localhost", hours=hours)
        server = AsgiServer(app, ssl_certfile=certificate, ssl_keyfile=key).start()
        host = f"localhost:{server.port}"
        process = ConnectingProcess(host, ca_bundle=str(company.bundle))
        try:
            connection = process.http(f"https://{host}/mcp")
            if hours < 0:
                reasons.append((await failure_of(connection)).reason)
                assert app.seen == []
            else:
                assert await messages_of(connection) == [UpstreamResult(EMPTY_RESULT)]
        finally:
            await process.aclose()
            server.stop()
    assert reasons == ["unreachable"]


async def test_a_stalled_request_ends_after_its_time_although_progress_arrives(crm: Crm) -> None:
    """The whole time has a limit that no message resets."""
    app, connect = crm

    async def call(posted: Posted, send: Send) -> None:
        await begin_answer(send, kind=EVENTS)
        token = posted.body["params"]["_meta"]["progressToken"]
        progress = {"progressToken": token, "progress": 1}
        notification = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
        gone = asyncio.ensure_future(stall(posted))
        while not gone.done():
            await send_more(send, event_bytes(notification))
            await asyncio.wait([gone], timeout=0.05)

    app.answers["tools/call"] = call
    started = time.monotonic()
    failure = await failure_of(connect(), timeout_s=1, idle_s=0.5)
    assert failure.reason == "timeout"
    assert 0.9 < time.monotonic() - started < 10


async def test_a_reply_that_is_finished_slowly_is_read(crm: Crm) -> None:
    """Slow is not hostile: the answer comes in many pieces."""
    app, connect = crm

    async def call(posted: Posted, send: Send) -> None:
        await begin_answer(send, kind=EVENTS)
        data = event_bytes(send_final_event(posted, EMPTY_RESULT))
        for chunk_number in range(len(data)):
            await send_more(send, data[chunk_number : chunk_number + 1])
            await asyncio.sleep(0)
        await finish_answer(send)

    app.answers["tools/call"] = call
    assert await result_of(connect()) == EMPTY_RESULT
