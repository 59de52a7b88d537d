"""The rows of the comparison: how each server is started and what is asked of it."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench import gatepost, peers
from bench.servers.settings import Settings
from bench.workload import BenchEndpoint, Workload

ROOT = Path(__file__).resolve().parents[1]
CALLS = ("warm", "rotation", "fresh", "document", "alone", "no-token", "garbage")
PEERS = (*CALLS, "list")
ALL_WORKLOADS = (*PEERS, "progress")


@dataclass(frozen=True)
class Launch:
    """A command and the environment it needs beside ours."""

    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contestant:
    """One server in the comparison."""

    name: str
    title: str
    launch: Callable[[Settings, Path], Launch]
    """From settings and a folder for files; raises Unavailable when it cannot be had."""
    workloads: tuple[str, ...] = ALL_WORKLOADS
    quick: tuple[str, ...] = ("warm",)
    """What `--quick` leaves of the workloads in its first round."""
    again: tuple[str, ...] = ()
    """And in its other rounds."""
    remembers: bool = False
    """It keeps verdicts, so a token sent twice is no longer one never seen."""
    one_path: bool = True
    """Everything goes to /mcp; else to a path named after the kind of answer wanted."""
    ready_line: str = ""
    """What it prints when it is ready, if start-up is measured."""

    def endpoint(self, port: int, workload: Workload) -> BenchEndpoint:
        """Return the endpoint that takes the requests of a workload."""
        return BenchEndpoint(port) if self.one_path else BenchEndpoint(port, f"/{workload.answer}")


class Unavailable(Exception):
    """A contestant cannot run on this machine; the message is the row's reason."""


def module(name: str, *arguments: str) -> Callable[[Settings, Path], Launch]:
    """Return a launcher of a server of `bench.servers`, run by this interpreter."""

    def launch(settings: Settings, folder: Path) -> Launch:
        command = [sys.executable, "-m", f"bench.servers.{name}", *arguments]
        return Launch(command, settings.write(folder / "settings.json") | source_path(ROOT))

    return launch


def peer(name: str) -> Callable[[Settings, Path], Launch]:
    """Return a launcher of a server of `bench.servers`, run in the peers' environment."""

    def launch(settings: Settings, folder: Path) -> Launch:
        try:
            interpreter = peers.python()
        except peers.PeersMissing as missing:
            raise Unavailable(str(missing)) from None
        env = settings.write(folder / "settings.json") | {"PYTHONPATH": str(ROOT)}
        return Launch([str(interpreter), "-m", f"bench.servers.{name}"], env)

    return launch


def source_path(*folders: Path) -> dict[str, str]:
    """Return an environment in which our sources are found, installed or not."""
    inherited = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, [inherited])])}


def shipped(settings: Settings, folder: Path) -> Launch:
    """Launch `gatepost serve` with every control except the flood limit."""
    return serve(gatepost.write_config(settings, folder))


def stripped(settings: Settings, folder: Path) -> Launch:
    """Launch Gatepost without limits, audit, metrics and the log of requests."""
    return serve(gatepost.write_config(settings, folder, controls=gatepost.OFF))


def serve(config: Path) -> Launch:
    """Launch `gatepost serve` with a configuration file."""
    command = [sys.executable, "-m", "gatepost", "serve", "--config", str(config)]
    roots = [ROOT / name for name in ("authz", "server", "keys")]
    return Launch(command, source_path(*roots))


CONTESTANTS = (
    Contestant(
        "gatepost",
        "Gatepost, all controls on",
        shipped,
        quick=ALL_WORKLOADS,
        again=ALL_WORKLOADS,
        remembers=True,
        ready_line="Gatepost is ready at",
    ),
    Contestant(
        "stripped",
        "Gatepost, controls off",
        stripped,
        again=("warm",),
        remembers=True,
        ready_line="Gatepost is ready at",
    ),
    Contestant(
        "floor",
        "floor: bare ASGI on uvicorn",
        module("floor"),
        quick=ALL_WORKLOADS,
        again=ALL_WORKLOADS,
        one_path=False,
    ),
    Contestant(
        "cached",
        "handwritten, PyJWT and a token cache",
        module("handwritten", "--cached"),
        workloads=CALLS,
        remembers=True,
    ),
    Contestant("each", "handwritten, PyJWT each time", module("handwritten"), workloads=CALLS),
    Contestant("sdk", "mcp SDK 2.3", peer("sdk"), workloads=PEERS),
    Contestant("fastmcp", "FastMCP 4.1.2", peer("fast"), workloads=PEERS),
)


def by_name(names: list[str]) -> tuple[Contestant, ...]:
    """Return the named contestants and the floor; raise ValueError for an unknown name."""
    unknown = set(names) - {contestant.name for contestant in CONTESTANTS}
    if unknown:
        offered = ", ".join(contestant.name for contestant in CONTESTANTS)
        raise ValueError(f"unknown server {sorted(unknown)[0]!r}; there are {offered}")
    return tuple(each for each in CONTESTANTS if each.name in {*names, "floor"})
