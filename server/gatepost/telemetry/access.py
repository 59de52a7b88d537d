"""Record each request as a tuple; write and count them in batches, as access log and metrics."""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from gatepost.config.telemetry import LogFormat
from gatepost.telemetry.logs import in_json, printable, timestamp
from gatepost.telemetry.metric_families import OTHER
from gatepost.telemetry.metrics import Meter


class LoggedCaller(Protocol):
    """The caller as the access log shows it."""

    @property
    def tenant_id(self) -> str: ...


RpcTarget = tuple[str, str | UnsetType, str | UnsetType]
"""A JSON-RPC request: its method, and its parameters `name` and `uri`."""

NOT_RPC = UNSET, UNSET, UNSET

AccessRow = tuple[
    float, str, str, int, float, str, LoggedCaller | None, str, bytes | None, RpcTarget | None
]
"""
Wall-clock seconds, method, path, status (0: no answer), seconds, request id, caller, peer, the
client's own id for the work that the request is part of, and its JSON-RPC request.
"""

RedactField = Callable[[str | None, str], str]
"""Redacts a text with the secrets of this tenant."""

CORRELATION_BYTES = 128
TOO_LONG = "(too long)"
RPC_CHARACTERS, MAX_CHARACTERS = 128, 1000
"""
The length at which a line cuts a method or name, and the length above which it is not shown at all.
"""
BY_URI = "resources/"
"""The methods whose target is a URI; all others have a `name`."""

BAD_REQUEST = 400
COLLECTED_S = 0.02
"""
The maximum time in seconds until collected rows are processed on the loop.

Longer intervals would block a request for milliseconds under load (p99 6.1 ms against 3.4).
"""
# Fewer lines than this wait for a slow pipe; further lines are dropped and counted.
MAX_WAITING = 50_000

_ENCODER = msgspec.json.Encoder()


class AccessLine(msgspec.Struct, frozen=True, gc=False):
    """A row in the JSON format."""

    time: str
    method: str
    path: str
    status: int
    ms: float
    request_id: str
    tenant: str | None
    peer: str
    level: str = "info"
    event: str = "request"
    correlation: str | UnsetType = UNSET
    rpc_method: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


def as_json(rows: Iterable[AccessRow]) -> bytes:
    """Return each row as a JSON object on its own line."""
    lines = []
    since = until = 0.0
    clock = ""
    for at, method, path, status, duration, request_id, caller, peer, correlation, rpc in rows:
        if not since <= at < until:
            # Formatting the time costs more than the rest of a line, and many lines share a
            # millisecond.
            since = int(at * 1000) / 1000
            until, clock = since + 0.001, timestamp(at)
        rpc_method, name, uri = NOT_RPC if rpc is None else rpc
        lines.append(
            AccessLine(
                clock,
                method,
                path[:1000],
                status,
                duration * 1e6 // 1 / 1000,  # to the microsecond
                request_id,
                None if caller is None else caller.tenant_id,
                peer,
                correlation=UNSET if correlation is None else readable(correlation),
                rpc_method=rpc_method,
                name=name if uri is UNSET else uri,
            )
        )
    encoded = _ENCODER.encode_lines(lines)
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    return in_json(encoded.decode()).encode()


def as_text(rows: Iterable[AccessRow]) -> bytes:
    """Return the rows for people, each on one line regardless of its path."""
    return b"".join(access_line(row) + b"\n" for row in rows)


def access_line(row: AccessRow) -> bytes:
    at, method, path, status, duration, request_id, caller, peer, correlation, rpc = row
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    tenant = caller.tenant_id if caller is not None else "-"
    line = (
        f"{clock} {method:<7} {word(path)}{rpc_text(rpc)} {status} {duration * 1000:.1f} ms"
        f" tenant={tenant} peer={peer} request_id={request_id}"
    )
    if correlation is not None:
        line += f" correlation={word(readable(correlation))}"
    return line.encode("utf-8", "backslashreplace")


def rpc_text(rpc: RpcTarget | None) -> str:
    """Return the method and the name of a JSON-RPC request, for people."""
    if rpc is None:
        return ""
    method, name, uri = rpc
    target = name if uri is UNSET else uri
    return f" {word(method)}" + ("" if target is UNSET else f" {word(target)}")


def word(text: str) -> str:
    """Return the text without spaces, so that clients cannot forge what follows it on the line."""
    return printable(text).replace(" ", "\\x20")


def is_own(row: AccessRow, names: Set[str]) -> bool:
    """
    Return whether nothing in the row is a client's own text; *names* are those of the server.

    A path that was served is one of the server's.
    """
    rpc = row[9]
    return (
        0 < row[3] < BAD_REQUEST
        and row[8] is None
        and (
            rpc is None
            or (rpc[0] in names and (rpc[1] is UNSET or rpc[1] in names) and rpc[2] is UNSET)
        )
    )


def redacted_row(row: AccessRow, clean: RedactField, names: Set[str]) -> AccessRow:
    """Return the row with the secrets of its caller's tenant redacted."""
    at, method, path, status, duration, request_id, caller, peer, correlation, rpc = row
    tenant = None if caller is None else caller.tenant_id
    if correlation is not None:
        # Redacted before it is cut, because half a secret would not be found.
        text = clean(tenant, correlation.decode("ascii", "backslashreplace"))
        correlation = text.encode("ascii", "backslashreplace")
    method, path = clean(tenant, method), clean(tenant, path)
    if rpc is not None:
        rpc = _without_secrets(rpc, partial(clean, tenant), names)
    return at, method, path, status, duration, request_id, caller, peer, correlation, rpc


def _without_secrets(rpc: RpcTarget, clean: Callable[[str], str], names: Set[str]) -> RpcTarget:
    """
    Return what a line may show of a JSON-RPC request.

    A URI that the server does not list may hold arguments, as that of a template does.
    """
    method, name, uri = rpc
    target: tuple[str | UnsetType, str | UnsetType] = UNSET, UNSET
    if method.startswith(BY_URI):
        target = UNSET, uri if uri in names else UNSET
    elif name is not UNSET:
        target = _name_text(name, clean), UNSET
    return _name_text(method, clean), *target


def _name_text(text: str, clean: Callable[[str], str]) -> str:
    # Redacted before it is cut, because half a secret would not be found.
    return clean(text)[:RPC_CHARACTERS] if len(text) <= MAX_CHARACTERS else TOO_LONG


def _unredacted_text(tenant: str | None, text: str) -> str:
    return text


def readable(correlation: bytes) -> str:
    """Return a client's text, shortened for the log line."""
    return correlation[:CORRELATION_BYTES].decode("ascii", "backslashreplace")


class AccessLog:
    """
    Collects rows and processes them outside the request path.

    A request only pays for ``append``. A timer counts and encodes the collected rows. A thread
    writes the lines, because a pipe with a slow reader would otherwise stop every request. *counts*
    is called once with each batch of rows, even if no lines are written; it must not raise.
    """

    def __init__(
        self,
        form: LogFormat,
        write: Callable[[bytes], object] | None = None,
        *,
        enabled: bool = True,
        clean: RedactField | None = None,
        counts: Callable[[Sequence[AccessRow]], object] | None = None,
    ) -> None:
        self._counts = counts
        self._clean = clean or _unredacted_text
        self._enabled = enabled
        self._encode = as_json if form == "json" else as_text
        self._write = write or write_to_stderr
        self._rows: list[AccessRow] = []
        self._unwritten: list[AccessRow] = []
        self._dropped = 0
        self.dropped = 0
        """The number of dropped lines since the start."""
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[object] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="access-log")
        self._closed = False
        self._names: Set[str] = frozenset()

    def apply(self, names: Set[str]) -> None:
        """Show these methods, names and URIs of JSON-RPC requests as they are, from now on."""
        self._names = names

    def append(self, row: AccessRow) -> None:
        """Add the row; it is counted and written within a fraction of a second."""
        self._rows.append(row)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COLLECTED_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._take_up()
        if self._closed:
            # A request that a stop has abandoned ends after it, when the thread has ended already.
            if batch := self._batch():
                self._write(batch)
            return
        if self._writing is not None and not self._writing.done():
            if (excess := len(self._unwritten) - MAX_WAITING) > 0:
                self._dropped += excess
                self.dropped += excess
                del self._unwritten[:excess]
            self._timer = asyncio.get_running_loop().call_later(COLLECTED_S, self._flush)
            return
        if batch := self._batch():
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(self._thread, self._write, batch)

    def _take_up(self) -> None:
        rows, self._rows = self._rows, []
        if self._counts is not None:
            self._counts(rows)
        if self._enabled:
            # Refused requests come in large numbers, mostly to the same few paths.
            clean, names = cache(self._clean), self._names
            self._unwritten += [
                row if is_own(row, names) else redacted_row(row, clean, names) for row in rows
            ]

    def _batch(self) -> bytes:
        rows, self._unwritten = self._unwritten, []
        lines = self._encode(rows)
        if self._dropped:
            dropped = {"event": "access_lines_dropped", "count": self._dropped}
            lines += _ENCODER.encode_lines([dropped])
            self._dropped = 0
        return lines

    async def aclose(self) -> None:
        """Write the remaining lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await self._writing
        self._take_up()
        if batch := self._batch():
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, batch)
        self._thread.shutdown()
        self._closed = True


class RequestMetrics:
    """
    Counts the rows of the access log as requests.

    *route_of* returns the route of a path; a path is never a label.
    """

    def __init__(self, meter: Meter, route_of: Callable[[str], str] = lambda path: OTHER) -> None:
        self._meter = meter
        self.apply(route_of)

    def apply(self, route_of: Callable[[str], str]) -> None:
        """Count by these routes from now on."""
        self._route_of = route_of

    def __call__(self, rows: Sequence[AccessRow]) -> None:
        """Count a batch of rows."""
        seconds_by_request: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for row in rows:
            seconds_by_request[row[2], row[3]].append(row[4])
        for (path, status), seconds in seconds_by_request.items():
            self._meter.answered(self._route_of(path), status, *seconds)


def write_to_stderr(data: bytes) -> None:
    """Write everything, or stop once the reader is gone."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(2, view) :]
    except OSError:
        return
