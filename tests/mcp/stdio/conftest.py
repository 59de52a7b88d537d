"""A client at the other end of the pipes, which keeps every line it gets."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.mcp.stdio import tools
from tests.support.measuring import eventually
from tests.support.processes import Process, python_environment

WITHIN_S = 20
META = "io.modelcontextprotocol/"
CONFIG = """
resource = "https://mcp.example.com/mcp"
[listen]
drain_s = {drain_s}
[limits]
max_body_bytes = 20000
requests_per_second = 0
[tools]
packs = ["demo"]
load = [{kit}]
[storage]
database = "memory:"
[stdio]
tenant = "acme"
subject = "alice"
scopes = ["files:write"]
"""


class StdioClient(Process):
    """`gatepost stdio` as a process, and the messages it has written."""

    def messages(self) -> list[Any]:
        """Everything on its standard output, which is JSON or nothing."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def of(self, identity: Any) -> Any:
        """The response to a request."""
        found: list[Any] = []

        def there() -> bool:
            found[:] = [
                one
                for one in self.messages()
                if "id" in one and one["id"] == identity and "method" not in one
            ]
            return bool(found)

        eventually(there, within=WITHIN_S)
        assert len(found) == 1
        assert type(found[0]["id"]) is type(identity)
        return found[0]

    def told(self, method: str) -> list[Any]:
        """The parameters of every message with that method, so far."""
        return [one.get("params") for one in self.messages() if one.get("method") == method]

    def hears(self, method: str, times: int = 1) -> list[Any]:
        """Wait for so many messages with that method; return their parameters."""
        eventually(lambda: len(self.told(method)) >= times, within=WITHIN_S)
        return self.told(method)

    def say(
        self, method: str, params: Any = None, *, identity: Any = None, meta: Any = None
    ) -> Any:
        """Send a request or, without an id, a notification."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if identity is not None:
            message["id"] = identity
        if params is not None or meta is not None:
            message["params"] = {**(params or {}), **({} if meta is None else {"_meta": meta})}
        self.write_line(json.dumps(message))
        return identity

    def modern(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        identity: Any,
        can: Mapping[str, Any] | None = None,
        **meta: Any,
    ) -> Any:
        """Send a request of 2026-07-28."""
        known = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": can or {}}
        return self.say(method, params or {}, identity=identity, meta={**known, **meta})

    def call(self, tool: str, *, identity: Any, **arguments: Any) -> Any:
        """Send a `tools/call` of 2026-07-28."""
        params = {"name": tool, "arguments": arguments}
        return self.modern("tools/call", params, identity=identity)

    def open(self, version: str = "2025-11-25", **capabilities: Any) -> Any:
        """Make the handshake; return its result."""
        client = {"name": "test", "version": "1"}
        asked = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client}
        result = self.of(self.say("initialize", asked, identity=f"open {version}"))["result"]
        self.say("notifications/initialized")
        return result

    def hang_up(self) -> int:
        """Close the pipe and answer the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WITHIN_S)


def text(response: Any) -> str:
    """Return the text of an answer."""
    answered: str = response["result"]["content"][0]["text"]
    return answered


@contextmanager
def talking(folder: Path, config: str = CONFIG, *, drain_s: int = 10) -> Iterator[StdioClient]:
    """Run a process during the block."""
    path = folder / "gatepost.toml"
    shown = json.dumps(str(Path(tools.__file__)))
    path.write_text(config.replace("{kit}", shown).replace("{drain_s}", str(drain_s)))
    command = [sys.executable, "-m", "gatepost", "stdio", "--config", str(path)]
    process = StdioClient(command, env=python_environment(), cwd=folder)
    try:
        yield process
    finally:
        process.kill()
