"""Limit the head of a response, and read it in small steps."""

import asyncio
import ssl
from contextvars import ContextVar
from typing import Any

import httpcore2

HEAD_BYTES = 262_144
"""The maximum size of a response's head with all interim responses (RFC 9110 section 15.2)."""
STEP_BYTES = 4_096
"""The bytes per read; other tasks run in between."""


class HeadBudget:
    """The remaining bytes for the head of one response."""

    def __init__(self) -> None:
        self.remaining_bytes = HEAD_BYTES


_BUDGET: ContextVar[HeadBudget | None] = ContextVar("gatepost_head", default=None)
"""The budget of the current request while its response head is awaited."""


class LimitedHead:
    """Limits the head that this task reads during the block."""

    def __enter__(self) -> None:
        self._token = _BUDGET.set(HeadBudget())

    def __exit__(self, *_: object) -> None:
        _BUDGET.reset(self._token)


class MeasuredConnection(httpcore2.AsyncNetworkStream):
    """A connection that limits the head of a response."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read from the connection; raise RemoteProtocolError if a head does not end."""
        budget = _BUDGET.get()
        if budget is None:
            return await self._stream.read(max_bytes, timeout)
        data = await self._stream.read(min(max_bytes, STEP_BYTES), timeout)
        budget.remaining_bytes -= len(data)
        if budget.remaining_bytes < 0:
            raise httpcore2.RemoteProtocolError("the head of the answer does not end")
        await asyncio.sleep(0)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write bytes, as httpcore2 asks for."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Start TLS, and return the stream above it."""
        return MeasuredConnection(
            await self._stream.start_tls(ssl_context, server_hostname, timeout)
        )

    def get_extra_info(self, info: str) -> Any:
        """Return a property of the connection below."""
        return self._stream.get_extra_info(info)
