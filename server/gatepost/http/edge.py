"""
Wrap the whole application: request ids, checks, one access line, and the answer to unexpected
errors.
"""

import asyncio
import errno
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gatepost.http.cycle import Cycle, labelled
from gatepost.http.edge_request import (
    CORRELATION,
    CheckRequest,
    EdgeRefusal,
    EdgeRequest,
    Preflight,
)
from gatepost.http.scope import HEADERS_BY_NAME, REQUEST_ID, RPC
from gatepost.storage.errors import StoreUnavailable
from gatepost.telemetry.access import AccessLog
from gatepost_authz.middleware import CALLER

Probe = Callable[[], Awaitable[tuple[int, bytes]]]
"""Answers a health probe: a status and a JSON document."""

ResponseHeaders = tuple[tuple[bytes, bytes], ...]
RenderRefusal = Callable[[str, EdgeRefusal, str], tuple[bytes, ResponseHeaders] | None]
"""
Renders a refusal (path, refusal, request id) as a page with its headers; None if the path has no
pages.
"""


ID_BLOCK = 0x100
"""Request ids whose first digits are formatted once."""

PROBE_METHODS = frozenset({"GET", "HEAD"})
"""
The methods of probes. Requests with another method (such as CONNECT) are checked like all others.
"""

# JSON-RPC 2.0 section 5.1, and the server error that MCP uses for limits.
INVALID_REQUEST = -32600
LIMITED = -32000
INTERNAL_ERROR = -32603
CODES = {429: LIMITED, 500: INTERNAL_ERROR, 503: INTERNAL_ERROR}

UNEXPECTED = EdgeRefusal(
    500,
    "internal_error",
    "Something unforeseen happened. The server's log tells more under the request id.",
)
OUTAGE = EdgeRefusal(
    503,
    "unavailable",
    "The server cannot reach its storage at the moment",
    ((b"retry-after", b"5"),),
)
NO_DESCRIPTORS = EdgeRefusal(
    503,
    "unavailable",
    "The server has too many files and connections open at the moment",
    ((b"retry-after", b"5"),),
)
SERVER_STOPPING = EdgeRefusal(
    503,
    "unavailable",
    "The server is stopping; whether the request took effect is unknown.",
    ((b"retry-after", b"1"),),
)

_encode = msgspec.json.encode
_log = logging.getLogger(__name__)


def not_counted(code: str) -> None:
    """Count no refusals."""


class EdgeSend:
    """
    ASGI's `send` for the application behind Edge, on a server other than ours: it adds our fields
    and notes the status. Our own connection (`Cycle`) does both itself.
    """

    __slots__ = ("_scope", "_send", "status")

    def __init__(self, send: Send, scope: Scope) -> None:
        self.status = 0
        self._send = send
        self._scope = scope

    def __call__(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = labelled(message, self._scope)
        return self._send(message)


class Edge:
    """
    Wraps the application.

    *probes* are paths answered before every check, because orchestrators ask over plain HTTP and by
    the pod's address. *checks* may refuse or answer. *is_endpoint* says which paths use JSON-RPC,
    so that a refusal there has a body that its client can read. *render_refusal* renders the
    refusals that people see. *refused* is called with the code of each refusal.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        app: ASGIApp,
        *,
        checks: CheckRequest,
        log: AccessLog,
        probes: Mapping[str, Probe],
        is_endpoint: Callable[[str], bool],
        refused: Callable[[str], object] = not_counted,
        render_refusal: RenderRefusal = lambda path, refusal, request_id: None,
    ) -> None:
        self.app = app
        self.checks = checks
        self._append = log.append
        self._refused = refused
        self._probes = probes
        self._is_endpoint = is_endpoint
        self._render_refusal = render_refusal
        # The random half makes ids distinct between restarts and replicas, and hard to guess. The
        # counter makes the other half cheap.
        self._ids = numbered(secrets.token_hex(8) + "-")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._without_request(scope, receive, send)
            return
        received_at, began = time.time(), time.perf_counter()
        request_id = scope[REQUEST_ID] = next(self._ids)
        raw, client = scope["headers"], scope.get("client")
        method, path = scope["method"], scope["path"]
        if (headers := scope.get(HEADERS_BY_NAME)) is None:
            headers = scope[HEADERS_BY_NAME] = dict(raw)
        request = EdgeRequest(
            request_id,
            scope,
            method,
            path,
            headers,
            len(headers) != len(raw),
            client[0] if client else "",
            headers.get(CORRELATION),
        )
        answer: Any = send if isinstance(send, Cycle) else EdgeSend(send, scope)
        try:
            if path in self._probes and method in PROBE_METHODS:
                await respond(answer, *await self._probes[path]())
                return
            if (preflight := self.checks(request)) is not None:
                await send_preflight(answer, preflight)
                return
            await self.app(scope, receive, answer)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - the last resort
            await self._refuse(request, request_id, raised, answer)
        finally:
            self._append(
                (
                    received_at,
                    method,
                    path,
                    answer.status,
                    time.perf_counter() - began,
                    request_id,
                    scope.get(CALLER),
                    request.peer,
                    request.correlation,
                    scope.get(RPC),
                )
            )

    async def _refuse(
        self,
        request: EdgeRequest,
        request_id: str,
        raised: BaseException,
        answer: Any,
    ) -> None:
        refusal = refusal_of(raised, request_id)
        self._refused(refusal.code)
        if answer.status:
            # The answer has begun. If the application returns before its end, the server closes the
            # connection, so that the client does not take a part of the answer for the whole.
            return
        if self._is_endpoint(request.path):
            code = CODES.get(refusal.status, INVALID_REQUEST)
            # The answer has no id member, because the body with the request's id was never read.
            data = {"error": refusal.code, "request_id": request_id}
            error = {"code": code, "message": refusal.message, "data": data}
            body = _encode({"jsonrpc": "2.0", "error": error})
        elif page := self._render_refusal(request.path, refusal, request_id):
            await respond_page(answer, refusal.status, page[0], (*refusal.headers, *page[1]))
            return
        else:
            body = _encode(
                {"error": refusal.code, "message": refusal.message, "request_id": request_id}
            )
        await respond(answer, refusal.status, body, refusal.headers)

    async def _without_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        # This lists the connections that may pass, so that a new type of connection cannot bypass
        # the checks.
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})


def numbered(prefix: str) -> Iterator[str]:
    """Yield the prefix with the numbers from 1 on, in hexadecimal."""
    # Formatting a number for each request would cost as much as two calls.
    yield from [f"{prefix}{number:x}" for number in range(1, ID_BLOCK)]
    suffixes = [f"{number:x}".zfill(len(f"{ID_BLOCK - 1:x}")) for number in range(ID_BLOCK)]
    for block in count(1):
        begin = f"{prefix}{block:x}"
        for end in suffixes:
            yield begin + end


def peer_of(scope: Scope) -> str:
    """Return the address of the client, as the edge determined it; empty if unknown."""
    client = scope.get("client")
    return client[0] if client else ""


async def respond(
    send: Send, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send a JSON document that caches must not store."""
    start = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode("ascii")),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def respond_page(send: Send, status: int, body: bytes, headers: ResponseHeaders) -> None:
    """Send a page that caches must not store."""
    start = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode("ascii")),
        (b"cache-control", b"no-store"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def refusal_of(raised: BaseException, request_id: str) -> EdgeRefusal:
    """Return a refusal as it is; for outages and bugs, one without details, which the log has."""
    if isinstance(raised, EdgeRefusal):
        return raised
    if isinstance(raised, asyncio.CancelledError):
        # Only a stop cancels a request from outside, once its drain is over. A client that hangs up
        # ends the inner work. If this were raised, the answer would be a 500 in plain text.
        return SERVER_STOPPING
    if isinstance(raised, StoreUnavailable):
        details = {"request_id": request_id, "reason": str(raised)}
        _log.warning("store_unavailable", extra=details)
        return OUTAGE
    if isinstance(raised, OSError) and raised.errno in (errno.EMFILE, errno.ENFILE):
        _log.warning("descriptors_exhausted", extra={"request_id": request_id})
        return NO_DESCRIPTORS
    _log.error("request_error", extra={"request_id": request_id}, exc_info=raised)
    return UNEXPECTED


async def send_preflight(send: Send, preflight: Preflight) -> None:
    """Answer a CORS preflight."""
    start = [*preflight.headers]
    await send({"type": "http.response.start", "status": 204, "headers": start})
    await send({"type": "http.response.body", "body": b""})
