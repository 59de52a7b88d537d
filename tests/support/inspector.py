"""The Inspector's command line: one run per question, several of them beside each other."""

import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.node import command, environment

PROGRAM = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
ANSWERS_WITHIN_S = 60
AT_ONCE = 4


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


class Inspector:
    """Runs against one endpoint, with a folder of its own to remember things in."""

    def __init__(self, url: str, bearer: Mapping[str, str], home: Path) -> None:
        self.url, self.bearer = url, bearer
        self.environment = {
            **environment(),
            "HOME": str(home),
            # Without it the key store of the desktop is looked for, and its absence told.
            "MCP_INSPECTOR_SECRET_STORE": "memory",
        }

    def ask(self, method: str, *arguments: str, era: str) -> Said:
        """One method in one era: legacy, auto or modern."""
        headers = [f"{name}: {value}" for name, value in self.bearer.items()]
        asked = [
            *("--cli", self.url, "--transport", "http", "--stored-auth-only", "--format", "json"),
            *(("--header", *headers) if headers else ()),
            *("--protocol-era", era, "--method", method, *arguments),
        ]
        done = subprocess.run(
            command(PROGRAM, *asked),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def together(self, era: str, *questions: tuple[str, ...]) -> list[Said]:
        """Several at once, since most of a run is the start of Node."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda asked: self.ask(*asked, era=era), questions))

    def results(self, era: str, *questions: tuple[str, ...]) -> list[Any]:
        """Several at once that all have to succeed, without a word of complaint."""
        said = self.together(era, *questions)
        assert [(each.code, each.stderr) for each in said] == [(0, "")] * len(questions)
        return [each.result for each in said]
