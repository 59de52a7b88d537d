"""Describe how the program of a stdio server is confined."""

import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from gatepost.sandbox import SYSTEM, Confined
from gatepost.upstreams.connection import ConnectionFailure
from gatepost.upstreams.upstream_server import StdioProgram, UpstreamServer

REFERENCE = "secret:"
USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
OPEN_FILES = 1_024
THREADS = 16
"""Threads that each process may have, because the system counts them as processes."""
INSTALLATIONS = ("pyvenv.cfg", "lib/node_modules", "include/node", "lib/python3", "lib/python3.11")
"""The files that show that a folder is an installation of Python or Node, not a person's files."""


class ProgramServices(msgspec.Struct, frozen=True):
    """The services of the process that connections to stdio servers use."""

    secret: Callable[[str, str], Awaitable[str | None]]
    """Returns a tenant's secret by its name; None if there is none."""
    redacted: Callable[[str, str], str]
    """Returns a text without the secrets of a tenant."""


async def environment(
    server: UpstreamServer, program: StdioProgram, services: ProgramServices
) -> dict[str, str]:
    """Return the program's environment; raises ConnectionFailure if a secret is missing."""
    variables: dict[str, str] = {}
    for name, value in program.env.items():
        if value.startswith(REFERENCE):
            secret = await services.secret(server.tenant, value.removeprefix(REFERENCE))
            if secret is None:
                raise ConnectionFailure(
                    "denied",
                    f"The MCP server {server.name} needs the secret "
                    f"{value.removeprefix(REFERENCE)!r}, which its tenant does not have.",
                )
            value = secret
        if "\0" in name + value or "=" in name or not name:
            raise ConnectionFailure(
                "denied", f"The environment of the MCP server {server.name} cannot be set."
            )
        variables[name] = value
    return variables


def confined(server: UpstreamServer, program: StdioProgram, env: Mapping[str, str]) -> Confined:
    """Return the program with all that it may use; raises ConnectionFailure if it is missing."""
    command = located(program.command)
    if command is None:
        raise ConnectionFailure(
            "unreachable",
            f"The program of the MCP server {server.name} is not installed on this machine.",
        )
    folders = tuple(dict.fromkeys((str(command.parent), str(command.resolve().parent))))
    limits = {
        # There is no limit of the address space, because Node reserves far more than it uses.
        "DATA": program.memory_bytes,
        "NPROC": tasks_of_this_user() + program.processes * THREADS,
        "NOFILE": OPEN_FILES,
    }
    return Confined(
        argv=(str(command), *program.args),
        env={"PATH": os.pathsep.join((*folders, *USUAL_PATH)), "LANG": "C.UTF-8", **env},
        root="/",
        reads=(*installations(command), *scripts(program.args), *program.reads),
        writes=program.writes,
        network=program.network,
        offline=not program.network,
        limits=limits,
        runs=(*SYSTEM, *folders),
    )


def located(command: str) -> Path | None:
    """Return the absolute path of a command, with its links; None if it cannot be executed."""
    path = command if command.startswith("/") else shutil.which(command)
    if path is None or not os.access(path, os.X_OK) or not Path(path).is_file():
        return None
    return Path(path)


def installations(command: Path) -> Iterator[str]:
    """Yield the folders that a command of Python or Node reads."""
    for path in dict.fromkeys((command, command.resolve())):
        prefix = path.parent.parent
        versioned = any(prefix.glob("lib/python3.*")) if path.parent.name == "bin" else False
        if versioned or any((prefix / marker).exists() for marker in INSTALLATIONS):
            yield str(prefix)


def scripts(args: Iterable[str]) -> Iterator[str]:
    """Yield the files among the arguments that are absolute paths: the program is to read them."""
    for argument in args:
        if argument.startswith("/") and Path(argument).is_file():
            yield argument


def tasks_of_this_user() -> int:
    """Return the number of processes and threads that count against this user's limit."""
    count = 0
    try:
        entries = [entry for entry in os.scandir("/proc") if entry.name.isdigit()]
    except OSError:
        return 4_096  # not Linux
    for entry in entries:
        try:
            if entry.stat().st_uid == os.getuid():
                count += len(os.listdir(f"{entry.path}/task"))
        except OSError:
            continue
    return count
