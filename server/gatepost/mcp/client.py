"""The client of a request: what is sent to it and asked of it, in the form of each revision."""

import asyncio
import math
import time
from collections.abc import Awaitable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from gatepost.mcp import approval_wait
from gatepost.mcp.event_stream import SseResponse
from gatepost.mcp.jsonrpc import INVALID_PARAMS, JsonRpcError, read_id
from gatepost.mcp.request import Meta
from gatepost.mcp.responses import MethodResult
from gatepost.mcp.revisions import MODERN
from gatepost.storage.rate_limits import Bucket
from gatepost.tools.client import (
    FORMS,
    LEVELS,
    Capabilities,
    InputRequest,
    LogLevel,
    MissingCapability,
    SilentClient,
    ToolClock,
    Waiting,
    held,
    told,
)
from gatepost.tools.sampling import blocks

# As much as a person can follow. A loop over a million rows must not send a million messages.
REPORTS_PER_S, REPORTS_AT_ONCE = 50, 10
MESSAGES_PER_S, MESSAGES_AT_ONCE = 50, 200
MOST_LOG_BYTES = 16_384


class StreamClient(SilentClient):
    """A client that receives messages on the stream of its call and cannot be asked for input."""

    stream: SseResponse | None = None
    # Most clients receive no messages, so these objects are created only when they are used.
    _token: Raw | None = None
    _least = len(LEVELS)
    _reported = -math.inf
    _late: Mapping[str, Any] | None = None
    _later: asyncio.Task[None] | None = None
    _dropped = 0
    _clock: ToolClock | None = None
    _ahead = 0.0
    """What waiting has added to the progress that the tool itself reports (PR-01)."""

    def __init__(
        self,
        stream: SseResponse | None,
        *,
        capabilities: Capabilities,
        token: Raw | None,
        level: LogLevel | None,
    ) -> None:
        self._capabilities = capabilities
        if stream is not None:
            self.tell(stream, token, level)

    def tell(self, stream: SseResponse, token: Raw | None, level: LogLevel | None) -> None:
        """Send progress with *token*, and log messages at or above *level*, to this stream."""
        self.stream = stream
        self._token = token
        if level is not None:
            self._least = LEVELS.index(level)

    @cached_property
    def _reports(self) -> Bucket:
        return Bucket.of(REPORTS_PER_S, REPORTS_AT_ONCE, time.monotonic())

    @cached_property
    def _messages(self) -> Bucket:
        return Bucket.of(MESSAGES_PER_S, MESSAGES_AT_ONCE, time.monotonic())

    @property
    def capabilities(self) -> Capabilities:
        """What the client declared."""
        return self._capabilities

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """
        Send `notifications/progress`; drop a report whose progress has not increased (PR-01).

        If reports come too fast, only the newest is sent, once the rate limit allows it (PR-02).
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
            # A lone surrogate must fail here, in the tool, and not when the answer is encoded.
            message.encode()
            params["message"] = message
        if not self._reports.spend(time.monotonic()):
            self._late = params
            if self._later is None:
                self._later = asyncio.create_task(self._catch_up())
                # An unavailable store shows at the tool's next message; here no caller awaits it.
                self._later.add_done_callback(lambda task: task.cancelled() or task.exception())
            # A loop that reports each of a million rows must let other tasks run.
            await asyncio.sleep(0)
            return
        self._late = None
        await self.stream.notify("notifications/progress", params)

    def timed(self, clock: ToolClock) -> None:
        """Stop this clock while the call waits for the user's input or for an approval."""
        self._clock = clock

    async def hold(self, waiting: Waiting, for_s: float, stopping: asyncio.Event) -> bool:
        """
        Keep the request open until the call is decided; return whether it is.

        False means that *for_s* seconds have passed or that the server stops. The client is told
        that its call waits: with progress if it sent a token, else with comments on the stream.
        Without a stream the wait is at most `HOLD_S`.
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
                for_s = min(for_s, approval_wait.HOLD_S)
            try:
                return await approval_wait.decided(waiting, sign, for_s=for_s, stopping=stopping)
            finally:
                if self._reported > before:
                    # A tool starts to count at 0, or continues from its last report.
                    self._ahead += (
                        self._reported + 1 if math.isinf(before) else self._reported - before
                    )

    async def log(self, level: LogLevel, data: Any, logger: str | None) -> None:
        """Send `notifications/message` if *level* is at or above the requested one (LG-03)."""
        if self.stream is None or LEVELS.index(level) < self._least:
            return
        if not self._messages.spend(time.monotonic()):
            self._dropped += 1
            await asyncio.sleep(0)
            return
        encoded = _encode(data)
        if len(encoded) > MOST_LOG_BYTES:
            encoded = _encode(f"A message of {len(encoded)} bytes was dropped: it is too large.")
        params: dict[str, Any] = {"level": level, "data": Raw(encoded)}
        if logger is not None:
            params["logger"] = logger
        await self.stream.notify("notifications/message", params)

    async def answered(self, work: Awaitable[MethodResult]) -> MethodResult:
        """Return the result of *work*, after sending the messages that were held back (LG-03)."""
        try:
            body = await work
        finally:
            if self._later is not None:
                self._later.cancel()
                # A task keeps its exception, and through it the frames and their variables.
                self._later = None
            self._clock = None
        if self._late is not None:
            await self._say_late()
        if self._dropped:
            self._messages = Bucket.of(1, 1, time.monotonic())
            lost = f"{self._dropped} messages were dropped: they came too fast."
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
    """Return the request's progress token; None if it has none or an invalid one."""
    if meta.progress_token is UNSET:
        return None
    token = read_id(meta.progress_token)
    return None if token is None else Raw(token)


def log_level(meta: Meta) -> LogLevel | None:
    """Return the lowest log level that the request wants; raises JsonRpcError (LG-04)."""
    if meta.log_level is UNSET:
        return None
    for level in LEVELS:
        if level == meta.log_level:
            return level
    raise JsonRpcError(INVALID_PARAMS, f"The log level must be one of {', '.join(LEVELS)}")


def _shown(value: Any) -> str:
    # The value's own text may contain internal data.
    return f"<{type(value).__name__}>"


_encode = msgspec.json.Encoder(enc_hook=_shown).encode


WITH_URLS = "2025-11-25"
"""The revision that added URL elicitation, all defaults, titled choices and sampling tools."""
WITHOUT_ELICITATION = "2025-03-26"

Shown = dict[str, Any]

# The keywords that 2025-06-18 allows for each type of field (its PrimitiveSchemaDefinition).
OLD_FIELDS: Mapping[str, set[str]] = {
    "string": {
        *("type", "title", "description", "minLength", "maxLength", "format"),
        *("enum", "enumNames"),
    },
    "number": {"type", "title", "description", "minimum", "maximum"},
    "integer": {"type", "title", "description", "minimum", "maximum"},
    "boolean": {"type", "title", "description", "default"},
}


def projected(request: InputRequest, revision: str, *, elicitation_id: str = "") -> Shown:
    """
    Return the parameters of *request* in the form of *revision* (E-01 to E-05, SA-01).

    *elicitation_id* identifies a URL elicitation in 2025-11-25. Raises MissingCapability if the
    revision has no form for the request, because then its client cannot support it.
    """
    params = dict(request.params)
    if request.method == "elicitation/create":
        return _elicitation(params, revision, elicitation_id)
    if request.method == "sampling/createMessage":
        return _sampling(params, revision)
    return params


def _elicitation(params: Shown, revision: str, elicitation_id: str) -> Shown:
    if revision == WITHOUT_ELICITATION:
        raise MissingCapability({"elicitation": {}})
    if params.get("mode") == "url":
        if revision == MODERN:
            return params
        if revision != WITH_URLS:
            raise MissingCapability({"elicitation": {"url": {}}})
        return {**params, "elicitationId": elicitation_id}
    if revision in (MODERN, WITH_URLS):
        return params
    return {
        "message": params["message"],
        "requestedSchema": _old_form(params["requestedSchema"]),
    }


def _old_form(schema: Mapping[str, Any]) -> Shown:
    required = schema.get("required", ())
    fields = {}
    for name, field in schema["properties"].items():
        if field["type"] in OLD_FIELDS:
            fields[name] = _old_field(field)
        elif name in required:
            # The revision has no multiple choice. Without a required field no answer is valid.
            raise MissingCapability({"elicitation": FORMS})
    if not fields:
        raise MissingCapability({"elicitation": FORMS})
    shown: Shown = {"type": "object", "properties": fields}
    if required:
        shown["required"] = list(required)
    return shown


def _old_field(field: Mapping[str, Any]) -> Shown:
    shown = dict(field)
    if titled := shown.get("oneOf"):
        shown["enum"] = [choice["const"] for choice in titled]
        shown["enumNames"] = [choice["title"] for choice in titled]
    known = OLD_FIELDS[field["type"]]
    return {word: value for word, value in shown.items() if word in known}


def _sampling(params: Shown, revision: str) -> Shown:
    if revision in (MODERN, WITH_URLS):
        return params
    if params.get("tools"):
        raise MissingCapability({"sampling": {"tools": {}}})
    params["messages"] = [
        # Older revisions allow one content block per message.
        {**message, "content": block}
        for message in params["messages"]
        for block in blocks(message["content"])
    ]
    return params
