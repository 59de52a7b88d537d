"""
Fork a process for each request of the server, which takes a twentieth of starting Python.

This runs in a process of its own, which has one thread, and imports only the standard library. The
requests come on a Unix socket that keeps messages apart, each one JSON object:

- `{"start": ID, "descriptors": NUMBER, ...}` with so many descriptors: those of the three standard
  streams, and further ones,
- `{"signal": NUMBER, "to": ID}`, for a process and its group.

When a process has ended, the rest of its group is killed, and `{"ended": ID, "code": CODE}` is
answered; a negative code is the signal that ended it. The first message, `{"ended": -1}`, is about
no process: without it, none has run. When the server closes the socket or ends,
all processes are killed. Linux alone has all of what this uses.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys

# The same as in `typing`, whose import takes 10 milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    Work = Callable[[Mapping[str, Any], Sequence[int]], object]

MESSAGE_BYTES = 65_536
"""The maximum size of a message."""
NO_REQUEST = -1
"""The id of the message that requests are served from now on."""
MAX_DESCRIPTORS = 16
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""The flag by which no program inherits a descriptor before it is meant to; Linux has it."""
FIRST_FREE = 64
"""Descriptors are moved from here on, so that none stands where another one is to be."""
NOT_STARTED = 126
"""The exit code if a process could not be started, as in a shell."""
BLOCKED = (signal.SIGINT, signal.SIGTERM)
"""
Signals that a service manager may send to all processes: the server decides what ends, and when.
They are not ignored: a process that is signalled just after the fork would ignore that too.
"""


class ForkLoop:
    """
    The processes that were forked and have not ended.

    Each calls *work* with its request, and with its descriptors except for the standard streams.
    """

    def __init__(self, channel: socket.socket, work: Work) -> None:
        self._channel, self._work = channel, work
        self._pids: dict[int, int] = {}
        """By the id of their requests."""
        self._ids: dict[int, int] = {}
        """The ids by descriptors that show the end of a process (pidfd_open(2))."""
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def run(self) -> None:
        """Serve requests until the server closes the socket."""
        try:
            self._tell_end(NO_REQUEST, 0)
            while all(self._serve(descriptor) for descriptor, _ in self._poll.poll()):
                pass
        finally:
            for pid in self._pids.values():
                _kill(pid, signal.SIGKILL)

    def _serve(self, descriptor: int) -> bool:
        if descriptor != self._channel.fileno():
            self._collect(descriptor)
            return True
        data, descriptors, _, _ = socket.recv_fds(
            self._channel, MESSAGE_BYTES, MAX_DESCRIPTORS, CLOSE_ON_EXEC
        )
        if not data:
            return False
        request = json.loads(data)
        if "start" in request:
            self._start(request, descriptors)
        elif (pid := self._pids.get(request["to"])) is not None:
            _kill(pid, request["signal"])
        return True

    def _start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        try:
            if len(descriptors) < request["descriptors"]:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if not (pid := os.fork()):
                self._become(request, descriptors)
            end = _end_of(pid)
        except OSError:
            self._tell_end(request["start"], NOT_STARTED)
        else:
            self._pids[request["start"]], self._ids[end] = pid, request["start"]
            self._poll.register(end, select.POLLIN)
        for descriptor in descriptors:
            os.close(descriptor)

    def _become(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
        """Do the work in the new process, with the descriptors of the request alone, and end."""
        code = 1
        try:
            for number in BLOCKED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
            self._channel.close()
            for end in self._ids:
                os.close(end)
            os.setsid()
            moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE) for each in descriptors]
            for descriptor in descriptors:
                os.close(descriptor)
            for stream, descriptor in enumerate(moved[:3]):
                os.dup2(descriptor, stream)
                os.close(descriptor)
            self._work(request, moved[3:])
            code = 0
        except OSError as failure:
            # One line, as a shell prints it, without the path of a file.
            os.write(2, f"cannot start: {failure.strerror}\n".encode())
            code = NOT_STARTED
        finally:
            try:
                if (raised := sys.exc_info())[0] is not None:
                    sys.excepthook(*raised)
            finally:
                # Not what the process that it was forked from would do at its end.
                os._exit(code)

    def _collect(self, end: int) -> None:
        request_id = self._ids.pop(end)
        pid = self._pids.pop(request_id)
        self._poll.unregister(end)
        os.close(end)
        # Before it is collected, because its number may be that of another group then.
        _kill(pid, signal.SIGKILL)
        self._tell_end(request_id, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _tell_end(self, request_id: int, code: int) -> None:
        self._channel.send(json.dumps({"ended": request_id, "code": code}).encode())


def _end_of(pid: int) -> int:
    """Return a descriptor that shows the end of a process; kill it if there is none left."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    try:
        return os.pidfd_open(pid)
    except OSError:
        _kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _kill(pid: int, number: int) -> None:
    """Signal a group, or its first process if that has not made the group yet."""
    for send in (os.killpg, os.kill):
        try:
            send(pid, number)
        except ProcessLookupError:
            continue
        except PermissionError:  # a program that changed its user
            return
        return


def serve(descriptor: int, work: Work) -> None:
    """Serve the requests on a socket until the server closes it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    # Objects that were made before are not walked, because that would copy their memory.
    gc.freeze()
    with socket.socket(fileno=descriptor) as channel:
        ForkLoop(channel, work).run()
