"""Run one confined program, read its output, and end it with all its children."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gatepost.sandbox import launch
from gatepost.sandbox.fork_server_client import (
    NotForked,
    ProcessOutput,
    StreamedProcess,
    can_fork,
)
from gatepost.sandbox.launcher import LAUNCHER, launcher

GRACE_S = 2.0
"""How long a program may clean up before it is killed."""
CHUNK = 65_536

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/full", "/dev/tty")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix", "/gnu")
"""The folders of programs and libraries; without /etc, which may contain the server's secrets."""
ANSWERS = (
    # Only parts of /etc/ssl and /etc/pki, because the machine's private keys are there too.
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem", "/etc/ssl/openssl.cnf"),
    *("/etc/pki/ca-trust", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem"),
    *("/etc/pki/tls/openssl.cnf", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/gnutls"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
    *("/etc/hosts", "/etc/host.conf", "/etc/services", "/etc/protocols", "/etc/gai.conf"),
    "/etc/mime.types",
)
"""Files without secrets that the system's libraries read."""


_endings: set[asyncio.Task[None]] = set()
"""What kills programs whose start was cancelled; a loop keeps its tasks weakly."""


class Confined(msgspec.Struct, frozen=True, kw_only=True):
    """A program and all that it may use; the kernel refuses the rest, if it supports that."""

    argv: tuple[str, ...]
    """The program's absolute path and its arguments."""
    env: Mapping[str, str]
    """The whole environment."""
    root: str
    """An absolute path; the working directory is *folder* below it, entered without links."""
    folder: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    """Folders and files besides those of the system; nothing in them can be executed."""
    ports: tuple[int, ...] = ()
    """TCP ports it may connect to, at any address; the caller has to check the addresses."""
    network: bool = False
    """Whether it may connect to every port."""
    offline: bool = False
    """
    Whether it gets no socket of any network, and no interface where the server may take it away.
    Landlock alone leaves UDP.
    """
    limits: Mapping[str, int] = {}
    """Limits by the names of setrlimit(2), without the prefix `RLIMIT_`."""
    handles: tuple[tuple[int, int], ...] = ()
    """Inherited file descriptors: the server's number and the program's number of each."""
    runs: tuple[str, ...] = SYSTEM


class ProcessResult(msgspec.Struct, frozen=True):
    """A program's exit status and the kept part of its output."""

    code: int
    """The exit status; if negative, the signal that ended the program."""
    out: bytes
    err: bytes
    cut: tuple[bool, bool]
    """Whether each of them was cut."""


class CapturedOutput:
    """Keeps the beginning of a stream; *on_part* gets every part, kept or not."""

    def __init__(self, max_bytes: int, on_part: Callable[[bytes], None] | None = None) -> None:
        self.data = bytearray()
        self.cut = False
        self._max_bytes = max_bytes
        self._on_part = on_part

    async def drain(self, stream: asyncio.StreamReader | ProcessOutput | None) -> None:
        """Read to the end, so that the program never blocks on a full pipe."""
        while stream is not None and (part := await stream.read(CHUNK)):
            if self._on_part is not None:
                self._on_part(part)
            remaining_bytes = self._max_bytes - len(self.data)
            self.data += part[:remaining_bytes]
            self.cut = self.cut or len(part) > remaining_bytes


def confines() -> bool:
    """Return whether the kernel can restrict programs (Landlock)."""
    return launch.landlock_version() > 0


async def run(
    program: Confined,
    *,
    timeout_s: float,
    max_bytes: int,
    on_stderr: Callable[[bytes], None] | None = None,
    input_data: bytes = b"",
) -> ProcessResult:
    """
    Run a program to its end and keep at most *max_bytes* bytes of each stream.

    *on_stderr* gets what it writes to standard error. The program can read *input_data* from
    standard input. Raises TimeoutError if it takes longer than *timeout_s*. In every case its whole
    process group is ended: with SIGTERM first, then with SIGKILL.
    """
    with contextlib.suppress(NotForked):
        forked = launched(program, input_data)
        return await collected(forked, timeout_s, max_bytes, on_stderr)
    process = OwnChild(await spawned(program, has_input=bool(input_data)), input_data)
    return await collected(process, timeout_s, max_bytes, on_stderr)


def launched(program: Confined, input_data: bytes) -> StreamedProcess:
    """Have the launcher start a program; raises NotForked."""
    request, handles = launch_request(program)
    return launcher().start_streamed(request, input_data=input_data, handles=handles)


def launch_request(program: Confined) -> tuple[Mapping[str, Any], Sequence[int]]:
    """Return the request for a program, and the descriptors it inherits; raises NotForked."""
    if not can_fork():
        raise NotForked
    request = {
        "words": _launch_arguments(program),
        "env": program.env,
        "handles": [known_as for _, known_as in program.handles],
    }
    return request, [descriptor for descriptor, _ in program.handles]


async def collected(
    process: "StreamedProcess | OwnChild",
    timeout_s: float,
    max_bytes: int,
    on_stderr: Callable[[bytes], None] | None = None,
) -> ProcessResult:
    """Return the result of a process that was started, as `run` does."""
    out, err = CapturedOutput(max_bytes), CapturedOutput(max_bytes, on_stderr)
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(out.drain(process.stdout), err.drain(process.stderr))
            code = await process.wait()
    except (asyncio.CancelledError, TimeoutError):
        await _terminate(process)
        raise
    finally:
        # Also kill processes that outlived the program. Do not wait here, because the call may be
        # cancelled.
        process.signal(signal.SIGKILL)
        process.close()
    return ProcessResult(code, bytes(out.data), bytes(err.data), (out.cut, err.cut))


class OwnChild:
    """A program that the server has started itself, where no fork server does it."""

    def __init__(self, process: asyncio.subprocess.Process, input_data: bytes) -> None:
        self._process = process
        self.stdout, self.stderr = process.stdout, process.stderr
        self._writing = asyncio.create_task(_write_input(process.stdin, input_data))

    async def wait(self) -> int:
        """Return the exit status; if negative, the signal that ended the program."""
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, unless that is gone."""
        signalled(self._process, number)

    async def kill(self) -> None:
        """Kill its process group."""
        self.signal(signal.SIGKILL)
        await self._process.wait()

    def close(self) -> None:
        """Write no more of its input."""
        self._writing.cancel()


async def spawned(program: Confined, *, has_input: bool) -> asyncio.subprocess.Process:
    """Start a program in its own process group; with *has_input*, its standard input is a pipe."""
    starting = asyncio.create_task(_spawned(program, has_input=has_input))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # asyncio would kill the first process alone, and wait for the others.
        ending = asyncio.create_task(_kill_group(starting))
        _endings.add(ending)
        ending.add_done_callback(_endings.discard)
        raise


async def _kill_group(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    with contextlib.suppress(OSError):  # it has not been started
        process = await starting
        signalled(process, signal.SIGKILL)
        # The pipes are closed at their end.
        outputs = (process.stdout, process.stderr)
        await asyncio.gather(*(CapturedOutput(0).drain(output) for output in outputs))
        await process.wait()


async def _spawned(program: Confined, *, has_input: bool) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", LAUNCHER),
        *(f"handles={descriptor}:{known_as}" for descriptor, known_as in program.handles),
        *_launch_arguments(program),
        stdin=asyncio.subprocess.PIPE if has_input else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(program.env),
        start_new_session=True,
        pass_fds=[descriptor for descriptor, _ in program.handles],
        close_fds=True,
    )


async def _write_input(stream: asyncio.StreamWriter | None, input_data: bytes) -> None:
    if stream is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the program may stop reading
        stream.write(input_data)
        await stream.drain()
    stream.close()


def _launch_arguments(program: Confined) -> list[str]:
    """Return the arguments for `launch`, without the environment, which others must not see."""
    arguments = {
        "root": (program.root,),
        "folder": program.folder,
        "limits": (f"{name}:{limit}" for name, limit in program.limits.items()),
        "runs": program.runs,
        "reads": (*ANSWERS, *program.reads),
        "writes": program.writes,
        "devices": DEVICES,
        "ports": map(str, program.ports),
        "network": ("",) * program.network,
        "offline": ("",) * program.offline,
        "confine": ("",) * confines(),
    }
    words = [f"{name}={value}" for name, values in arguments.items() for value in values]
    return [*words, "--", *program.argv]


async def _terminate(process: StreamedProcess | OwnChild) -> None:
    """Send SIGTERM, so that the program can remove its lock files; then kill it."""
    process.signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError, NotForked):
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    await process.kill()


def signalled(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to the program's process group, unless it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
