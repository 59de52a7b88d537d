"""Keep a confined program ready that forks a process for each request (`fork_loop.serve`)."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from gatepost.sandbox.child import Confined, ProcessResult, collected, launch_request
from gatepost.sandbox.fork_server_client import ForkServerClient, sealed
from gatepost.sandbox.launcher import launcher

CRASHES = frozenset(
    {
        *(-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGABRT),
        *(-signal.SIGFPE, -signal.SIGTRAP, -signal.SIGSYS),
    }
)
"""
The exit statuses of attempts to take a process over.

All processes of a program have their memory at the same addresses, which an attack could find out
by crashing one after another. So the program is replaced after each.
"""


class ConnectedProcess(NamedTuple):
    """A process with a socket, which is its standard input and output."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    wait: Callable[[], Awaitable[int]]
    """Returns the exit status; if negative, the signal that ended the process."""


class ForkingProgram:
    """
    A confined program that is ready, and forks a process for each request.

    It gets the requests on the descriptor *channel*, and *input_data* as its own standard input. It
    is started at the first request of an event loop, and ends after five minutes without one.
    """

    def __init__(self, program: Confined, *, channel: int, input_data: bytes = b"") -> None:
        self._program, self._channel, self._input_data = program, channel, input_data
        self._servers: WeakKeyDictionary[asyncio.AbstractEventLoop, ForkServerClient] = (
            WeakKeyDictionary()
        )

    async def run(
        self,
        request: Mapping[str, Any],
        *,
        timeout_s: float,
        max_bytes: int,
        input_data: bytes = b"",
    ) -> ProcessResult:
        """
        Have a process of its own answer a request (a JSON object), as `run` runs a program.

        Raises NotForked where the system cannot do it.
        """
        server = self._server()
        process = server.start_streamed(request, input_data=input_data)
        result = await collected(process, timeout_s, max_bytes)
        if result.code in CRASHES:
            server.retire()
        return result

    @contextlib.asynccontextmanager
    async def connected(self, request: Mapping[str, Any]) -> AsyncIterator[ConnectedProcess]:
        """
        Have a process of its own serve a request until the end of the block, when it is killed.

        Raises NotForked where the system cannot do it.
        """
        server = self._server()
        own_end, process_end = socket.socketpair()
        own_end.setblocking(False)
        with contextlib.ExitStack() as undoing:
            undoing.callback(own_end.close)
            with process_end, open(os.devnull, "wb") as silence:  # noqa: ASYNC230 - no file
                stream = process_end.fileno()
                process = server.start(request, (stream, stream, silence.fileno()))
            undoing.callback(process.signal, signal.SIGKILL)
            reader, writer = await asyncio.open_unix_connection(sock=own_end)
            undoing.pop_all()
        try:
            yield ConnectedProcess(reader, writer, process.wait)
        finally:
            writer.close()
            await process.kill()
            if await process.wait() in CRASHES:
                server.retire()

    def _server(self) -> ForkServerClient:
        loop = asyncio.get_running_loop()
        current = self._servers.get(loop)
        if current is None or current.is_ending:
            current = self._servers[loop] = self._started()
        return current

    def _started(self) -> ForkServerClient:
        request, handles = launch_request(self._program)
        request = {**request, "handles": [*request["handles"], self._channel]}
        server, program_end = ForkServerClient.pair()
        # Requests may be sent at once. If the program is not started, the other end is closed, and
        # they fail as if the program had ended before it was ready.
        with program_end, contextlib.ExitStack() as sent:
            standard_input = sealed(self._input_data)
            sent.callback(os.close, standard_input)
            silence = sent.enter_context(open(os.devnull, "wb")).fileno()
            inherited = (*handles, program_end.fileno())
            process = launcher().start(request, (standard_input, silence, silence, *inherited))
        server.kill_process = process.killer()
        return server
