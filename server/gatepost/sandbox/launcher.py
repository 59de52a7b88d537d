"""Keep one fork server for each event loop, which starts confined programs (`launch`)."""

import asyncio
import atexit
import contextlib
import secrets
import subprocess
import sys
from threading import Thread
from weakref import WeakKeyDictionary

from gatepost.sandbox import launch
from gatepost.sandbox.fork_server_client import ForkServerClient
from gatepost.sandbox.process_mark import MARK_BITS, kill_marked

LAUNCHER = launch.__file__
COLLECT_S, MAX_COLLECT_S = 1.0, 5.0
"""How long it usually takes to end after its socket was closed, and how long at most."""

_launchers: WeakKeyDictionary[asyncio.AbstractEventLoop, ForkServerClient] = WeakKeyDictionary()
_processes: dict[subprocess.Popen[bytes], int] = {}
"""The processes of all launchers that have not been collected, with their marks."""


def launcher() -> ForkServerClient:
    """Return the launcher of this event loop; a new one if there is none, or it has ended."""
    loop = asyncio.get_running_loop()
    current = _launchers.get(loop)
    if current is None or current.is_ending:
        _collect_ended()
        current = _launchers[loop] = _started()
    return current


def _started() -> ForkServerClient:
    server, launcher_end = ForkServerClient.pair(
        lambda: asyncio.get_running_loop().call_later(COLLECT_S, _collect_ended)
    )
    with launcher_end:
        descriptor, mark = launcher_end.fileno(), secrets.randbits(MARK_BITS)
        process = subprocess.Popen(  # noqa: S603 - a command of our own
            [
                sys.executable,
                "-I",
                "-S",
                "-X",
                "utf8",
                LAUNCHER,
                "--serve",
                f"{descriptor}",
                f"{mark}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Neither the server's environment nor what else programs could read from it.
            env={},
            cwd="/",
            start_new_session=True,
            pass_fds=[descriptor],
        )
    _processes[process] = mark
    server.kill_process = process.kill
    return server


def _collect_ended() -> None:
    for process, mark in list(_processes.items()):
        if process.poll() is not None:
            _processes.pop(process, None)
            if process.returncode < 0:
                # It could not end what it had started. In a thread, because it reads many files.
                Thread(target=kill_marked, args=(mark,), daemon=True).start()


@atexit.register
def _collect_all() -> None:
    for current in list(_launchers.values()):
        current.close()
    for process, mark in _processes.items():
        with contextlib.suppress(subprocess.TimeoutExpired):  # it was stopped
            if process.wait(MAX_COLLECT_S) < 0:
                kill_marked(mark)
