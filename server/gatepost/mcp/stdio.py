"""
The endpoint over lines: each message that comes is one exchange, each that goes out one line.

What HTTP says in headers is taken from the message itself or from the one session that a process
has; so every method, era and feature is the endpoint's, and works here as it does there.
"""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable

import structlog
from msgspec import UNSET
from starlette.types import Message as Event
from starlette.types import Scope

from gatepost.mcp.body import JSON
from gatepost.mcp.endpoint import VERSION_HEADER, Endpoint
from gatepost.mcp.exchange import Headers
from gatepost.mcp.frames import Frames
from gatepost.mcp.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    RATE_LIMITED,
    Message,
    Refused,
    error,
    read,
    read_id,
)
from gatepost.mcp.methods import INITIALIZE
from gatepost.mcp.params import Params, read_params
from gatepost.mcp.session import CANCELLED, LAST_EVENT_HEADER, SESSION_HEADER
from gatepost.mcp.subscriptions import LISTEN
from gatepost.scope import FOLDED, REQUEST_ID, WHOLE_BODY
from gatepost_authz.caller import TenantContext
from gatepost_authz.middleware import CALLER

log = structlog.get_logger("gatepost.stdio")

INITIALIZED = "notifications/initialized"
MOST_AT_ONCE = 100
LISTEN_AGAIN_S = 5.0
LAST_WORD_S = 2.0
BACK_WITHIN_S = 1.0
"""After which time the rest of a stream is fetched, however much later its call wants it to be."""

UNFORESEEN = Refused(INTERNAL_ERROR, "Something unforeseen happened; the log tells more")
TOO_MANY = Refused(RATE_LIMITED, f"More than {MOST_AT_ONCE} requests at once")
STOPPING = Refused(INTERNAL_ERROR, "The server is about to stop")
NOT_BEGUN = Refused(
    INVALID_REQUEST, "Send `initialize` first, or name the protocol version in params._meta"
)

Write = Callable[[bytes], Awaitable[object]]


class Stdio:
    """One client at the other end of two pipes, who is *caller*; *path* is the resource's."""

    def __init__(
        self, endpoint: Endpoint, *, caller: TenantContext, path: str, write: Write
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
        """Take one message; requests go on by themselves, all else is done when this returns."""
        try:
            message = read(line)
        except Refused as refusal:
            await self._write(error(None, refusal))
            return
        if isinstance(message, list):
            await self._begin(line, None, self._headers(None))
        elif message.refusal is not None:
            await self._write(error(message.id, message.refusal))
        elif message.method is not None and message.id is not None:
            await self._request(line, message, message.id)
        else:
            await self._tell(line, message)

    async def refuse(self, refusal: Refused) -> None:
        """Answer something that is no message."""
        await self._write(error(None, refusal))

    async def finish(self, limit_s: float, *, end_streams: Callable[[], object]) -> None:
        """Let calls come to their end, for a while; then end who only listens, and the rest."""
        self._closing = True
        if self._listener is not None:
            self._listener.cancel()
        if calls := self._running.keys() - self._listening:
            await asyncio.wait(calls, timeout=limit_s)
        end_streams()
        if self._listening:
            await asyncio.wait(self._listening, timeout=LAST_WORD_S)
        await self.stop()

    async def stop(self) -> None:
        """Stop what runs."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _request(self, line: bytes, message: Message, identity: bytes) -> None:
        params, _ = read_params(message.params)
        headers = self._headers(params)
        begins = message.method == INITIALIZE or VERSION_HEADER in headers
        if self._session is None and not begins:
            await self._write(error(identity, NOT_BEGUN))
        elif message.method == INITIALIZE and VERSION_HEADER not in headers:
            # In order: what follows belongs to the session that this opens.
            await self._exchange(line, identity, headers)
        else:
            task = await self._begin(line, identity, headers)
            if task is not None and message.method == LISTEN:
                self._listening.add(task)
                task.add_done_callback(self._listening.discard)

    async def _begin(
        self, line: bytes, identity: bytes | None, headers: Headers
    ) -> "asyncio.Task[None] | None":
        if self._closing or len(self._running) >= MOST_AT_ONCE:
            # Not by reading no further: the answers that the others wait for come the same way.
            await self._write(error(identity, STOPPING if self._closing else TOO_MANY))
            return None
        task = asyncio.create_task(self._exchange(line, identity, headers))
        self._running[task] = identity
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        identity = self._running.pop(task)
        failed = None if task.cancelled() else task.exception()
        if failed is not None:
            log.error("request_failed", exc_info=failed)
            answer = asyncio.create_task(self._write(error(identity, UNFORESEEN)))
            self._running[answer] = None
            answer.add_done_callback(self._running.pop)

    async def _tell(self, line: bytes, message: Message) -> None:
        """A notification or a response; neither is ever answered (J-05)."""
        params, _ = read_params(message.params)
        if message.method == CANCELLED and params.request_id is not UNSET:
            self._cancel(read_id(params.request_id))
        headers = self._headers(params if message.method is not None else None)
        await self._run("POST", line, headers, Frames(_nowhere))
        if message.method == INITIALIZED and self._session is not None and self._listener is None:
            self._listener = asyncio.create_task(self._listen())

    def _cancel(self, identity: bytes | None) -> None:
        """On these pipes there is one client, so an id is enough to know what it takes back."""
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
            # The server let go of a stream to go on later (S-06): what follows is fetched.
            # A call lets go to spare a connection; pipes have none to spare.
            await asyncio.sleep(min(frames.retry_s, BACK_WITHIN_S))
            frames.paused = False
            resumed = {**self._headers(None), LAST_EVENT_HEADER: frames.last_event}
            await self._run("GET", b"", resumed, frames)

    async def _listen(self) -> None:
        """Pass on what belongs to no request, as long as the session has a stream for it."""
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
            FOLDED: headers,
            WHOLE_BODY: body,
            CALLER: self._caller,
            REQUEST_ID: f"{self._prefix}{next(self._numbers)}",
        }
        await self._endpoint(scope, _never_gone, frames.send)

    async def _write(self, message: bytes) -> None:
        # JSON has line ends only between its parts, where a space does as well.
        if b"\n" in message or b"\r" in message:
            message = message.replace(b"\n", b" ").replace(b"\r", b" ")
        await self._write_line(message)


async def _never_gone() -> Event:
    """Whoever leaves closes the pipe, which ends everything."""
    never: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    return await never


async def _nowhere(message: bytes) -> None:
    """What must not be answered."""
