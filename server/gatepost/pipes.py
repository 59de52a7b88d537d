"""Standard input and output as a protocol's own: nothing else can read or write them."""

import asyncio
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator, Iterator

CHUNK = 65_536
STDIN, STDOUT, STDERR = 0, 1, 2


class TooLong(Exception):
    """A line is longer than a message may be; it was thrown away."""


class Lines:
    """Cuts what arrives into lines of at most *limit* bytes; memory stays bounded by that."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun = bytearray()
        self._skipping = False

    def cut(self, chunk: bytes) -> Iterator[bytes | TooLong]:
        """The lines that this chunk completes, without their end; blank ones are left out."""
        first = 0
        while (end := chunk.find(b"\n", first)) >= 0:
            yield from self._take(chunk[first:end], whole=True)
            first = end + 1
        yield from self._take(chunk[first:], whole=False)

    def rest(self) -> Iterator[bytes | TooLong]:
        """What came after the last line's end, when nothing more comes."""
        yield from self._take(b"", whole=True)

    def _take(self, piece: bytes, *, whole: bool) -> Iterator[bytes | TooLong]:
        if len(self._begun) + len(piece) > self._limit:
            self._begun.clear()
            if not self._skipping:
                yield TooLong()
            self._skipping = True
        if not self._skipping:
            self._begun += piece
        if whole:
            line = bytes(self._begun).strip(b" \t\r")
            self._begun.clear()
            self._skipping = False
            if line:
                yield line


class Pipes:
    """
    The two ends of a process that a client started.

    Threads read and write them, because they may be pipes, files or terminals, and not each of
    these can be waited for by an event loop. Both are daemons: a client that neither writes nor
    reads must not keep the process from ending.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._waiting: queue.SimpleQueue[tuple[bytes, asyncio.Future[bool]]] = queue.SimpleQueue()
        self._turn = asyncio.Lock()
        self._writer: threading.Thread | None = None

    @classmethod
    def claim(cls) -> "Pipes":
        """
        Take standard input and output away from everybody else in this process and its children.

        What a tool prints goes to standard error from now on, however it prints, and what it reads
        from standard input is empty: one stray line would end the conversation.
        """
        incoming, outgoing = os.dup(STDIN), os.dup(STDOUT)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, STDIN)
        os.close(empty)
        sys.stdout.flush()
        os.dup2(STDERR, STDOUT)
        return cls(incoming, outgoing)

    async def chunks(self) -> AsyncIterator[bytes]:
        """What the client writes, until it closes its end; read no faster than it is taken."""
        arrived: asyncio.Queue[bytes] = asyncio.Queue(1)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop, arrived), daemon=True).start()
        while chunk := await arrived.get():
            yield chunk

    async def write(self, line: bytes) -> bool:
        """Write one line; False when nobody can read it any more."""
        loop = asyncio.get_running_loop()
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, args=(loop,), daemon=True)
            self._writer.start()
        async with self._turn:
            done: asyncio.Future[bool] = loop.create_future()
            self._waiting.put((line + b"\n", done))
            return await done

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
                return  # the loop has ended, and with it whoever would take it

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            data, done = self._waiting.get()
            written = self._written(data)
            try:
                loop.call_soon_threadsafe(_settle, done, written)
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


def _settle(done: "asyncio.Future[bool]", written: bool) -> None:
    if not done.done():
        done.set_result(written)
