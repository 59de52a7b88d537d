"""Send requests whose answers are read while they arrive, under the same rules as all others."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Unpack

import httpx2

from gatepost.outbound.http_client import TIMEOUT_S, Sender
from gatepost.outbound.http_response import PARTS_AT_ONCE, Unpacker, coding_of
from gatepost.outbound.transport_errors import failure_of
from gatepost.tools.context.interfaces import Sending
from gatepost_authz.pinned_response import PinnedResponse

CHUNK_BYTES = 1_000_000
"""Maximum number of bytes that one part of an answer may have after decompression."""


class AnswerInvalid(Exception):
    """The answer cannot be read; the message is the rest of a sentence about the server."""


class StreamedReply:
    """The status and headers of an answer, and its body while it arrives."""

    def __init__(self, answer: PinnedResponse) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        """By lower-case names."""
        self._body = answer.body

    async def parts(self, max_bytes: int | None) -> AsyncIterator[bytes]:
        """
        Yield the decompressed body, part by part; raises AnswerInvalid beyond *max_bytes*.

        Without *max_bytes* the stream has no end of its own, and the reader has to bound it.
        """
        coding = coding_of(self.headers)
        if coding is None:
            raise AnswerInvalid("used a content encoding that was not requested")
        unpacker = Unpacker(coding)
        remaining_bytes, count = max_bytes, 0
        try:
            async with aclosing(aiter(self._body)) as received:
                async for part in received:
                    count += 1
                    if count % PARTS_AT_ONCE == 0:
                        await asyncio.sleep(0)
                    limit = (
                        CHUNK_BYTES
                        if remaining_bytes is None
                        else min(CHUNK_BYTES, remaining_bytes + 1)
                    )
                    # An identity coding passes on at most as much as fits, so it comes in slices.
                    for start in range(0, len(part), CHUNK_BYTES):
                        piece = unpacker.unpack(part[start : start + CHUNK_BYTES], limit)
                        while piece:
                            if remaining_bytes is not None:
                                remaining_bytes -= len(piece)
                                if remaining_bytes < 0:
                                    raise AnswerInvalid("sent more than is read of one answer")
                                limit = min(CHUNK_BYTES, remaining_bytes + 1)
                            yield piece
                            piece = b"" if coding == "identity" else unpacker.unpack(b"", limit)
            # Another request may use the connection while this answer is worked on.
            await self._body.aclose()
        except zlib.error:
            raise AnswerInvalid("sent a body that cannot be decompressed") from None

    async def whole(self, max_bytes: int) -> bytes:
        """Return the whole body; raises AnswerInvalid beyond *max_bytes*."""
        body = bytearray()
        async for part in self.parts(max_bytes):
            body += part
        return bytes(body)


@asynccontextmanager
async def streamed(
    sender: Sender, method: str, url: str, **options: Unpack[Sending]
) -> AsyncIterator[StreamedReply]:
    """
    Send one request and yield its answer; no redirect is followed.

    Raises ToolFailure like `Sender.send`, also while the body is read. `timeout_s` bounds each wait
    for the network; the caller bounds the whole exchange.
    """
    outbound = sender.checked(method, url, options)
    try:
        async with sender.answered(outbound, options.get("timeout_s", TIMEOUT_S)) as answer:
            yield StreamedReply(answer)
    except httpx2.TransportError as error:
        raise failure_of(error, outbound.where.host, outbound.method, was_sent=False) from error
