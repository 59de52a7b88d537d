"""What is read: never more than was asked for, however small it was packed."""

import asyncio
import zlib
from typing import Any

import httpx2

from gatepost.tools.api import ToolFailure
from gatepost.tools.surroundings import Reply

OVERHEAD_BYTES = 1_000_000
"""How much longer than its content a packed body may be before it is given up."""

MOST_PARTS = 200_000
PARTS_AT_ONCE = 32
"""
A body may come as chunks of one byte, each of which takes longer to read than a kilobyte: so many
are read before others have their turn.
"""


class Unpacker:
    """
    Undoes gzip and deflate (RFC 9110 section 8.4.1) piece by piece.

    Nothing else is asked for, so nothing else is understood. zlib.error when it is damaged.
    """

    def __init__(self, coding: str) -> None:
        self.coding = coding
        self._inflate: Any = None
        self._packed = b""

    def unpack(self, data: bytes, most: int) -> bytes:
        """The next *most* bytes at most of what *data* and what came before mean."""
        if self.coding == "identity":
            return data[:most]
        self._packed += data
        found = bytearray()
        while self._packed and len(found) < most:
            if self._inflate is None:
                self._inflate = zlib.decompressobj(self._window())
            found += self._inflate.decompress(self._packed, most - len(found))
            self._packed = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._packed, self._inflate = self._inflate.unused_data, None
                if self.coding == "deflate" or not self._packed.startswith(b"\x1f"):
                    break  # what follows the last member is padding
        return bytes(found)

    @property
    def complete(self) -> bool:
        """Whether all that was begun came to its end."""
        return self._inflate is None

    def _window(self) -> int:
        if self.coding == "gzip":
            return 16 + zlib.MAX_WBITS
        # Named after a format with a head, and sent without it by some.
        return zlib.MAX_WBITS if self._packed[0] & 0x0F == 8 else -zlib.MAX_WBITS


async def read(answer: httpx2.Response, *, url: str, host: str, max_bytes: int) -> Reply:
    """The answer with at most *max_bytes* of its body; ToolFailure when it cannot be unpacked."""
    unpacker = Unpacker(_coding(answer, host))
    body = bytearray()
    received, parts, truncated = 0, 0, False
    try:
        async for part in answer.aiter_raw():
            received, parts = received + len(part), parts + 1
            if parts % PARTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            body += unpacker.unpack(part, max_bytes + 1 - len(body))
            longest = received > max_bytes + OVERHEAD_BYTES or parts > MOST_PARTS
            if len(body) > max_bytes or longest:
                truncated = True
                break
    except zlib.error:
        raise ToolFailure(
            "upstream_unavailable", f"{host} sent a body that cannot be unpacked."
        ) from None
    return Reply(
        status=answer.status_code,
        headers=dict(answer.headers.items()),
        body=bytes(body[:max_bytes]),
        truncated=truncated or not unpacker.complete,
        url=url,
    )


def _coding(answer: httpx2.Response, host: str) -> str:
    coding = answer.headers.get("content-encoding", "").strip().lower() or "identity"
    coding = coding.removeprefix("x-")
    if coding not in {"identity", "gzip", "deflate"}:
        raise ToolFailure(
            "upstream_unavailable", f"{host} packed its answer in a way that was not asked for."
        )
    return coding
