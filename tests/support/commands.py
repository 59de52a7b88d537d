"""
Gatepost as real processes: its commands, and a server that reloads.

`python -m tests.support.commands` is a process that runs one command after the other. Each line it
reads is a JSON array of arguments and what is typed; each line it prints is the exit code and what
the command wrote. A process for each command would take a second to start.
"""

import asyncio
import contextlib
import json
import re
import shlex
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from gatepost.cli import erasure
from gatepost.cli.main import main
from gatepost.runtime import erasure as tenant_erasure
from gatepost.secrets.keyring import create, rotate
from gatepost.workspace.ownership import PRIVATE, USAGE_FILE
from tests.support.client import RawAnswer, ResourceClient, result
from tests.support.issuers import Idp, TokenFactory
from tests.support.measuring import eventually
from tests.support.processes import Process, fork_server, free_port, python_environment
from tests.support.server import Settings, configuration

FAST_LIMITS = {"GATEPOST_LIMITS__REQUESTS_PER_SECOND": "200", "GATEPOST_LIMITS__BURST": "400"}
"""What lets `gatepost dev` answer one caller as fast as tests ask."""
WITHOUT_SERVERS = "without-servers"
READY_LINE = r"Gatepost is ready at (?P<url>http\S+)"


class Gatepost(Process):
    """A running Gatepost: where its endpoint is and what it printed."""

    url: str
    """The MCP endpoint, as the ready line names it."""
    folder: Path
    """Where it runs and keeps its state."""

    @property
    def origin(self) -> str:
        """Return scheme, host and port of the endpoint."""
        match = re.match(r"https?://[^/]+", self.url)
        assert match is not None
        return match[0]


def run(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
    """Start `gatepost ARGUMENTS…` in this interpreter's environment."""
    return Process(
        [sys.executable, "-m", "gatepost", *arguments], env=python_environment(env), cwd=cwd
    )


class CommandResult(NamedTuple):
    """Exit code, output and error output of a command."""

    code: int
    out: str
    err: str


def completed(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> CommandResult:
    """Return the result of a command, once it has ended by itself."""
    process = run(*arguments, env=env, cwd=cwd)
    try:
        process.process.wait(60)
        return CommandResult(process.stop(), process.stdout, process.stderr)
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
        process.url = process.wait_for(READY_LINE)["url"]
        yield process
        code = process.stop()
        assert code == 0, f"exit code {code}:\n{process.output}"
        assert "Traceback (most recent call last)" not in process.output, process.output
    finally:
        process.kill()


@contextlib.contextmanager
def dev(state: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Gatepost]:
    """Run `gatepost dev` on a free port with its state below *state* and fast limits."""
    with running(
        "dev",
        "--port",
        str(free_port()),
        "--state",
        str(state / "state"),
        *arguments,
        env={**FAST_LIMITS, **(env or {})},
        cwd=state,
    ) as gatepost:
        yield gatepost


def token(state: Path, *arguments: str) -> str:
    """Return what `gatepost token` prints for the `dev` whose state is below *state*."""
    code, said, complaints = completed("token", "--state", str(state / "state"), *arguments)
    assert code == 0, complaints
    return said.strip()


@contextlib.contextmanager
def serve(config: str, folder: Path, *, env: Mapping[str, str] | None = None) -> Iterator[Gatepost]:
    """Run `gatepost serve` with the text of a configuration file, written into *folder*."""
    path = folder / "gatepost.toml"
    path.write_text(config, encoding="utf-8")
    with running("serve", "--config", str(path), env=env, cwd=folder) as gatepost:
        yield gatepost


def tenant_folder(root: Path, tenant: str) -> Path:
    """Return the folder of the tenant's files; create its usage file if there is none."""
    home = root / PRIVATE / tenant
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / USAGE_FILE).touch(mode=0o600)
    return root / tenant


RELOADED_EVENT, REFUSED_EVENT = "configuration_reloaded", "reload_refused"
PID_TOOL = '''
import os
from gatepost import CallContext, Pack

pack = Pack("pids")


@pack.tool(name="{name}", read_only=True)
async def pid(ctx: CallContext) -> str:
    """Say which process serves."""
    return str(os.getpid())
'''


def toml(value: Any) -> str:
    """Return a TOML value on one line; these strings need no more quoting than JSON's."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def toml_file(tree: Mapping[str, Any]) -> str:
    """Return a configuration file with these tables."""
    return "\n".join(f"{name} = {toml(value)}" for name, value in tree.items())


class ServerProcess:
    """A running `gatepost serve`, its door, and the file that configures it."""

    def __init__(
        self, idp: Idp, folder: Path, configured: Settings, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.idp, self.folder, self.configured = idp, folder, configured
        self.client = ResourceClient(configured["resource"], tls=tls)
        self.process: Gatepost
        self.write({})

    def write(self, changes: Settings) -> None:
        """Put the configuration with these tables changed into the file."""
        self.configured = self.configured | changes
        (self.folder / "gatepost.toml").write_text(toml_file(self.configured), encoding="utf-8")

    def add_tool(self, name: str) -> str:
        """Write a file with a tool that returns its process id; return the path to load."""
        (self.folder / f"{name}.py").write_text(PID_TOOL.replace("{name}", name), encoding="utf-8")
        return f"./{name}.py"

    def hang_up(self, says: str = RELOADED_EVENT, *, times: int = 1) -> None:
        """Send SIGHUP and wait until so many processes have said so."""
        before = self.process.output.count(says)
        self.process.process.send_signal(signal.SIGHUP)
        eventually(lambda: self.process.output.count(says) >= before + times, within=15)

    def reload(self, *, times: int = 1, **changes: Any) -> None:
        """Change the file and have it taken up."""
        self.write(changes)
        self.hang_up(times=times)

    def token(self, issuer: str = "main", **claims: Any) -> str:
        return TokenFactory(self.idp.issuer(issuer), self.client.resource).token(**claims)

    def status(self, token: str) -> int:
        """Return the status of the demo pack's `whoami` for this token."""
        return self.client.call(token, "whoami").status

    def pid(self, token: str) -> int:
        """Return the id of the process that answered."""
        return pid_of(self.client.call(token, "pid"))


def pid_of(answer: RawAnswer) -> int:
    return int(result(answer)["content"][0]["text"])


@contextmanager
def server_process(
    idp: Idp,
    folder: Path,
    issuers: list[Settings],
    *arguments: str,
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    **settings: Any,
) -> Iterator[ServerProcess]:
    """Run `gatepost serve ARGUMENTS` (by *before*) with that configuration until the block ends."""
    port = free_port()
    tools = {"packs": ["demo"], "load": ["./pid.py"]}
    usual = {"listen": {"port": port, "drain_s": 10}, "tools": tools}
    running_post = ServerProcess(idp, folder, configuration(port, issuers, **usual | settings))
    running_post.add_tool("pid")
    with running("serve", *arguments, env=env, cwd=folder, before=before) as process:
        running_post.process = process
        yield running_post


COMMAND_S = 60


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
        return CommandResult(*json.loads(self.next_line(timeout_s=COMMAND_S)))

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

    ``settings`` are shared by the server and the commands; *tools* are modules with packs.
    """

    def __init__(
        self, folder: Path, database: str, tenants: tuple[str, ...], *, tools: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self._commands: CommandProcess | None = None
        self.ring = folder / "ring.json"
        create(self.ring)
        self.settings: dict[str, Any] = {
            "storage": {"database": database},
            "keys": {"ring": f"file:{self.ring}"},
            "tenancy": {"create_on_first_use": False, "tenants": list(tenants)},
            "tools": {"load": [*tools]},
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
        (self.folder / "gatepost.toml").write_text(toml_file(usual | self.settings | changes))

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


def run_commands() -> None:
    """Run the commands of standard input until it ends."""
    for line in sys.stdin:
        arguments, typed = json.loads(line)
        done = CliRunner().invoke(main, arguments, input=typed.encode())
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        print(json.dumps([done.exit_code, done.stdout, done.stderr]), flush=True)  # noqa: T201


FORK_CLIENT = """
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


def started_shell(lines: str, folder: Path) -> subprocess.Popen[str]:
    """Start a shell with these lines, in which both programs are this checkout's."""
    python, link = shlex.quote(sys.executable), fork_server().link.fileno()
    programs = f"""
gatepost() {{ {python} -ISc {shlex.quote(FORK_CLIENT)} {link} gatepost "$@"; }}
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


def shell_output(lines: str, folder: Path, *, code: int | None = None) -> str:
    """Return what a shell prints for these lines; assert its exit *code*, if one is given."""
    with started_shell(lines, folder) as shell:
        printed = shell.communicate(timeout=60)[0]
    assert code is None or shell.returncode == code, printed
    return printed


if __name__ == "__main__":
    if WITHOUT_SERVERS in sys.argv[1:]:
        erasure.PROPAGATION_S = tenant_erasure.PAUSE_S = 0.0
    run_commands()
