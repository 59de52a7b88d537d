"""Reserve standard input and output for the protocol and read and write lines on them."""

import asyncio
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator, Iterator

CHUNK = 65_536
STDIN, STDOUT, STDERR = 0, 1, 2


class LineTooLong(Exception):
    """Stands for a line that was dropped because it is longer than the limit."""


class LineReader:
    """Splits incoming bytes into lines of at most *limit* bytes, which bounds the memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unfinished = bytearray()
        self._skipping = False

    def split(self, chunk: bytes) -> Iterator[bytes | LineTooLong]:
        """Yield the lines that this chunk completes, without line ends and blank lines."""
        first = 0
        while (end := chunk.find(b"\n", first)) >= 0:
            yield from self._take(chunk[first:end], ends_line=True)
            first = end + 1
        yield from self._take(chunk[first:], ends_line=False)

    def unfinished_line(self) -> Iterator[bytes | LineTooLong]:
        """Yield an unfinished last line; call it at the end of the input."""
        yield from self._take(b"", ends_line=True)

    def _take(self, piece: bytes, *, ends_line: bool) -> Iterator[bytes | LineTooLong]:
        if len(self._unfinished) + len(piece) > self._limit:
            self._unfinished.clear()
            if not self._skipping:
                yield LineTooLong()
            self._skipping = True
        if not self._skipping:
            self._unfinished += piece
        if ends_line:
            line = bytes(self._unfinished).strip(b" \t\r")
            self._unfinished.clear()
            self._skipping = False
            if line:
                yield line


class Pipes:
    """
    The standard input and output of a process that a client started.

    Threads read and write them, because they may be pipes, files or terminals, and an event loop
    cannot wait for all of these. Both threads are daemons, so that a client that neither writes
    nor reads does not keep the process from ending.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._pending_writes: queue.SimpleQueue[tuple[bytes, asyncio.Future[bool]]] = (
            queue.SimpleQueue()
        )
        self._lock = asyncio.Lock()
        self._writer: threading.Thread | None = None

    @classmethod
    def claim(cls) -> "Pipes":
        """
        Take standard input and output from all other code of this process and its children.

        From now on, everything a tool prints goes to standard error, and its standard input is
        empty. One stray line on standard output would end the connection.
        """
        incoming, outgoing = os.dup(STDIN), os.dup(STDOUT)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, STDIN)
        os.close(empty)
        sys.stdout.flush()
        os.dup2(STDERR, STDOUT)
        return cls(incoming, outgoing)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield what the client writes until it closes its end; read only as fast as consumed."""
        arrived: asyncio.Queue[bytes] = asyncio.Queue(1)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop, arrived), daemon=True).start()
        while chunk := await arrived.get():
            yield chunk

    async def write(self, line: bytes) -> bool:
        """Write one line; return False if the client has closed its end."""
        loop = asyncio.get_running_loop()
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, args=(loop,), daemon=True)
            self._writer.start()
        async with self._lock:
            written: asyncio.Future[bool] = loop.create_future()
            self._pending_writes.put((line + b"\n", written))
            return await written

    def _read(self, loop: asyncio.AbstractEventLoop, arrived: asyncio.Queue[bytes]) -> None:
        chunk = b"."
        while chunk:
            try:
                chunk = os.read(self._incoming, CHUNK)
            except OSError:
                chunk = b""
            try:
                asyncio.run_coroutine_threadsafe(arrived.put(chunk), loop).result()
            except (RuntimeError, asyncio.CancelledError):
                return  # the loop has ended, so nothing reads the queue any more

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            data, written = self._pending_writes.get()
            was_written = self._written(data)
            try:
                loop.call_soon_threadsafe(_set_result, written, was_written)
            except RuntimeError:
                return

    def _written(self, data: bytes) -> bool:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._outgoing, view) :]
        except OSError:
            return False
        return True


def _set_result(future: "asyncio.Future[bool]", written: bool) -> None:
    if not future.done():
        future.set_result(written)
