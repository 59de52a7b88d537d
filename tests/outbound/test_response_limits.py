"""Of an answer so much is read as was asked for, in the time that was given, and no more."""

import asyncio
import contextlib
import gzip
import zlib
from typing import Any

import pytest

from gatepost.execution.failure import ToolFailure
from gatepost.outbound.http_client import OutboundClient
from gatepost.outbound.http_response import Unpacker
from gatepost.tools.context.interfaces import OutboundReply
from tests.support.internet import Internet, Page, ReceivedRequest
from tests.support.issuers import Send

SITE = "https://www.web.test/"
MEGABYTE = 1_000_000


def answers(body: bytes, coding: str = "") -> Page:
    async def page(seen: ReceivedRequest, send: Send) -> None:
        headers = [(b"content-length", str(len(body)).encode())]
        if coding:
            headers.append((b"content-encoding", coding.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for at in range(0, len(body) or 1, 50_000):
            part = body[at : at + 50_000]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return page


async def get(outbound_client: OutboundClient, **options: Any) -> OutboundReply:
    return await outbound_client.client_for("acme").send("GET", SITE, **options)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


TEXT = bytes(range(256)) * 2000
COMPRESSED_BODIES = [
    ("gzip", gzip.compress(TEXT)),
    ("x-gzip", gzip.compress(TEXT)),
    ("GZIP", gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:])),
    ("gzip", gzip.compress(TEXT) + b"\0" * 100),
    ("deflate", zlib.compress(TEXT)),
    ("deflate", raw_deflate(TEXT)),
    ("identity", TEXT),
    ("", TEXT),
]


@pytest.mark.parametrize(("coding", "body"), COMPRESSED_BODIES)
async def test_a_compressed_body_is_decompressed(
    outbound_client: OutboundClient, internet: Internet, coding: str, body: bytes
) -> None:
    """gzip and deflate work in each of their forms, without further packages."""
    internet.site.pages["/"] = answers(body, coding)

    reply = await get(outbound_client)

    assert (reply.body, reply.truncated) == (TEXT, False)
    assert internet.site.seen[0].headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(("coding", "body"), COMPRESSED_BODIES)
async def test_a_body_is_cut_at_the_requested_size(
    outbound_client: OutboundClient, internet: Internet, coding: str, body: bytes
) -> None:
    """The cut counts unpacked bytes exactly, and is reported; a body that fits stays whole."""
    internet.site.pages["/"] = answers(body, coding)

    for most in (0, 1, len(TEXT) - 1):
        reply = await get(outbound_client, max_bytes=most)
        assert (reply.body, reply.truncated) == (TEXT[:most], True)
    assert (await get(outbound_client, max_bytes=len(TEXT))).truncated is False


async def test_a_decompression_bomb_is_never_in_memory(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """A thousandfold packing, also of a packing: the second one stays packed."""
    bomb = gzip.compress(b"\0" * 50 * MEGABYTE)
    internet.site.pages["/"] = answers(bomb, "gzip")

    reply = await get(outbound_client, max_bytes=1000)

    assert (len(reply.body), reply.truncated) == (1000, True)
    assert len(Unpacker("gzip").unpack(bomb, 1000)) == 1000


async def test_many_empty_gzip_members_are_cut(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """Otherwise Gatepost would read them for ever."""
    internet.site.pages["/"] = answers(gzip.compress(b"") * 100_000, "gzip")

    reply = await get(outbound_client, max_bytes=1000)

    assert (reply.body, reply.truncated) == (b"", True)


@pytest.mark.parametrize(
    ("coding", "body", "expected_text"),
    [
        ("gzip", b"no gzip at all", "cannot be decompressed"),
        ("deflate", b"\x78\x9cgarbage", "cannot be decompressed"),
        ("br", b"x", "not requested"),
        ("zstd", b"x", "not requested"),
        ("gzip, gzip", b"x", "not requested"),
    ],
)
async def test_a_body_that_cannot_be_decompressed_is_a_failure(
    outbound_client: OutboundClient,
    internet: Internet,
    coding: str,
    body: bytes,
    expected_text: str,
) -> None:
    """The model would otherwise get garbage."""
    internet.site.pages["/"] = answers(body, coding)

    with pytest.raises(ToolFailure, match=expected_text) as failure:
        await get(outbound_client)

    assert failure.value.failure.kind == "upstream_unavailable"


async def test_an_incomplete_compressed_body_is_marked_as_cut(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """The received part is shown and marked as cut."""
    internet.site.pages["/"] = answers(gzip.compress(TEXT)[:-30], "gzip")

    reply = await get(outbound_client)

    assert TEXT.startswith(reply.body)
    assert reply.truncated is True


async def test_a_response_that_arrives_too_slowly_times_out(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """The time is for all of it, however often something arrives."""

    async def drips(seen: ReceivedRequest, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.02)

    internet.site.pages["/"] = drips
    with pytest.raises(ToolFailure, match="did not answer in time") as failure:
        await get(outbound_client, timeout_s=0.2)

    assert failure.value.failure.kind == "timeout"


async def test_headers_come_by_lower_case_names(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """Repeated headers are joined into one (RFC 9110 section 5.3)."""

    async def page(seen: ReceivedRequest, send: Send) -> None:
        headers = [(b"x-one", b"1"), (b"x-one", b"2"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    internet.site.pages["/"] = page
    reply = await get(outbound_client)

    assert (reply.status, reply.headers["x-one"], reply.body) == (404, "1, 2", b"")


async def test_a_header_in_another_encoding_than_utf_8_is_read(
    outbound_client: OutboundClient, internet: Internet
) -> None:
    """Each value by itself; ISO-8859-1, in which every byte is a character, is the older one."""

    async def page(seen: ReceivedRequest, send: Send) -> None:
        headers = [(b"x-new", "é".encode()), (b"x-old", b"\xe9"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    internet.site.pages["/"] = page
    reply = await get(outbound_client)

    assert (reply.headers["x-new"], reply.headers["x-old"]) == ("é", "é")
