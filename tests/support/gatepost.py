"""Gatepost itself as a real process, started by the command line that users type."""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.process import Process, python_environment
from tests.support.sockets import free_port

HURRIED = {"GATEPOST_LIMITS__REQUESTS_PER_SECOND": "200", "GATEPOST_LIMITS__BURST": "400"}
"""What lets `gatepost dev` answer one caller as fast as tests ask."""
READY = r"Gatepost is ready at (?P<url>http\S+)"


class Gatepost(Process):
    """A running Gatepost: where its endpoint is and what it printed."""

    url: str
    """The MCP endpoint, as the ready line names it."""
    folder: Path
    """Where it runs and keeps its state."""

    @property
    def origin(self) -> str:
        """Scheme, host and port of the endpoint."""
        match = re.match(r"https?://[^/]+", self.url)
        assert match is not None
        return match[0]


def run(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
    """Start `gatepost ARGUMENTS…` in this interpreter's environment."""
    return Process(
        [sys.executable, "-m", "gatepost", *arguments], env=python_environment(env), cwd=cwd
    )


def ended(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """Exit code, output and complaints of a command, once it has ended by itself."""
    process = run(*arguments, env=env, cwd=cwd)
    try:
        process.process.wait(60)
        return process.stop(), process.stdout, process.stderr
    finally:
        process.kill()


@contextlib.contextmanager
def running(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    before: Sequence[str] = (),
) -> Iterator[Gatepost]:
    """
    Run a serving command until the block ends; yields once the ready line is there.

    *before* is a command that runs it.

    Every use proves the way out too: SIGTERM ends it with exit code 0, and the log shows no
    traceback.
    """
    command = [*before, sys.executable, "-m", "gatepost", *arguments]
    # Servers of other tests run beside this one, and there is one default address. No balancer
    # has to hear of a stop.
    quiet = {"GATEPOST_LISTEN__METRICS": "", "GATEPOST_LISTEN__LEAVE_S": "0"} | dict(env or {})
    process = Gatepost(command, env=python_environment(quiet), cwd=cwd)
    process.folder = cwd or Path.cwd()
    try:
        process.url = process.wait_for(READY)["url"]
        yield process
        code = process.stop()
        assert code == 0, f"exit code {code}:\n{process.output}"
        assert "Traceback (most recent call last)" not in process.output, process.output
    finally:
        process.kill()


@contextlib.contextmanager
def dev(state: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Gatepost]:
    """`gatepost dev` on a free port with its state below *state*, for tests in a hurry."""
    with running(
        "dev",
        "--port",
        str(free_port()),
        "--state",
        str(state / "state"),
        *arguments,
        env={**HURRIED, **(env or {})},
        cwd=state,
    ) as gatepost:
        yield gatepost


def token(state: Path, *arguments: str) -> str:
    """What `gatepost token` prints for the `dev` whose state is below *state*."""
    code, said, complaints = ended("token", "--state", str(state / "state"), *arguments)
    assert code == 0, complaints
    return said.strip()


@contextlib.contextmanager
def serve(config: str, folder: Path, *, env: Mapping[str, str] | None = None) -> Iterator[Gatepost]:
    """`gatepost serve` with the text of a configuration file, which is written into *folder*."""
    path = folder / "gatepost.toml"
    path.write_text(config, encoding="utf-8")
    with running("serve", "--config", str(path), env=env, cwd=folder) as gatepost:
        yield gatepost
