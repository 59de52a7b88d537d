"""
Somebody who runs commands in a process of its own: `python -m tests.secrets.operator`.

Each line it reads is a JSON array of arguments and what is typed; each line it prints is the exit
code and what the command wrote. One process for many commands: each would take a second to start.
"""

import json
import sys

from click.testing import CliRunner

from gatepost.cli.main import main


def serve() -> None:
    """Run what is asked until the input ends."""
    for line in sys.stdin:
        arguments, typed = json.loads(line)
        done = CliRunner().invoke(main, arguments, input=typed.encode())
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        print(json.dumps([done.exit_code, done.stdout, done.stderr]), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
