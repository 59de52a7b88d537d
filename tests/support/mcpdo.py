"""`mcpdo`, the Inspector's other command line: a daemon keeps its connections between the runs."""

import json
import secrets
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.node import command, environment
from tests.support.process import Process

PROGRAM = "node_modules/@modelcontextprotocol/inspector/clients/mcpdo/build/mcp-bin.js"
ANSWERS_WITHIN_S = 60


class Mcpdo:
    """Runs against one daemon of our own; *home* is the folder that it remembers things in."""

    def __init__(self, home: Path) -> None:
        self.environment = {
            **environment(),
            "HOME": str(home),
            "MCP_INSPECTOR_DAEMON_DIR": str(home / "d"),
            "MCP_INSPECTOR_DAEMON_TOKEN": secrets.token_urlsafe(32),
            "MCP_INSPECTOR_SECRET_STORE": "memory",
        }

    def run(self, *arguments: str) -> Any:
        """What one run that succeeds prints."""
        done = subprocess.run(
            command(PROGRAM, "--format", "json", *arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def connect(self, name: str, url: str, bearer: Mapping[str, str], *, era: str) -> Any:
        """Open a connection by which later runs go; what it shows of itself."""
        (header,) = (f"{header}: {value}" for header, value in bearer.items())
        where = (url, "--transport", "http", "--era", era, "--connection", name)
        return self.run("connect", *where, "--header", header)

    def answered(self, connection: str, call: tuple[str, ...], *answer: str) -> str:
        """Call a tool that asks a question, answer it, and say what the tool does then."""
        pending = self.run("--connection", connection, "tools/call", *call)["elicitationPending"]
        result = self.run(
            *("--connection", connection, "elicitation/respond", pending["elicitationId"]), *answer
        )
        return str(result["content"][0]["text"])

    @contextmanager
    def watching(self, connection: str, uri: str) -> Iterator[Process]:
        """Word of a document, as it is printed, until the block ends."""
        asked = ("--format", "json", "--connection", connection, "resources/subscribe", uri)
        process = Process(command(PROGRAM, *asked), env=self.environment)
        try:
            process.wait_for('"subscribed"')
            yield process
        finally:
            process.kill()


@contextmanager
def running() -> Iterator[Mcpdo]:
    """A daemon, which the first run starts and the end of the block stops."""
    # The path of a socket must be short; the daemon takes its leave in the folder that goes.
    with tempfile.TemporaryDirectory(prefix="mcpdo-", ignore_cleanup_errors=True) as home:
        mcpdo = Mcpdo(Path(home))
        try:
            yield mcpdo
        finally:
            mcpdo.run("daemon", "stop")
