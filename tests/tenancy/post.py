"""Gatepost as a real process whose configuration file a test rewrites while it runs."""

import json
import signal
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.client import Client, RawAnswer, result
from tests.support.gatepost import Gatepost, running
from tests.support.idp import Idp
from tests.support.sockets import free_port
from tests.support.tokens import TokenFactory
from tests.support.waiting import eventually
from tests.tenancy.house import Tree, tree

RELOADED, REFUSED = "configuration reloaded", "reload refused"
PID_TOOL = '''
import os
from gatepost import CallContext, Pack

pack = Pack("pids")


@pack.tool(name="{name}")
async def pid(ctx: CallContext) -> str:
    """Say which process serves."""
    return str(os.getpid())
'''


def toml(value: Any) -> str:
    """A TOML value on one line; the strings of these tests need no more quoting than JSON's."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


class Post:
    """A running `gatepost serve`, its door, and the file that configures it."""

    def __init__(
        self, idp: Idp, folder: Path, configured: Tree, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.idp, self.folder, self.configured = idp, folder, configured
        self.door = Client(configured["resource"], tls=tls)
        self.process: Gatepost
        self.write({})

    def write(self, changes: Tree) -> None:
        """Put the configuration with these tables changed into the file."""
        self.configured = self.configured | changes
        text = "\n".join(f"{name} = {toml(value)}" for name, value in self.configured.items())
        (self.folder / "gatepost.toml").write_text(text, encoding="utf-8")

    def add_tool(self, name: str) -> str:
        """A tool file with one tool, which says its process; the path for `tools.load`."""
        (self.folder / f"{name}.py").write_text(PID_TOOL.replace("{name}", name), encoding="utf-8")
        return f"./{name}.py"

    def hang_up(self, says: str = RELOADED, *, times: int = 1) -> None:
        """Send SIGHUP and wait until so many processes have said so."""
        before = self.process.output.count(says)
        self.process.process.send_signal(signal.SIGHUP)
        eventually(lambda: self.process.output.count(says) >= before + times, within=15)

    def reload(self, *, times: int = 1, **changes: Any) -> None:
        """Change the file and have it taken up."""
        self.write(changes)
        self.hang_up(times=times)

    def token(self, issuer: str = "main", **claims: Any) -> str:
        return TokenFactory(self.idp.issuer(issuer), self.door.resource).token(**claims)

    def status(self, token: str) -> int:
        """How the demo pack's `whoami` answers this token."""
        return self.door.call(token, "whoami").status

    def pid(self, token: str) -> int:
        """The process that answered."""
        return pid_of(self.door.call(token, "pid"))


def pid_of(answer: RawAnswer) -> int:
    return int(result(answer)["content"][0]["text"])


@contextmanager
def post(
    idp: Idp,
    folder: Path,
    issuers: list[Tree],
    *arguments: str,
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    **settings: Any,
) -> Iterator[Post]:
    """Run `gatepost serve ARGUMENTS` (by *before*) with that configuration until the block ends."""
    port = free_port()
    tools = {"packs": ["demo"], "load": ["./pid.py"]}
    usual = {"listen": {"port": port, "drain_s": 10}, "tools": tools}
    running_post = Post(idp, folder, tree(port, issuers, **usual | settings))
    running_post.add_tool("pid")
    with running("serve", *arguments, env=env, cwd=folder, before=before) as process:
        running_post.process = process
        yield running_post
