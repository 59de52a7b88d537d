"""
Serve the endpoint over lines: each incoming message is one exchange, each outgoing one a line.

The values that HTTP has in headers come from the message or from the process's single session.
All methods, eras and features are those of the endpoint and work as they do over HTTP.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable

from msgspec import UNSET
from starlette.types import Message as Event
from starlette.types import Scope

from gatepost.http.scope import HEADERS_BY_NAME, REQUEST_ID, WHOLE_BODY
from gatepost.mcp.body import JSON
from gatepost.mcp.endpoint import Endpoint
from gatepost.mcp.jsonrpc import (
    INTERNAL_ERROR,
    RATE_LIMITED,
    IncomingMessage,
    JsonRpcError,
    error,
    read,
    read_id,
    read_part,
)
from gatepost.mcp.methods import INITIALIZE
from gatepost.mcp.request import VERSION_HEADER, Headers, Params, read_params
from gatepost.mcp.sessions.requests import CANCELLED, LAST_EVENT_HEADER, SESSION_HEADER
from gatepost.mcp.subscriptions import LISTEN
from gatepost_authz.caller import TenantContext
from gatepost_authz.middleware import CALLER

EVENTS = b"text/event-stream"

ReceiveLine = Callable[[bytes], Awaitable[None]]


class Frames:
    """
    An ASGI `send` that passes on each JSON body, and the data of each event, as one message.

    ``paused`` is true if the stream ended without the response to *identity* and named a time
    after which to reconnect for the rest.
    """

    def __init__(self, take: ReceiveLine, identity: bytes | None = None) -> None:
        self._take = take
        self._identity = identity
        self._events = False
        self._unfinished = b""
        self._answered = False
        self._wants_back = False
        self.status = 0
        self.session: bytes | None = None
        self.last_event = b""
        self.retry_s = 0.0
        self.paused = False

    async def send(self, event: Event) -> None:
        """Read one ASGI event of the response and pass on the messages that it completes."""
        if event["type"] == "http.response.start":
            headers = dict(event["headers"])
            self.status = event["status"]
            self.session = headers.get(SESSION_HEADER, self.session)
            self._events = headers.get(b"content-type") == EVENTS
            return
        body: bytes = event.get("body", b"")
        over = not event.get("more_body", False)
        if self._events:
            await self._cut(body)
            self.paused = over and self._wants_back and not self._answered
        elif body:
            await self._take(body)

    async def _cut(self, body: bytes) -> None:
        *frames, self._unfinished = (self._unfinished + body).split(b"\n\n")
        for frame in frames:
            for line in frame.split(b"\n"):
                name, _, value = line.partition(b": ")
                if name == b"id":
                    self.last_event = value
                elif name == b"retry":
                    self.retry_s, self._wants_back = int(value) / 1000, True
                elif name == b"data" and value:
                    await self._message(value)

    async def _message(self, data: bytes) -> None:
        if self._identity is not None:
            message = read_part(data)
            is_response = message.method is None and message.id == self._identity
            self._answered = self._answered or is_response
        await self._take(data)


log = logging.getLogger(__name__)

INITIALIZED = "notifications/initialized"
MAX_AT_ONCE = 100
LISTEN_AGAIN_S = 5.0
DRAIN_S = 2.0
LONGEST_RETRY_S = 1.0
"""The longest delay before the rest of a stream is fetched, even if its call asks for more."""

UNEXPECTED_ERROR = JsonRpcError(
    INTERNAL_ERROR, "An unexpected error occurred; see the server's log"
)
TOO_MANY = JsonRpcError(RATE_LIMITED, f"More than {MAX_AT_ONCE} requests at once")
SERVER_STOPPING = JsonRpcError(INTERNAL_ERROR, "The server is about to stop")

WriteLine = Callable[[bytes], Awaitable[object]]


class Stdio:
    """Serves one client over two pipes as *caller*; *path* is the path of the resource."""

    def __init__(
        self, endpoint: Endpoint, *, caller: TenantContext, path: str, write: WriteLine
    ) -> None:
        self._endpoint = endpoint
        self._caller = caller
        self._path = path
        self._write_line = write
        self._session: bytes | None = None
        self._running: dict[asyncio.Task[None], bytes | None] = {}
        self._listening: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Task[None] | None = None
        self._closing = False
        self._prefix = secrets.token_hex(8) + "-"
        self._numbers = itertools.count(1)

    async def take(self, line: bytes) -> None:
        """Handle one message; a request runs in the background, anything else is done here."""
        try:
            message = read(line)
        except JsonRpcError as refusal:
            await self._write(error(None, refusal))
            return
        if isinstance(message, list):
            await self._begin(line, None, self._headers(None))
        elif message.refusal is not None:
            await self._write(error(message.id, message.refusal))
        elif message.method is not None and message.id is not None:
            await self._request(line, message, message.id)
        else:
            await self._handle_unanswered(line, message)

    async def refuse(self, refusal: JsonRpcError) -> None:
        """Send a refusal for input that is not a message."""
        await self._write(error(None, refusal))

    async def finish(self, limit_s: float, *, end_streams: Callable[[], object]) -> None:
        """Wait up to *limit_s* for calls to finish; then end the streams and all other work."""
        self._closing = True
        if self._listener is not None:
            self._listener.cancel()
        if calls := self._running.keys() - self._listening:
            await asyncio.wait(calls, timeout=limit_s)
        end_streams()
        if self._listening:
            await asyncio.wait(self._listening, timeout=DRAIN_S)
        await self.stop()

    async def stop(self) -> None:
        """Cancel everything that runs and wait for it to end."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _request(self, line: bytes, message: IncomingMessage, identity: bytes) -> None:
        params, _ = read_params(message.params)
        headers = self._headers(params)
        if message.method == INITIALIZE and VERSION_HEADER not in headers:
            # Wait for this one: the messages after it belong to the session that it opens.
            await self._exchange(line, identity, headers)
        else:
            task = await self._begin(line, identity, headers)
            if task is not None and message.method == LISTEN:
                self._listening.add(task)
                task.add_done_callback(self._listening.discard)

    async def _begin(
        self, line: bytes, identity: bytes | None, headers: Headers
    ) -> "asyncio.Task[None] | None":
        if self._closing or len(self._running) >= MAX_AT_ONCE:
            # Reading must go on, because the answers that running calls wait for arrive here too.
            await self._write(error(identity, SERVER_STOPPING if self._closing else TOO_MANY))
            return None
        task = asyncio.create_task(self._exchange(line, identity, headers))
        self._running[task] = identity
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        identity = self._running.pop(task)
        failed = None if task.cancelled() else task.exception()
        if failed is not None:
            log.error("request_failed", exc_info=failed)
            answer = asyncio.create_task(self._write(error(identity, UNEXPECTED_ERROR)))
            self._running[answer] = None
            answer.add_done_callback(self._running.pop)

    async def _handle_unanswered(self, line: bytes, message: IncomingMessage) -> None:
        """Handle a notification or a response; neither is ever answered (J-05)."""
        params, _ = read_params(message.params)
        if message.method == CANCELLED and params.request_id is not UNSET:
            self._cancel(read_id(params.request_id))
        headers = self._headers(params if message.method is not None else None)
        await self._run("POST", line, headers, Frames(_nowhere))
        if message.method == INITIALIZED and self._session is not None and self._listener is None:
            self._listener = asyncio.create_task(self._listen())

    def _cancel(self, identity: bytes | None) -> None:
        """Cancel the request with this id; the pipes have one client, so its id is enough."""
        for task, running in tuple(self._running.items()):
            if identity is not None and running == identity:
                task.cancel()

    def _headers(self, params: Params | None) -> Headers:
        headers = {b"content-type": JSON, b"accept": b"application/json, text/event-stream"}
        if self._session is not None:
            headers[SESSION_HEADER] = self._session
        meta = UNSET if params is None else params.meta
        if meta is not UNSET and meta.version is not UNSET:
            headers[VERSION_HEADER] = meta.version.encode("utf-8", "replace")
        return headers

    async def _exchange(self, line: bytes, identity: bytes | None, headers: Headers) -> None:
        frames = Frames(self._write, identity)
        await self._run("POST", line, headers, frames)
        if frames.session is not None:
            self._session = frames.session
        while identity is not None and frames.paused and self._session is not None:
            # The server ended a stream to continue later (S-06), so fetch the rest. It does this
            # to save connections, which pipes do not need.
            await asyncio.sleep(min(frames.retry_s, LONGEST_RETRY_S))
            frames.paused = False
            resumed = {**self._headers(None), LAST_EVENT_HEADER: frames.last_event}
            await self._run("GET", b"", resumed, frames)

    async def _listen(self) -> None:
        """Pass on messages that belong to no request, as long as the session streams them."""
        status = 200
        while status == 200:
            frames = Frames(self._write)
            await self._run("GET", b"", self._headers(None), frames)
            status = frames.status
            await asyncio.sleep(LISTEN_AGAIN_S)

    async def _run(self, verb: str, body: bytes, headers: Headers, frames: Frames) -> None:
        scope: Scope = {
            "type": "http",
            "method": verb,
            "path": self._path,
            "headers": list(headers.items()),
            HEADERS_BY_NAME: headers,
            WHOLE_BODY: body,
            CALLER: self._caller,
            REQUEST_ID: f"{self._prefix}{next(self._numbers)}",
        }
        await self._endpoint(scope, _never_gone, frames.send)

    async def _write(self, message: bytes) -> None:
        # JSON has line ends only between tokens, where a space means the same.
        if b"\n" in message or b"\r" in message:
            message = message.replace(b"\n", b" ").replace(b"\r", b" ")
        await self._write_line(message)


async def _never_gone() -> Event:
    """Wait forever; a client that leaves closes the pipe, which ends everything."""
    never: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    return await never


async def _nowhere(message: bytes) -> None:
    """Discard an answer to a message that must not be answered."""
