"""One line per request, kept as a tuple while the request runs and written in batches."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from gatepost.telemetry.logs import LogFormat, printable, timestamp


class Caller(Protocol):
    """What the line says of the caller."""

    @property
    def tenant_id(self) -> str: ...


Row = tuple[float, str, str, int, float, str, Caller | None, str, bytes | None]
"""
Wall-clock seconds, method, path, status (0: no answer), seconds, request id, caller, peer, and the
id that the client gave to what the request is part of.
"""

Clean = Callable[[str | None, str], str]
"""A text of this tenant's caller without secrets."""

CORRELATION_BYTES = 128

BAD_REQUEST = 400
GATHERED_S = 0.02
"""
How long rows and numbers may wait until all are taken up, on the loop: what gathers in a tenth of a
second under load would hold up a request for milliseconds (p99 6.1 ms against 3.4).
"""
# What waits for a slow pipe stays below this many lines; beyond it lines are dropped and counted.
MOST_WAITING = 50_000

_ENCODER = msgspec.json.Encoder()


class Line(msgspec.Struct, frozen=True, gc=False):
    """The row as machines read it."""

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


def as_json(rows: Iterable[Row]) -> bytes:
    """Each row as a JSON object on a line of its own."""
    lines = []
    since = until = 0.0
    clock = ""
    for at, method, path, status, duration, request_id, caller, peer, correlation in rows:
        if not since <= at < until:
            # Writing the time costs more than the rest of a line, and many share a millisecond.
            since = int(at * 1000) / 1000
            until, clock = since + 0.001, timestamp(at)
        lines.append(
            Line(
                clock,
                method,
                path[:1000],
                status,
                duration * 1e6 // 1 / 1000,  # to the microsecond
                request_id,
                None if caller is None else caller.tenant_id,
                peer,
                correlation=UNSET if correlation is None else readable(correlation),
            )
        )
    return _ENCODER.encode_lines(lines)


def as_text(rows: Iterable[Row]) -> bytes:
    """The rows for a person, each on one line whatever its path holds."""
    return b"".join(shown(row) + b"\n" for row in rows)


def shown(row: Row) -> bytes:
    at, method, path, status, duration, request_id, caller, peer, correlation = row
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    tenant = caller.tenant_id if caller is not None else "-"
    line = (
        f"{clock} {method:<7} {printable(path)} {status} {duration * 1000:.1f} ms"
        f" tenant={tenant} peer={peer} request_id={request_id}"
    )
    if correlation is not None:
        line += f" correlation={printable(readable(correlation))}"
    return line.encode("utf-8", "backslashreplace")


def without(row: Row, clean: Clean) -> Row:
    """The row without secrets of its caller's tenant."""
    at, method, path, status, duration, request_id, caller, peer, correlation = row
    tenant = None if caller is None else caller.tenant_id
    if correlation is not None:
        # Before it is cut: half a secret would not be found.
        said = clean(tenant, correlation.decode("ascii", "backslashreplace"))
        correlation = said.encode("ascii", "backslashreplace")
    method, path = clean(tenant, method), clean(tenant, path)
    return at, method, path, status, duration, request_id, caller, peer, correlation


def _plain(tenant: str | None, text: str) -> str:
    return text


def readable(correlation: bytes) -> str:
    """As much of a client's own word as a line has room for; it may be refused and still stands."""
    return correlation[:CORRELATION_BYTES].decode("ascii", "backslashreplace")


class AccessLog:
    """
    Collects rows, and takes them up off the request path.

    ``append`` is all that a request pays for. A timer has what has gathered counted and encoded; a
    thread writes the lines, because a pipe whose reader is slow would otherwise stop every request.
    """

    def __init__(
        self,
        form: LogFormat,
        write: Callable[[bytes], object] | None = None,
        *,
        enabled: bool = True,
        clean: Clean | None = None,
    ) -> None:
        self.counts: Callable[[Sequence[Row]], object] | None = None
        """Takes up each row once, also where no lines are written; must not raise."""
        self._clean = clean or _plain
        self._enabled = enabled
        self._encode = as_json if form == "json" else as_text
        self._write = write or write_to_stderr
        self._rows: list[Row] = []
        self._unwritten: list[Row] = []
        self._dropped = 0
        self.dropped = 0
        """Lines that were never written, since the start."""
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="access-log")

    def append(self, row: Row) -> None:
        """Keep the row; it is counted and written within a fraction of a second."""
        self._rows.append(row)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHERED_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._take_up()
        if self._writing is not None and not self._writing.done():
            if (excess := len(self._unwritten) - MOST_WAITING) > 0:
                self._dropped += excess
                self.dropped += excess
                del self._unwritten[:excess]
            self._timer = asyncio.get_running_loop().call_later(GATHERED_S, self._flush)
            return
        if batch := self._batch():
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(self._thread, self._deliver, batch)

    def _take_up(self) -> None:
        rows, self._rows = self._rows, []
        if self.counts is not None:
            self.counts(rows)
        if self._enabled:
            self._unwritten += rows

    def _batch(self) -> bytes:
        rows, self._unwritten = self._unwritten, []
        # A path that was served is one of ours; whatever else stands in a line a client has chosen.
        lines = self._encode(
            [
                row if 0 < row[3] < BAD_REQUEST and row[8] is None else without(row, self._clean)
                for row in rows
            ]
        )
        if self._dropped:
            dropped = {"event": "access_lines_dropped", "count": self._dropped}
            lines += _ENCODER.encode_lines([dropped])
            self._dropped = 0
        return lines

    def _deliver(self, batch: bytes) -> None:
        self._write(batch)

    async def aclose(self) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await self._writing
        self._take_up()
        if batch := self._batch():
            await asyncio.get_running_loop().run_in_executor(self._thread, self._deliver, batch)
        self._thread.shutdown()


def write_to_stderr(data: bytes) -> None:
    """All of it, or nothing more once the reader is gone."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(2, view) :]
    except OSError:
        return
