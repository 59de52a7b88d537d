"""Have a process of one thread fork the server's short-lived processes (`fork_loop`)."""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import sys
import termios
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from gatepost.sandbox.fork_loop import MESSAGE_BYTES, NO_REQUEST

IDLE_S = 300.0
"""How long a fork server without processes waits for the next request before it is ended."""
NOEXEC_SEAL = 8
"""A flag of memfd_create(2) since Linux 6.3."""
STALLED_S = 10.0
"""How long a fork server may leave messages unread before it is killed."""


class NotForked(Exception):
    """A process cannot be started in this way."""


class ProcessEnd(msgspec.Struct, frozen=True):
    """The message of a fork server that a process has ended."""

    ended: int
    code: int


_process_end = msgspec.json.Decoder(ProcessEnd).decode


@cache
def can_fork() -> bool:
    """
    Return whether the system has what fork servers use; if not, it is old or not Linux.

    Raises OSError while the server has no descriptors left.
    """
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
        os.close(sealed(b""))
    except AttributeError:
        return False
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise
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

    async def kill(self) -> None:
        """Kill its process group, and the fork server too if that reads no messages any more."""
        while not self._end.done():
            self.signal(signal.SIGKILL)
            try:
                async with asyncio.timeout(STALLED_S):
                    with contextlib.suppress(NotForked):
                        await self.wait()
            except TimeoutError:
                self._server.kill_if_stalled()

    def killer(self) -> Callable[[], None]:
        """
        Return a function that kills its process group, and does not keep the loop.

        The fork server is killed too if it does not read that within a time.
        """
        return partial(self._server.kill, self._id)


class ProcessOutput:
    """
    The reading end of a pipe.

    The transports of asyncio and uvloop disagree on which of them closes a pipe if the task is
    cancelled while it is connected. This has no such moment.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._pipe = os.fdopen(descriptor, "rb", buffering=0)
        self._waiter: asyncio.Future[None] | None = None

    async def read(self, max_bytes: int) -> bytes:
        """Return a part, at most *max_bytes*; nothing at the end, or once it is closed."""
        while not self._pipe.closed:
            # Wait even if there is data, because a program that writes very much would otherwise
            # keep the loop from all other work.
            await self._wait()
            with contextlib.suppress(BlockingIOError, ValueError):  # no data after all, or closed
                return os.read(self._pipe.fileno(), max_bytes)
        return b""

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        loop.add_reader(self._pipe.fileno(), self._wake)
        try:
            await waiter
        finally:
            self._wake()

    def close(self) -> None:
        """Close it."""
        self._wake()
        self._pipe.close()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.get_loop().is_closed():
            waiter.get_loop().remove_reader(self._pipe.fileno())
            if not waiter.done():
                waiter.set_result(None)


class StreamedProcess:
    """A process that a fork server has started, with what it writes."""

    def __init__(
        self, process: StartedProcess, stdout: ProcessOutput, stderr: ProcessOutput
    ) -> None:
        self.stdout, self.stderr = stdout, stderr
        self.wait, self.signal, self.kill = process.wait, process.signal, process.kill

    def close(self) -> None:
        """Close its outputs, which a process that has left its group may hold open."""
        self.stdout.close()
        self.stderr.close()


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
        self._running: set[int] = set()
        self._ends: WeakValueDictionary[int, asyncio.Future[int]] = WeakValueDictionary()
        """Weak, because a future keeps its loop, and a process may run as long as this does."""
        self._unsent: deque[bytes] = deque()
        self._last_use = 0.0
        self._is_ready = self._is_timed = self._is_retired = False
        self.kill_process: Callable[[], None] = lambda: None
        """Kills the fork server, which may not react to its socket."""
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
        self._running.add(request_id)
        end = self._ends[request_id] = loop.create_future()
        if not self._is_timed:
            self._end_when_idle()
        return StartedProcess(self, request_id, end)

    def start_streamed(
        self, request: Mapping[str, Any], *, input_data: bytes, handles: Sequence[int] = ()
    ) -> StreamedProcess:
        """
        Start a process for a request that inherits *handles*; its standard input is *input_data*.

        Raises NotForked, or OSError if the server has no descriptors left.
        """
        with contextlib.ExitStack() as sent, contextlib.ExitStack() as undoing:
            standard_input = sealed(input_data) if input_data else os.open(os.devnull, os.O_RDONLY)
            sent.callback(os.close, standard_input)
            descriptors, outputs = [standard_input], []
            for _ in range(2):
                read_end, write_end = os.pipe()
                sent.callback(os.close, write_end)
                outputs.append(ProcessOutput(read_end))
                undoing.callback(outputs[-1].close)
                descriptors.append(write_end)
            process = self.start(request, (*descriptors, *handles))
            undoing.pop_all()
        return StreamedProcess(process, *outputs)

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
        if self._is_closed:
            return
        self._unsent.append(msgspec.json.encode({"signal": number, "to": request_id}))
        if len(self._unsent) == 1 and not self._has_sent_signals():
            asyncio.get_running_loop().add_writer(self._channel.fileno(), self._send_later)

    def kill(self, request_id: int) -> None:
        """Kill the process group of a request, or this server if it does not do so in time."""

        def kill_unless_ended() -> None:
            if request_id in self._running:
                self.kill_if_stalled()

        self.signal(request_id, signal.SIGKILL)
        asyncio.get_running_loop().call_later(STALLED_S, kill_unless_ended)

    def _send_later(self) -> None:
        if self._has_sent_signals() and not self._is_closed:
            asyncio.get_running_loop().remove_writer(self._channel.fileno())

    def _has_sent_signals(self) -> bool:
        """Send the signals in their order; return False if the socket takes no more now."""
        try:
            while self._unsent:
                self._channel.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            return False
        except OSError:
            self.close()
        return True

    def retire(self) -> None:
        """End the fork server when its processes have ended."""
        self._is_retired = True
        if not self._running:
            self.close()

    def kill_if_stalled(self) -> None:
        """
        Kill the fork server, and its processes with it, if it has not read all messages.

        If it has, the kernel cannot end a process yet, and the others go on.
        """
        if not self._is_closed and int.from_bytes(
            fcntl.ioctl(self._channel, termios.TIOCOUTQ, bytes(4)), sys.byteorder
        ):
            self.kill_process()
            self.close()

    def close(self) -> None:
        """End the fork server and its processes."""
        if not self._is_closed:
            self._close(have_run=True)  # some of the requests may have been read

    def _close(self, *, have_run: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is over
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._channel.fileno())
            loop.remove_writer(self._channel.fileno())
            self._on_close()
        self._channel.close()
        for end in list(self._ends.values()):
            if end.done() or end.get_loop().is_closed():
                continue
            if have_run:
                end.set_result(-signal.SIGKILL)
            else:
                end.set_exception(NotForked())
                end.exception()  # not to be logged if no call awaits it
        self._running.clear()

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
            self._running.discard(message.ended)
            end = self._ends.get(message.ended)
            if end is not None and not end.done():
                end.set_result(message.code)
        if self._is_retired and not self._running:
            self.close()

    def _end_when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        remaining_s = IDLE_S if self._running else self._last_use + IDLE_S - loop.time()
        if remaining_s <= 0:
            self.close()
        elif not self._is_closed:
            self._is_timed = True
            this = weakref.WeakMethod(self._end_when_idle)
            loop.call_later(remaining_s, _call, this)


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    if (bound := method()) is not None:
        bound()


def sealed(data: bytes) -> int:
    """Return a file in memory with *data*, which no process can change or execute."""
    if sys.platform != "linux":
        raise NotForked
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create("input", flags | NOEXEC_SEAL)
    except OSError:  # an older kernel
        descriptor = os.memfd_create("input", flags)
    with contextlib.ExitStack() as undoing:
        undoing.callback(os.close, descriptor)
        # Landlock does not restrict files that have no path.
        os.fchmod(descriptor, 0o600)
        with os.fdopen(os.dup(descriptor), "wb") as writer:
            writer.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        undoing.pop_all()
    return descriptor
