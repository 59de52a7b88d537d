"""Run a confined program for a long time, and end it with everything that it started."""

import asyncio
import contextlib
import secrets
import shutil
import signal
import tempfile

import msgspec

from gatepost.sandbox.child import GRACE_S, Confined, signalled, spawned
from gatepost.sandbox.process_mark import MARK_BITS, kill_marked

LOOK_S = 1.0
"""How long output may be silent before the service checks whether the program still runs."""
CHUNK = 65_536
MAX_BUFFERED = 16_000_000


class ServiceEnded(Exception):
    """The program has ended, or does not read its input."""


class ConfinedService:
    """
    A running program with its standard streams, its own process group and its own folder.

    A program may start processes that leave its group. They are found by a mark that they inherit
    and killed too, as long as the system shows it (Linux).
    """

    def __init__(self, process: asyncio.subprocess.Process, mark: int, folder: str) -> None:
        self._process, self._mark, self._folder = process, mark, folder
        self._write_lock = asyncio.Lock()

    @classmethod
    async def start(cls, program: Confined) -> "ConfinedService":
        """
        Start a program in a new private folder, which is its HOME and TMPDIR.

        `root` and `folder` of *program* are replaced. Raises OSError.
        """
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="gatepost-")
        mark = secrets.randbits(MARK_BITS)
        own_program = msgspec.structs.replace(
            program,
            env={**program.env, "HOME": folder, "TMPDIR": folder},
            limits={**program.limits, "LOCKS": mark},
            root=folder,
            folder=(),
            writes=(*program.writes, folder),
        )
        process = None
        try:
            process = await spawned(own_program, has_input=True)
        finally:
            if process is None:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return cls(process, mark, folder)

    @property
    def pid(self) -> int:
        """Return the id of the first process, which is also that of its group."""
        return self._process.pid

    async def write(self, data: bytes) -> None:
        """Write to its standard input; raises ServiceEnded."""
        stdin = self._process.stdin
        if stdin is None or stdin.is_closing():
            raise ServiceEnded
        if stdin.transport.get_write_buffer_size() > MAX_BUFFERED:
            raise ServiceEnded
        try:
            stdin.write(data)
            async with self._write_lock:
                await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise ServiceEnded from None

    async def read(self) -> bytes:
        """Return a part of its standard output; nothing once it has closed it or has ended."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    return await self._process.stdout.read(CHUNK)
            except TimeoutError:
                # Another process that it started may hold the pipe open.
                if self._process.returncode is not None:
                    return b""

    async def read_errors(self) -> bytes:
        """Return a part of its standard error; nothing once it has closed it."""
        assert self._process.stderr is not None  # noqa: S101 - it is a pipe
        return await self._process.stderr.read(CHUNK)

    async def end(self) -> int:
        """End all of its processes: with SIGTERM first, then with SIGKILL; return its status."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        signalled(self._process, signal.SIGTERM)
        try:
            await self._wait()
        finally:
            signalled(self._process, signal.SIGKILL)
            await asyncio.shield(asyncio.to_thread(self._clear))
        # Only now, because a process that left the group may have held the pipes open.
        await self._wait()
        return self._process.returncode or 0

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await self._process.wait()

    def _clear(self) -> None:
        kill_marked(self._mark)
        shutil.rmtree(self._folder, ignore_errors=True)
