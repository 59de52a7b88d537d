"""Lines of a page, pasted into a shell in which `gatepost` is this checkout's."""

import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.processes import fork_server, python_environment

CLIENT = """
import json, os, socket, sys
read, write = os.pipe()
task = {"words": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd()}
link = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(link, [json.dumps(task).encode() + b"\\n"], [0, 1, 2, write])
os.close(write)
with open(read) as told:
    sys.exit(int(told.read().split()[1]))
"""
"""
Has the fork server of the tests run a program in its place, and ends as that does.

A page has dozens of commands, and each interpreter that imports Gatepost takes half a second.
"""


def started(lines: str, folder: Path) -> subprocess.Popen[str]:
    """A shell with these lines, in which both programs are this checkout's."""
    python, link = shlex.quote(sys.executable), fork_server().link.fileno()
    programs = f"""
gatepost() {{ {python} -ISc {shlex.quote(CLIENT)} {link} gatepost "$@"; }}
python() {{ {python} "$@"; }}
"""
    return subprocess.Popen(
        ["sh", "-c", programs + lines.replace(".venv/bin/gatepost", "gatepost")],
        cwd=folder,
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=[link],
    )


def pasted(lines: str, folder: Path, *, code: int | None = None) -> str:
    """What a shell prints for these lines; it ends with that exit *code*, if one is given."""
    with started(lines, folder) as shell:
        printed = shell.communicate(timeout=60)[0]
    assert code is None or shell.returncode == code, printed
    return printed
