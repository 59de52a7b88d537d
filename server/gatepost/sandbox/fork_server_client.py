"""Have a process of one thread fork the server's short-lived processes (`fork_loop`)."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any

import msgspec

from gatepost.sandbox.fork_loop import MESSAGE_BYTES, NO_REQUEST

IDLE_S = 300.0
"""How long a fork server without processes waits for the next request before it is ended."""


class NotForked(Exception):
    """A process cannot be started in this way."""


class ProcessEnd(msgspec.Struct, frozen=True):
    """The message of a fork server that a process has ended."""

    ended: int
    code: int


_process_end = msgspec.json.Decoder(ProcessEnd).decode


@cache
def can_fork() -> bool:
    """Return whether the system has what fork servers use; if not, it is old or not Linux."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        os.close(sealed(b""))
    except (AttributeError, OSError):
        return False
    return True


class StartedProcess:
    """A process that a fork server has started."""

    def __init__(
        self, server: "ForkServerClient", request_id: int, end: asyncio.Future[int]
    ) -> None:
        self._server, self._id, self._end = server, request_id, end

    async def wait(self) -> int:
        """
        Return the exit status; if negative, the signal that ended the process.

        Raises NotForked if the fork server has ended before it was ready, so that nothing has run.
        """
        return await asyncio.shield(self._end)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, unless the process has ended."""
        if not self._end.done():
            self._server.signal(self._id, number)


class ProcessOutput:
    """One output of a process: what it writes to `write_end` is read from `reader`."""

    def __init__(
        self, write_end: int, reader: asyncio.StreamReader, transport: asyncio.ReadTransport
    ) -> None:
        self.write_end, self.reader, self.transport = write_end, reader, transport

    @classmethod
    async def create(cls) -> "ProcessOutput":
        """Create a pipe."""
        read_end, write_end = os.pipe()
        pipe = os.fdopen(read_end, "rb", buffering=0)
        reader = asyncio.StreamReader()
        with contextlib.ExitStack() as undoing:
            undoing.callback(pipe.close)
            undoing.callback(os.close, write_end)
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            undoing.pop_all()
        return cls(write_end, reader, transport)


class StreamedProcess:
    """A process that a fork server has started, with what it writes."""

    def __init__(self, process: StartedProcess, outputs: Sequence[ProcessOutput]) -> None:
        self._outputs = outputs
        self.stdout, self.stderr = (output.reader for output in outputs)
        self.wait, self.signal = process.wait, process.signal

    def close(self) -> None:
        """Close its outputs, which a process that has left its group may hold open."""
        for output in self._outputs:
            output.transport.close()


class ForkServerClient:
    """
    The socket of a fork server, with the processes that it has started and that have not ended.

    When the socket is closed, the fork server kills all of them and ends.
    """

    def __init__(self, channel: socket.socket, on_close: Callable[[], object]) -> None:
        channel.setblocking(False)
        # The loop is not kept: it would live as long as the fork server that is kept for it.
        asyncio.get_running_loop().add_reader(channel.fileno(), self._receive)
        self._channel, self._on_close = channel, on_close
        self._ids = count()
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._last_use = 0.0
        self._is_ready = self._is_timed = self._is_retired = False
        weakref.finalize(self, channel.close)

    @classmethod
    def pair(
        cls, on_close: Callable[[], object] = lambda: None
    ) -> tuple["ForkServerClient", socket.socket]:
        """
        Return a server whose process is to get the socket; it takes requests at once.

        *on_close* is called when it is closed, unless its event loop is.
        """
        server_end, process_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(server_end, on_close), process_end

    @property
    def is_ending(self) -> bool:
        """Return whether it is to start no more processes."""
        return self._is_retired or self._is_closed

    @property
    def _is_closed(self) -> bool:
        return self._channel.fileno() < 0

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> StartedProcess:
        """
        Start a process for a request (a JSON object).

        Of *descriptors*, the first three are its standard streams; it inherits the others. Raises
        NotForked.
        """
        loop = asyncio.get_running_loop()
        request_id = next(self._ids)
        self._last_use = loop.time()
        self._send({"start": request_id, "descriptors": len(descriptors), **request}, descriptors)
        end = self._ends[request_id] = loop.create_future()
        return StartedProcess(self, request_id, end)

    async def start_streamed(
        self, request: Mapping[str, Any], *, input_data: bytes = b"", handles: Sequence[int] = ()
    ) -> StreamedProcess:
        """
        Start a process for a request that inherits *handles*; its standard input is *input_data*.

        Raises NotForked, or OSError if the server has no descriptors left.
        """
        with contextlib.ExitStack() as sent, contextlib.ExitStack() as undoing:
            standard_input = sealed(input_data) if input_data else os.open(os.devnull, os.O_RDONLY)
            sent.callback(os.close, standard_input)
            outputs: list[ProcessOutput] = []
            for _ in range(2):
                output = await ProcessOutput.create()
                sent.callback(os.close, output.write_end)
                undoing.callback(output.transport.close)
                outputs.append(output)
            streams = (standard_input, *(output.write_end for output in outputs))
            process = self.start(request, (*streams, *handles))
            undoing.pop_all()
        return StreamedProcess(process, outputs)

    def _send(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        try:
            data = msgspec.json.encode(message)
        except UnicodeEncodeError:  # the name of a file that is not UTF-8
            raise NotForked from None
        if len(data) > MESSAGE_BYTES:
            raise NotForked
        try:
            socket.send_fds(self._channel, [data], descriptors)
        except OSError as error:
            raise NotForked from error

    def signal(self, request_id: int, number: signal.Signals) -> None:
        """Send a signal to the process group of a request."""
        try:
            self._channel.send(msgspec.json.encode({"signal": number, "to": request_id}))
        except OSError:
            # It has ended, or reads no more: without the socket, it kills all of its processes.
            self.close()

    def retire(self) -> None:
        """End the fork server when its processes have ended."""
        self._is_retired = True
        if not self._ends:
            self.close()

    def close(self) -> None:
        """End the fork server and its processes."""
        if not self._is_closed:
            self._close(have_run=True)  # some of the requests may have been read

    def _close(self, *, have_run: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is over
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._on_close()
        self._channel.close()
        for end in self._ends.values():
            if end.done():
                continue
            if have_run:
                end.set_result(-signal.SIGKILL)
            else:
                end.set_exception(NotForked())
                end.exception()  # not to be logged if no call awaits it
        self._ends.clear()

    def _receive(self) -> None:
        """Note which processes have ended."""
        while not self._is_closed:
            try:
                data = self._channel.recv(MESSAGE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._close(have_run=self._is_ready)
                return
            message = _process_end(data)
            self._is_ready = self._is_ready or message.ended == NO_REQUEST
            end = self._ends.pop(message.ended, None)
            if end is not None and not end.done():
                end.set_result(message.code)
        if self._is_retired and not self._ends:
            self.close()
        elif not self._is_timed:
            self._end_when_idle()

    def _end_when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        remaining_s = IDLE_S if self._ends else self._last_use + IDLE_S - loop.time()
        if remaining_s <= 0:
            self.close()
            return
        self._is_timed = True
        loop.call_later(remaining_s, self._end_when_idle)


def sealed(data: bytes) -> int:
    """Return a file in memory with *data*, which no process can change (memfd_create(2))."""
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with contextlib.ExitStack() as undoing:
        undoing.callback(os.close, descriptor)
        with os.fdopen(os.dup(descriptor), "wb") as writer:
            writer.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        undoing.pop_all()
    return descriptor
