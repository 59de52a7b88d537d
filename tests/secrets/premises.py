"""A deployment on disk: its configuration, its ring, its database, and the commands run on it."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from gatepost.secrets.keyring import create, rotate
from tests.secrets import toolset
from tests.support.processes import Process, python_environment

TOOLSET = str(Path(toolset.__file__))


def toml(value: Any) -> str:
    """A value as TOML has it in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {toml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Premises:
    """
    What an operator has in a folder.

    ``settings`` is what the server and the commands share; commands run in another process.
    """

    def __init__(self, folder: Path, database: str, tenants: tuple[str, ...]) -> None:
        self.folder = folder
        self._operator: Process | None = None
        self.ring = folder / "ring.json"
        create(self.ring)
        self.settings: dict[str, Any] = {
            "storage": {"database": database},
            "keys": {"ring": f"file:{self.ring}"},
            "tenancy": {"create_on_first_use": False, "tenants": list(tenants)},
            "tools": {"load": [TOOLSET]},
            "workspace": {"root": str(folder / "workspaces")},
        }
        self.write()

    def write(self, **changes: Any) -> None:
        """The configuration file, with other settings where they are given."""
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

    def run(self, *arguments: str, typed: str = "") -> Done:
        """`gatepost ARGUMENTS…` in the operator's process, with this on its standard input."""
        if self._operator is None:
            command = [sys.executable, "-m", "tests.secrets.operator"]
            self._operator = Process(command, env=python_environment(), cwd=self.folder)
        self._operator.write_line(json.dumps([arguments, typed]))
        return Done(*json.loads(self._operator.next_line()))

    def close(self) -> None:
        """The operator goes home."""
        if self._operator is not None:
            self._operator.kill()

    def set(self, name: str, value: str, tenant: str) -> Done:
        """`gatepost secrets set`, which works."""
        done = self.run("secrets", "set", name, "--tenant", tenant, typed=value)
        assert done.code == 0, done
        assert value not in done.out + done.err
        return done
