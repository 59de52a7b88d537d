"""
Commands of `gatepost` on a folder that holds a deployment, all run by one process.

`python -m tests.cli.command_process` is that process. Each line it reads is a JSON array of
arguments and what is typed; each line it prints is the exit code and what the command wrote. A
process for each command would take a second to start.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from gatepost.cli import erasure
from gatepost.cli.main import main
from gatepost.runtime import erasure as tenant_erasure
from gatepost.secrets.keyring import create, rotate
from tests.support.commands import toml
from tests.support.processes import Process, python_environment

WITHIN_S = 60
WITHOUT_SERVERS = "without-servers"


class CommandResult(NamedTuple):
    """Exit code, output and error output of a command."""

    code: int
    out: str
    err: str


class CommandProcess(Process):
    """
    Runs commands in a folder, one after the other.

    *without_servers*: no server uses the folder's stores, so an erasure waits for none.
    """

    def __init__(self, folder: Path, *, without_servers: bool = False) -> None:
        command = [sys.executable, "-m", __name__]
        if without_servers:
            command.append(WITHOUT_SERVERS)
        super().__init__(command, env=python_environment(), cwd=folder)

    def run(self, *arguments: str, typed: str = "") -> CommandResult:
        """Run `gatepost ARGUMENTS…` with this on its standard input."""
        self.write_line(json.dumps([arguments, typed]))
        return CommandResult(*json.loads(self.next_line(timeout_s=WITHIN_S)))

    def succeed(self, *arguments: str, typed: str = "") -> CommandResult:
        """Run a command that ends with exit code 0."""
        done = self.run(*arguments, typed=typed)
        assert done.code == 0, done
        return done

    async def order(self, *arguments: str) -> CommandResult:
        """Run a command that succeeds, from a coroutine."""
        return await asyncio.to_thread(self.succeed, *arguments)


class DeploymentFolder:
    """
    A folder with a configuration, a key ring and a database, and the commands run in it.

    ``settings`` are shared by the server and the commands.
    """

    def __init__(self, folder: Path, database: str, tenants: tuple[str, ...]) -> None:
        self.folder = folder
        self._commands: CommandProcess | None = None
        self.ring = folder / "ring.json"
        create(self.ring)
        self.settings: dict[str, Any] = {
            "storage": {"database": database},
            "keys": {"ring": f"file:{self.ring}"},
            "tenancy": {"create_on_first_use": False, "tenants": list(tenants)},
            "tools": {"load": ["tests.secrets.tools"]},
            "workspace": {"root": str(folder / "workspaces")},
        }
        self.write()

    def write(self, **changes: Any) -> None:
        """Write the configuration file, with other settings where they are given."""
        usual: dict[str, Any] = {
            "resource": "http://127.0.0.1:1/mcp",
            "mode": "development",
            "issuers": [{"issuer": "http://127.0.0.1:1/as", "tenant": {"claim": "org_id"}}],
        }
        tree = usual | self.settings | changes
        lines = [f"{name} = {toml(value)}" for name, value in tree.items()]
        (self.folder / "gatepost.toml").write_text("\n".join(lines))

    def rotate(self, keep: int = 3) -> str:
        return rotate(self.ring, keep=keep)

    def run(self, *arguments: str, typed: str = "") -> CommandResult:
        """Run `gatepost ARGUMENTS…` in the process, with this on its standard input."""
        if self._commands is None:
            self._commands = CommandProcess(self.folder)
        return self._commands.run(*arguments, typed=typed)

    def close(self) -> None:
        """End the process."""
        if self._commands is not None:
            self._commands.kill()

    def set(self, name: str, value: str, tenant: str) -> CommandResult:
        """Run `gatepost secrets set`, which succeeds and prints nothing of the value."""
        done = self.run("secrets", "set", name, "--tenant", tenant, typed=value)
        assert done.code == 0, done
        assert value not in done.out + done.err
        return done


def serve() -> None:
    """Run the commands of standard input until it ends."""
    for line in sys.stdin:
        arguments, typed = json.loads(line)
        done = CliRunner().invoke(main, arguments, input=typed.encode())
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        print(json.dumps([done.exit_code, done.stdout, done.stderr]), flush=True)  # noqa: T201


if __name__ == "__main__":
    if WITHOUT_SERVERS in sys.argv[1:]:
        erasure.SETTLE_S = tenant_erasure.PAUSE_S = 0.0
    serve()
