"""Two servers of one resource, on one database and one Valkey, of which a test can kill one."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gatepost.secrets.keyring import create
from tests.support.gatepost import READY, Gatepost
from tests.support.idp import Idp
from tests.support.process import python_environment
from tests.support.sockets import free_port
from tests.support.tokens import TokenFactory
from tests.tenancy.house import issuer, tree
from tests.tenancy.post import toml

COMMAND = [sys.executable, "-m", "gatepost", "serve", "--config", "gatepost.toml"]


class Replicas:
    """
    Two replicas, numbered 0 and 1, that run in one folder; with more `ports`, more of them.

    *tools* is the file of their tools, which find the folder as their working directory. *port* is
    the resource's: a balancer's, or (None) the first replica's. *preset* says how its issuer writes
    tokens; *settings* are further tables of the configuration.
    """

    def __init__(
        self,
        idp: Idp,
        folder: Path,
        storage: Mapping[str, str],
        *,
        tools: Path,
        port: int | None = None,
        preset: str = "generic",
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.ports = [free_port(), free_port()]
        self.port = self.ports[0] if port is None else port
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.servers: list[Gatepost] = []
        table = {"acme": "acme", "globex": "globex"}
        trusted = issuer(idp, tenants=table, preset=preset)
        self._forge = TokenFactory(trusted["issuer"], self.url)
        create(folder / "keyring.json")
        configured = tree(
            self.port,
            [trusted],
            storage=dict(storage),
            keys={"ring": "file:keyring.json"},
            tools={"load": [str(tools)]},
            **settings,
        )
        text = "\n".join(f"{name} = {toml(value)}" for name, value in configured.items())
        (folder / "gatepost.toml").write_text(text, encoding="utf-8")

    @contextmanager
    def running(self) -> Iterator[None]:
        """All of them, for the time of a block."""
        try:
            # All before any is waited for: most of a start is the interpreter's.
            self.servers += [self._begun(number) for number in range(len(self.ports))]
            for server in self.servers:
                server.wait_for(READY)
            yield
        finally:
            for server in self.servers:
                server.kill()

    def kill(self, number: int) -> None:
        """End a replica without a word, as a machine ends that loses its power."""
        self.servers[number].kill()

    def restart(self, number: int) -> None:
        """Start a replica again at its old address."""
        self.kill(number)
        self.servers[number] = self._begun(number)
        self.servers[number].wait_for(READY)

    def token(self, **claims: Any) -> str:
        """A token for the resource; the same person's unless *claims* say otherwise."""
        return self._forge.token(**claims)

    def _begun(self, number: int) -> Gatepost:
        environment = {"GATEPOST_LISTEN__PORT": str(self.ports[number])}
        return Gatepost(COMMAND, env=python_environment(environment), cwd=self.folder)
