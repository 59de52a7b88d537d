"""What a call can tell its client while it runs: progress and log messages, on its own stream."""

import asyncio
import math
from collections.abc import Awaitable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.mcp import vigil
from gatepost.mcp.jsonrpc import INVALID_PARAMS, Refused, read_id
from gatepost.mcp.pace import Pace
from gatepost.mcp.params import Meta
from gatepost.mcp.stream import Stream
from gatepost.tools.client import (
    LEVELS,
    Capabilities,
    Clock,
    LogLevel,
    Nobody,
    Waiting,
    held,
    told,
)

# What a person can follow, and no more than a loop over a million rows should put on a wire.
REPORTS_PER_S, REPORTS_AT_ONCE = 50, 10
MESSAGES_PER_S, MESSAGES_AT_ONCE = 50, 200
MOST_LOG_BYTES = 16_384


class Audience(Nobody):
    """A client that hears of one call through its stream, and can be asked nothing."""

    stream: Stream | None = None
    # Most clients are told nothing, and what nobody uses is not made for each call.
    _token: Raw | None = None
    _least = len(LEVELS)
    _reported = -math.inf
    _late: Mapping[str, Any] | None = None
    _later: asyncio.Task[None] | None = None
    _dropped = 0
    _clock: Clock | None = None
    _ahead = 0.0
    """How far reports of waiting are ahead of what the tool itself reports (PR-01)."""

    def __init__(
        self,
        stream: Stream | None,
        *,
        capabilities: Capabilities,
        token: Raw | None,
        level: LogLevel | None,
    ) -> None:
        self._capabilities = capabilities
        if stream is not None:
            self.tell(stream, token, level)

    def tell(self, stream: Stream, token: Raw | None, level: LogLevel | None) -> None:
        """Let the client hear reports by *token*, and messages from *level* on."""
        self.stream = stream
        self._token = token
        if level is not None:
            self._least = LEVELS.index(level)

    @cached_property
    def _reports(self) -> Pace:
        return Pace(REPORTS_PER_S, REPORTS_AT_ONCE)

    @cached_property
    def _messages(self) -> Pace:
        return Pace(MESSAGES_PER_S, MESSAGES_AT_ONCE)

    @property
    def capabilities(self) -> Capabilities:
        """What the client declared."""
        return self._capabilities

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """
        Send `notifications/progress`; a report that does not grow is dropped (PR-01).

        Of reports that come too fast only the newest goes out, as soon as one may (PR-02).
        """
        if self._ahead:
            progress, total = progress + self._ahead, total and total + self._ahead
        await self._report(progress, total, message)

    async def _report(self, progress: float, total: float | None, message: str | None) -> None:
        if self.stream is None or self._token is None:
            return
        if not progress > self._reported or math.isinf(progress):
            return
        self._reported = progress
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None and math.isfinite(total):
            params["total"] = total
        if message is not None:
            # Now, so that half a surrogate pair is its tool's failure, and not that of its answer.
            message.encode()
            params["message"] = message
        if not self._reports.take():
            self._late = params
            if self._later is None:
                self._later = asyncio.create_task(self._catch_up())
                # A store that is away shows in the tool's next word; here it has nobody to tell.
                self._later.add_done_callback(lambda task: task.cancelled() or task.exception())
            # A loop over a million rows that reports each of them must let others have their turn.
            await asyncio.sleep(0)
            return
        self._late = None
        await self.stream.notify("notifications/progress", params)

    def timed(self, clock: Clock) -> None:
        """Hold this clock while somebody is asked, or somebody else decides."""
        self._clock = clock

    async def hold(self, waiting: Waiting, for_s: float, stopping: asyncio.Event) -> bool:
        """
        Keep the request open until it is decided, for so many seconds at most; False: it is not,
        or the server stops.

        The client hears that it waits, by its progress token or else by signs of life; where it
        would hear nothing at all, the time is short.
        """
        before = self._reported
        start = 0.0 if math.isinf(before) else before + 1

        async def sign(waited_s: float) -> None:
            if self._token is not None:
                await self._report(start + round(waited_s, 1), None, told(waiting))
            elif self.stream is not None:
                await self.stream.sign()

        with held(self._clock):
            await sign(0.0)
            if self.stream is None or not self.stream.started:
                for_s = min(for_s, vigil.HOLD_S)
            try:
                return await vigil.decided(waiting, sign, for_s=for_s, stopping=stopping)
            finally:
                if self._reported > before:
                    # A tool begins to count at 0, or goes on where it was.
                    self._ahead += (
                        self._reported + 1 if math.isinf(before) else self._reported - before
                    )

    async def log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        """Send `notifications/message`, at or above the level that was asked for (LG-03)."""
        if self.stream is None or LEVELS.index(level) < self._least:
            return
        if not self._messages.take():
            self._dropped += 1
            await asyncio.sleep(0)
            return
        encoded = _encode(data)
        if len(encoded) > MOST_LOG_BYTES:
            encoded = _encode(f"A message of {len(encoded)} bytes was left out.")
        params: dict[str, Any] = {"level": level, "data": Raw(encoded)}
        if logger is not None:
            params["logger"] = logger
        await self.stream.notify("notifications/message", params)

    async def answered(self, work: Awaitable[bytes]) -> bytes:
        """Await *work*, the request's result; what was held back goes out before it (LG-03)."""
        try:
            body = await work
        finally:
            if self._later is not None:
                self._later.cancel()
        if self._late is not None:
            await self._say_late()
        if self._dropped:
            self._messages = Pace(1, 1)
            lost = f"{self._dropped} messages were left out: they came too fast."
            await self.log("warning", lost, "gatepost")
        return body

    async def _catch_up(self) -> None:
        while self._late is not None:
            await asyncio.sleep(1 / REPORTS_PER_S)
            await self._say_late()
        self._later = None

    async def _say_late(self) -> None:
        late, self._late = self._late, None
        if late is not None and self.stream is not None:
            await self.stream.notify("notifications/progress", late)


def progress_token(meta: Meta) -> Raw | None:
    """The token that a request's reports carry; None when it wants none or it is no token."""
    if meta.progress_token is UNSET:
        return None
    token = read_id(meta.progress_token)
    return None if token is None else Raw(token)


def log_level(meta: Meta) -> LogLevel | None:
    """From which level on a request wants log messages; raises Refused (LG-04)."""
    if meta.log_level is UNSET:
        return None
    for level in LEVELS:
        if level == meta.log_level:
            return level
    raise Refused(INVALID_PARAMS, f"The log level must be one of {', '.join(LEVELS)}")


def _shown(value: Any) -> str:
    # Its own text might say what nobody outside should know.
    return f"<{type(value).__name__}>"


_encode = msgspec.json.Encoder(enc_hook=_shown).encode
