"""Servers whose legal answers are made to keep their reader busy."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_client import OutboundClient
from gatepost.outbound.http_response import PARTS_AT_ONCE
from gatepost.tools.context.interfaces import OutboundReply
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.support.internet import Internet

ANSWER_S = 20
RESPONSE_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def client_receiving(
    internet: Internet, pieces: Sequence[bytes], times: int = 1
) -> AsyncIterator[OutboundClient]:
    """Yield a client of a server that sends these bytes, the last of them *times* times."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.writelines(pieces[:-1])
            for _ in range(times):
                writer.write(pieces[-1])
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    network = Network(allow_hosts=(f"localhost:{port}",))
    outbound_client = OutboundClient(
        network, tls=Fetcher(development=True).tls, resolver=internet.names
    )
    outbound_client.url = f"http://localhost:{port}/"  # type: ignore[attr-defined]
    try:
        yield outbound_client
    finally:
        await outbound_client.aclose()
        server.close()
        await server.wait_closed()


async def reply_of(outbound_client: OutboundClient) -> OutboundReply:
    async with asyncio.timeout(ANSWER_S):
        url: str = outbound_client.url  # type: ignore[attr-defined]
        return await outbound_client.of("acme").send("GET", url, timeout_s=ANSWER_S * 2)


INTERIM_ANSWERS = {
    "interim answers": (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000,),
    "the shortest ones": (b"HTTP/1.1 100 \r\n\r\n" * 1_000,),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 1_000),
    "one header": (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 60_000),
    "empty lines": (b"\r\n" * 10_000,),
}


@pytest.mark.parametrize("pieces", INTERIM_ANSWERS.values(), ids=INTERIM_ANSWERS)
async def test_data_before_a_response_is_bounded(
    internet: Internet, pieces: Sequence[bytes]
) -> None:
    """The call ends soon, whatever the server sends, and says why."""
    async with client_receiving(internet, pieces, times=100_000) as outbound_client:
        with pytest.raises(ToolFailure, match="not HTTP") as failure:
            await reply_of(outbound_client)
    assert failure.value.failure.kind == "upstream_unavailable"


async def test_a_few_interim_responses_are_skipped(internet: Internet) -> None:
    """HTTP allows interim responses before the final one."""
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n" * 20
    whole = interim + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with client_receiving(internet, (whole,)) as outbound_client:
        assert (await reply_of(outbound_client)).body == b"ok"


async def test_a_body_of_tiny_chunks_leaves_others_their_turn(internet: Internet) -> None:
    """Other tasks run between the chunks."""
    chunks = 6_000
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with client_receiving(
        internet, (RESPONSE_HEAD, b"1\r\na\r\n" * chunks + b"0\r\n\r\n")
    ) as outbound_client:
        counting = asyncio.create_task(count())
        reply = await reply_of(outbound_client)
        counting.cancel()
    assert reply.body == b"a" * chunks
    assert not reply.truncated
    assert turns >= chunks // PARTS_AT_ONCE


async def test_a_body_of_tiny_chunks_ends(
    internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gatepost cuts a body with more chunks than a real server sends, and says so."""
    monkeypatch.setattr("gatepost.outbound.http_response.MAX_PARTS", 2_000)
    async with client_receiving(
        internet, (RESPONSE_HEAD, b"1\r\na\r\n" * 1_000), times=100_000
    ) as outbound_client:
        reply = await reply_of(outbound_client)
    assert reply.truncated
    assert len(reply.body) <= 2_001
