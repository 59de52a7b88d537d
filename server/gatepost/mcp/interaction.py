"""What a call can tell its client while it runs: progress and log messages, on its own stream."""

import math
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw

from gatepost.mcp.jsonrpc import read_id
from gatepost.mcp.params import Meta
from gatepost.mcp.stream import Stream
from gatepost.tools.client import (
    LEVELS,
    Capabilities,
    Clock,
    InputRequest,
    LogLevel,
    MissingCapability,
    required_by,
)


class Audience:
    """A client that hears of one call through its stream, and can be asked nothing."""

    def __init__(
        self,
        stream: Stream | None,
        *,
        capabilities: Capabilities,
        token: Raw | None,
        level: LogLevel | None,
    ) -> None:
        self.capabilities = capabilities
        self._stream = stream
        self._token = token
        self._least = len(LEVELS) if level is None else LEVELS.index(level)
        self._reported = -math.inf

    def timed(self, clock: Clock) -> None:
        """Nobody is waited for."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send `notifications/progress`; a report that does not grow is dropped (PR-01)."""
        if self._stream is None or self._token is None:
            return
        if not progress > self._reported or math.isinf(progress):
            return
        self._reported = progress
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None and math.isfinite(total):
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self._stream.notify("notifications/progress", params)

    async def log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        """Send `notifications/message`, at or above the level that was asked for (LG-03)."""
        if self._stream is None or LEVELS.index(level) < self._least:
            return
        params = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        await self._stream.notify("notifications/message", params)

    async def request(
        self, requests: Mapping[str, InputRequest]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Nothing can be asked this way."""
        raise MissingCapability(required_by(requests))

    async def pause(self, retry_after_s: float) -> None:
        """This stream cannot be resumed."""

    async def detach(self) -> None:
        """The call stays with its request."""


def progress_token(meta: Meta) -> Raw | None:
    """The token that a request's reports carry; None when it wants none or it is no token."""
    if meta.progress_token is UNSET:
        return None
    token = read_id(meta.progress_token)
    return None if token is None else Raw(token)
