"""Tries in a worker what no message needs; answers what came of each."""

import _socket
import os
import runpy
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRIES: dict[str, Callable[[], object]] = {
    "a file of the system": lambda: Path("/etc/hostname").read_text(),
    "a file of the system by its number": lambda: os.open("/etc/hostname", os.O_RDONLY),
    "a file of Python's, for writing": lambda: Path(os.__file__).with_name("written").touch(),
    "a file by a way around": lambda: (
        Path(os.__file__).parent / "../../../../etc/hosts"
    ).read_text(),
    "a program": lambda: subprocess.run(["/bin/true"]),
    "a program by a shell": lambda: os.system("true"),  # noqa: S605
    "another process": os.fork,
    "a connection past the client": lambda: _socket.socket().connect(("127.0.0.1", 9)),
    "a connection to a socket's file": lambda: _socket.socket(socket.AF_UNIX).connect("/run/x"),
    "a datagram": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "a port of its own": lambda: socket.socket().bind(("127.0.0.1", 0)),
    "a question to a name server": lambda: _socket.getaddrinfo("localhost", 80),
    "another way to ask it": lambda: socket.gethostbyname("localhost"),
}


def answer(question: Any) -> dict[str, str]:
    """What kind of error each try ended with, by its name; nothing for one that worked."""
    worker = runpy.run_path(question["worker"])
    ours, _ = socket.socketpair()
    worker["use_connections"](worker["ConnectionClient"](ours.detach()), "")
    worker["forbid"]()
    outcomes = {}
    for name, work in TRIES.items():
        outcomes[name] = ""
        try:
            work()
        except PermissionError as refusal:
            outcomes[name] = str(refusal)
    return outcomes
