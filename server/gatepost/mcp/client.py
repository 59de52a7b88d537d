"""Serve a client that has a stream: send messages on it, and keep it open."""

import asyncio
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.http.open_streams import KEEP_ALIVE_S
from gatepost.mcp.event_stream import SseResponse
from gatepost.mcp.jsonrpc import INVALID_PARAMS, JsonRpcError, notification, read_id
from gatepost.mcp.request import Meta
from gatepost.mcp.responses import MethodResult
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.rate_limits import LocalLimits
from gatepost.tools.context.client import (
    LEVELS,
    AwaitedDecision,
    Capabilities,
    LoggingLevel,
    SilentClient,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

# As much as a person can follow. A loop over a million rows must not send a million messages.
REPORTS_PER_S, REPORTS_AT_ONCE = 50, 10
MESSAGES_PER_S, MESSAGES_AT_ONCE = 50, 200
MAX_DOUBLE = sys.float_info.max
"""The largest number that every client can read; JSON has no infinity."""
NAME_CHARACTERS = 64

HOLD_S = 45.0
"""
The longest wait if the client has to repeat the call, or if Gatepost cannot send it anything.

It is less than a minute, because clients and proxies then give up on a silent request. Clients
follow about ten rounds, which at this length are more than an approver's default five minutes.
"""
AGAIN_S = 1.0
"""Delay before an unavailable store is read again."""

SendKeepAlive = Callable[[float], Awaitable[None]]
"""Tells the client that the call still waits; the argument is the seconds waited so far."""


class StreamClient(SilentClient):
    """A client that receives messages on the stream of its call and cannot be asked for input."""

    stream: SseResponse | None = None
    # Most clients receive no messages, so these objects are created only when they are used.
    _token: Raw | None = None
    _min_level = len(LEVELS)
    _reported = -math.inf
    _reports: LocalLimits | None = None
    _has_unsent_report = False
    _delayed_report: bytes | None = None
    _delayed_task: asyncio.Task[None] | None = None
    _dropped = 0
    _progress_offset = 0.0
    """The waiting time that was added to the progress that the tool itself reports (PR-01)."""

    def __init__(
        self,
        stream: SseResponse | None,
        *,
        capabilities: Capabilities,
        token: Raw | None,
        level: LoggingLevel | None,
    ) -> None:
        self._capabilities = capabilities
        if stream is not None:
            self.send_messages_to(stream, token, level)

    def send_messages_to(
        self, stream: SseResponse, token: Raw | None, level: LoggingLevel | None
    ) -> None:
        """Send progress with *token*, and log messages at or above *level*, to this stream."""
        self.stream = stream
        self._token = token
        if level is not None:
            self._min_level = LEVELS.index(level)

    @cached_property
    def _messages(self) -> LocalLimits:
        return LocalLimits.of_rate(MESSAGES_PER_S, MESSAGES_AT_ONCE, time.monotonic())

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities that the client declared."""
        return self._capabilities

    def progress(
        self, progress: float, total: float | None, message: str | None
    ) -> Coroutine[Any, Any, None]:
        """
        Send `notifications/progress`; drop a report whose progress has not increased (PR-01).

        If reports come too fast, only the newest is sent, once the rate limit allows it (PR-02).
        """
        if self._progress_offset:
            progress, total = (
                progress + self._progress_offset,
                total and total + self._progress_offset,
            )
        return self._report(progress, total, message)

    async def _report(
        self,
        progress: float,
        total: float | None,
        message: str | None,
        *,
        is_limited: bool = True,
    ) -> None:
        stream = self.stream
        if stream is None or self._token is None:
            return
        if not self._reported < progress <= MAX_DOUBLE:
            return
        if is_limited:
            self._has_unsent_report = True  # also if a message of Gatepost itself replaces it
        self._reported = progress
        if total is not None and not -MAX_DOUBLE <= total <= MAX_DOUBLE:
            total = None
        # Encode it even if it is held back: an encoding error must be raised here, in the tool.
        params = ProgressParams(self._token, progress, total, message)
        report = notification("notifications/progress", params)
        if is_limited:
            now, reports = time.monotonic(), self._reports
            if reports is None:
                reports = self._reports = LocalLimits.of_rate(REPORTS_PER_S, REPORTS_AT_ONCE, now)
            if not reports.take(now):
                await self._delay(report)
                return
            self._has_unsent_report = False
        self._delayed_report = None
        if not stream.notified(report):
            await stream.notify(report)

    def admits_report(self, progress: float) -> bool:
        """Return whether the client asked for reports and this progress has increased."""
        if self.stream is None or self._token is None:
            return False
        if self._progress_offset:
            progress += self._progress_offset
        return self._reported < progress <= MAX_DOUBLE

    @property
    def has_unsent_report(self) -> bool:
        """Return whether the tool's newest report waits or was replaced."""
        return self._has_unsent_report

    async def _delay(self, report: bytes) -> None:
        """Send the report as soon as the limit allows, unless a newer one replaces it."""
        self._delayed_report = report
        if self._delayed_task is None:
            self._delayed_task = asyncio.create_task(self._catch_up())
            # An unavailable store shows at the tool's next message; here no caller awaits it.
            self._delayed_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        # A loop that reports each of a million rows must let other tasks run.
        await asyncio.sleep(0)

    async def hold(self, waiting: AwaitedDecision, for_s: float, stopping: asyncio.Event) -> bool:
        """
        Keep the request open until the call is decided; return whether it is.

        False means that *for_s* seconds have passed or that the server stops. The client is told
        that its call waits: with progress if it sent a token, else with comments on the stream.
        Without a stream the wait is at most `HOLD_S`.
        """
        before = self._reported
        start = 0.0 if math.isinf(before) else before + 1

        async def keep_alive(waited_s: float) -> None:
            if self._token is not None:
                # Sent every few seconds by Gatepost itself, so no rate limit holds it up.
                reached = start + round(waited_s, 1)
                await self._report(reached, None, waiting.message_with_url, is_limited=False)
            elif self.stream is not None:
                await self.stream.keep_alive()

        await keep_alive(0.0)
        if self.stream is None or not self.stream.started:
            for_s = min(for_s, HOLD_S)
        try:
            return await decided(waiting, keep_alive, for_s=for_s, stopping=stopping)
        finally:
            if self._reported > before:
                # A tool starts to count at 0, or continues from its last report.
                self._progress_offset += (
                    self._reported + 1 if math.isinf(before) else self._reported - before
                )

    def wants_log(self, level: LoggingLevel) -> bool:
        """Return whether *level* is at or above the requested one (LG-03)."""
        return self.stream is not None and LEVELS.index(level) >= self._min_level

    def admits_log(self, level: LoggingLevel, data: Any) -> bool:
        """Return whether a message is sent; count one that the rate limit drops."""
        if not self.wants_log(level):
            return False
        is_admitted = self._messages.take(time.monotonic())
        self._dropped += not is_admitted
        return is_admitted

    async def log(self, level: LoggingLevel, data: Any, logger: str | None) -> None:
        """Send `notifications/message` if the client wants it."""
        if self.stream is None or not self.wants_log(level):
            return
        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        await self.stream.notify(notification("notifications/message", params))

    async def answered(self, work: Awaitable[MethodResult]) -> MethodResult:
        """Return the result of *work*, after sending the messages that were held back (LG-03)."""
        try:
            body = await work
        finally:
            if self._delayed_task is not None:
                self._delayed_task.cancel()
                # A task keeps its exception, and through it the frames and their variables.
                self._delayed_task = None
        if self._delayed_report is not None:
            await self._send_delayed_report()
        if self._dropped:
            warning = f"{self._dropped} messages were dropped: they came too fast."
            await self.log("warning", warning, "gatepost")
        return body

    async def _catch_up(self) -> None:
        while self._delayed_report is not None:
            await asyncio.sleep(1 / REPORTS_PER_S)
            await self._send_delayed_report()
        self._delayed_task = None

    async def _send_delayed_report(self) -> None:
        report, self._delayed_report = self._delayed_report, None
        if report is not None and self.stream is not None:
            self._has_unsent_report = False
            await self.stream.notify(report)


class ProgressParams(msgspec.Struct, omit_defaults=True, gc=False):
    """The parameters of a progress notification, under the names of the schema."""

    progressToken: Raw
    progress: float
    total: float | None = None
    message: str | None = None


class ClientInfo(msgspec.Struct, frozen=True):
    """What a client says about itself (`Implementation` of the schema)."""

    name: str
    title: str = ""


def name_of(info: Raw | UnsetType) -> str:
    """Return the name that a client gives itself; empty if it gives none or a long one."""
    if info is UNSET:
        return ""
    try:
        implementation = _decode_info(info)
    except msgspec.DecodeError:
        return ""
    name = (implementation.title or implementation.name).strip()
    # Not cut: half a secret would not be found when the name is redacted.
    return name if len(name) <= NAME_CHARACTERS else ""


def progress_token(meta: Meta) -> Raw | None:
    """Return the request's progress token; None if it has none or an invalid one."""
    if meta.progress_token is UNSET:
        return None
    token = read_id(meta.progress_token)
    return None if token is None else Raw(token)


def log_level(meta: Meta) -> LoggingLevel | None:
    """Return the lowest log level that the request wants; raises JsonRpcError (LG-04)."""
    if meta.log_level is UNSET:
        return None
    for level in LEVELS:
        if level == meta.log_level:
            return level
    raise JsonRpcError(INVALID_PARAMS, f"The log level must be one of {', '.join(LEVELS)}")


def _type_name(value: Any) -> str:
    # The value's own text may contain internal data.
    return f"<{type(value).__name__}>"


_encode = msgspec.json.Encoder(enc_hook=_type_name).encode
_decode_info = msgspec.json.Decoder(ClientInfo).decode


async def decided(
    waiting: AwaitedDecision, keep_alive: SendKeepAlive, *, for_s: float, stopping: asyncio.Event
) -> bool:
    """
    Wait up to *for_s* seconds for the decision; return whether there is one.

    The wait ends at once when the server stops: another server can take the call up. A decision
    that has arrived by then still counts.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    until = began + for_s
    async with watched(waiting) as over, _task_of(stopping.wait()) as stopped:
        while (remaining_s := until - loop.time()) > 0 and not stopping.is_set():
            await asyncio.wait(
                {over, stopped},
                timeout=min(KEEP_ALIVE_S, remaining_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if over.done():
                over.result()
                return True
            if stopping.is_set():
                break
            try:
                # A client that does not read must not extend the wait beyond its limit.
                async with asyncio.timeout_at(until):
                    await keep_alive(loop.time() - began)
            except TimeoutError:
                break
        return False


def watched(waiting: AwaitedDecision) -> AbstractAsyncContextManager["asyncio.Task[None]"]:
    """Return a task that ends when the call is decided; an unavailable store only delays it."""
    return _task_of(_until_decided(waiting))


@asynccontextmanager
async def _task_of(work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Run *work* in a task for the duration of the block."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _until_decided(waiting: AwaitedDecision) -> None:
    while True:
        try:
            await waiting.over()
        except StoreUnavailable:
            _log.warning("decision_not_read")
            await asyncio.sleep(AGAIN_S)
        else:
            return
