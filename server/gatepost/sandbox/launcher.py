"""Keep one fork server for each event loop, which starts confined programs (`launch`)."""

import asyncio
import atexit
import subprocess
import sys
from weakref import WeakKeyDictionary

from gatepost.sandbox import launch
from gatepost.sandbox.fork_server_client import ForkServerClient

LAUNCHER = launch.__file__
COLLECT_S = 5.0
"""How long it takes at most to end after its socket was closed."""

_launchers: WeakKeyDictionary[asyncio.AbstractEventLoop, ForkServerClient] = WeakKeyDictionary()
_processes: list[subprocess.Popen[bytes]] = []
"""The processes of all launchers that have not been collected."""


def launcher() -> ForkServerClient:
    """Return the launcher of this event loop; a new one if there is none, or it has ended."""
    loop = asyncio.get_running_loop()
    current = _launchers.get(loop)
    if current is None or current.is_ending:
        _processes[:] = [process for process in _processes if process.poll() is None]
        current = _launchers[loop] = _started()
    return current


def _started() -> ForkServerClient:
    server, launcher_end = ForkServerClient.pair()
    with launcher_end:
        descriptor = launcher_end.fileno()
        process = subprocess.Popen(  # noqa: S603 - a command of our own
            [sys.executable, "-I", "-S", "-X", "utf8", LAUNCHER, "--serve", f"{descriptor}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Neither the server's environment nor what else programs could read from it.
            env={},
            cwd="/",
            start_new_session=True,
            pass_fds=[descriptor],
        )
    _processes.append(process)
    server.kill_process = process.kill
    return server


@atexit.register
def _collect() -> None:
    for current in list(_launchers.values()):
        current.close()
    for process in _processes:
        process.wait(COLLECT_S)
