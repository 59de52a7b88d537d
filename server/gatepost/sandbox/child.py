"""One program at a time: started confined, listened to, and gone with all its children."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from gatepost.sandbox import launch

LAUNCHER = str(Path(launch.__file__))
GRACE_S = 2.0
"""How long a program may tidy up before it is killed."""
CHUNK = 65_536

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/full", "/dev/tty")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix", "/gnu")
"""Where the system's programs and libraries are; not /etc, which may hold our own secrets."""
ANSWERS = (
    # Not all of /etc/ssl and /etc/pki: the machine's own private keys lie there, too.
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem", "/etc/ssl/openssl.cnf"),
    *("/etc/pki/ca-trust", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem"),
    *("/etc/pki/tls/openssl.cnf", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/gnutls"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
    *("/etc/hosts", "/etc/host.conf", "/etc/services", "/etc/protocols", "/etc/gai.conf"),
)
"""What the system's libraries look up, and holds no secret."""


class Confined(msgspec.Struct, frozen=True, kw_only=True):
    """A program and all that it may use; everything else is refused where the kernel can."""

    argv: tuple[str, ...]
    """The first is an absolute path."""
    env: Mapping[str, str]
    """The whole environment."""
    root: str
    """An absolute path; its working directory is *folder* below it, reached without links."""
    folder: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    """Folders and files beside those of the system; nothing below these can be run."""
    ports: tuple[int, ...] = ()
    """TCP ports it may connect to, at any address: who names addresses checks them."""
    limits: Mapping[str, int] = {}
    """By the names of setrlimit(2), without RLIMIT_."""
    handles: tuple[tuple[int, int], ...] = ()
    """Open files that it inherits: ours, and the number that it knows each by."""
    runs: tuple[str, ...] = SYSTEM


class Ended(msgspec.Struct, frozen=True):
    """How a program ended and what it wrote, each as far as it was kept."""

    code: int
    """Its exit status; below zero the signal that ended it."""
    out: bytes
    err: bytes
    cut: tuple[bool, bool]
    """Whether more was written to each of them."""


class Kept:
    """The beginning of a stream; *heard* is told every part, kept or not."""

    def __init__(self, most: int, heard: Callable[[bytes], None] | None = None) -> None:
        self.data = bytearray()
        self.cut = False
        self._most = most
        self._heard = heard

    async def drain(self, stream: asyncio.StreamReader | None) -> None:
        """Read to the end, so that nobody waits for room in a pipe."""
        while stream is not None and (part := await stream.read(CHUNK)):
            if self._heard is not None:
                self._heard(part)
            room = self._most - len(self.data)
            self.data += part[:room]
            self.cut = self.cut or len(part) > room


def confines() -> bool:
    """Whether the kernel takes rights away from programs (Landlock)."""
    return launch.landlock_version() > 0


async def run(
    program: Confined,
    *,
    timeout_s: float,
    most: int,
    heard: Callable[[bytes], None] | None = None,
    given: bytes = b"",
) -> Ended:
    """
    Run it to its end and keep at most *most* bytes of each stream; *heard* gets what it writes to
    standard error, and it may read *given* from standard input.

    TimeoutError when it takes longer. However this ends, the program and all that it started in
    its process group are gone: asked first, then killed.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", LAUNCHER, *_told(program)),
        stdin=asyncio.subprocess.PIPE if given else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(program.env),
        start_new_session=True,
        pass_fds=[ours for ours, _ in program.handles],
        close_fds=True,
    )
    out, err = Kept(most), Kept(most, heard)
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(
                _feed(process.stdin, given), out.drain(process.stdout), err.drain(process.stderr)
            )
            code = await process.wait()
    except (asyncio.CancelledError, TimeoutError):
        await _ask(process)
        raise
    finally:
        # Also what outlived the program, and without waiting: nobody may be left to wait.
        _signal(process, signal.SIGKILL)
    return Ended(code, bytes(out.data), bytes(err.data), (out.cut, err.cut))


async def _feed(stream: asyncio.StreamWriter | None, given: bytes) -> None:
    if stream is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read to the end
        stream.write(given)
        await stream.drain()
    stream.close()


def _told(program: Confined) -> list[str]:
    """The words that `launch` reads; the environment goes another way, unseen by others."""
    told = {
        "root": (program.root,),
        "folder": program.folder,
        "handles": (f"{ours}:{known_as}" for ours, known_as in program.handles),
        "limits": (f"{name}:{most}" for name, most in program.limits.items()),
        "runs": program.runs,
        "reads": (*ANSWERS, *program.reads),
        "writes": program.writes,
        "devices": DEVICES,
        "ports": map(str, program.ports),
        "confine": ("",) * confines(),
    }
    words = [f"{name}={value}" for name, values in told.items() for value in values]
    return [*words, "--", *program.argv]


async def _ask(process: asyncio.subprocess.Process) -> None:
    """Let it remove its lock files; whoever does not listen is killed."""
    try:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await process.wait()
    finally:
        _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
