"""Read an answer up to a limit, even if it was compressed to much less."""

import asyncio
import zlib
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from gatepost.execution.failure import ToolFailure
from gatepost.tools.context.interfaces import OutboundReply
from gatepost_authz.pinned_response import PinnedResponse

OVERHEAD_BYTES = 1_000_000
"""How many more bytes than *max_bytes* a compressed body may have."""

MAX_PARTS = 200_000
PARTS_AT_ONCE = 32
"""
The number of chunks after which other tasks may run. A body may arrive in chunks of one byte, each
of which takes longer to read than a kilobyte.
"""


class Unpacker:
    """
    Decompresses gzip and deflate (RFC 9110 section 8.4.1) piece by piece.

    Requests accept no other coding. Raises zlib.error if the data is damaged.
    """

    def __init__(self, coding: str) -> None:
        self.coding = coding
        self._inflate: Any = None
        self._packed = b""

    def unpack(self, data: bytes, max_bytes: int) -> bytes:
        """Decompress *data* after the previous data; return at most *max_bytes* bytes."""
        if self.coding == "identity":
            return data[:max_bytes]
        self._packed += data
        unpacked = bytearray()
        while self._packed and len(unpacked) < max_bytes:
            if self._inflate is None:
                self._inflate = zlib.decompressobj(self._window())
            unpacked += self._inflate.decompress(self._packed, max_bytes - len(unpacked))
            self._packed = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._packed, self._inflate = self._inflate.unused_data, None
                if self.coding == "deflate" or not self._packed.startswith(b"\x1f"):
                    break  # data after the last member is padding
        return bytes(unpacked)

    @property
    def complete(self) -> bool:
        """Return whether the compressed data is complete."""
        return self._inflate is None

    def _window(self) -> int:
        if self.coding == "gzip":
            return 16 + zlib.MAX_WBITS
        # "deflate" means the zlib format, but some servers send it without the zlib header.
        return zlib.MAX_WBITS if self._packed[0] & 0x0F == 8 else -zlib.MAX_WBITS


async def read(answer: PinnedResponse, *, url: str, host: str, max_bytes: int) -> OutboundReply:
    """Read at most *max_bytes* of the body; raises ToolFailure if it cannot be decompressed."""
    headers = answer.headers
    coding = coding_of(headers)
    if coding is None:
        raise ToolFailure(
            "upstream_unavailable", f"{host} used a content encoding that was not requested."
        )
    unpacker = Unpacker(coding)
    body = bytearray()
    received, parts, truncated = 0, 0, False
    try:
        async with aclosing(aiter(answer.body)) as incoming:
            async for part in incoming:
                received, parts = received + len(part), parts + 1
                if parts % PARTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                body += unpacker.unpack(part, max_bytes + 1 - len(body))
                longest = received > max_bytes + OVERHEAD_BYTES or parts > MAX_PARTS
                if len(body) > max_bytes or longest:
                    truncated = True
                    break
    except zlib.error:
        raise ToolFailure(
            "upstream_unavailable", f"{host} sent a body that cannot be decompressed."
        ) from None
    return OutboundReply(
        status=answer.status,
        headers=headers,
        body=bytes(body[:max_bytes]),
        truncated=truncated or not unpacker.complete,
        url=url,
    )


def coding_of(headers: Mapping[str, str]) -> str | None:
    """Return the content coding of an answer; None if it is none of those that were accepted."""
    coding = headers.get("content-encoding", "").strip().lower() or "identity"
    coding = coding.removeprefix("x-")
    return coding if coding in {"identity", "gzip", "deflate"} else None
