"""What is asked of each server: the requests, the tokens they carry, the answer expected."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PATH = "/mcp"
REVISION = "2026-07-28"
TEXT = "Hello from the benchmark."
FEW_TOOLS = 5
MANY_TOOLS = 100

Tokens = Literal["one", "thousand", "fresh", "none", "garbage"]

META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True)
class Place:
    """Where a request goes: a port of this machine, and a path."""

    port: int
    path: str = PATH
    name: str = ""
    """What the Host header says where that is another server's address."""

    @property
    def address(self) -> str:
        """Where to connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def host(self) -> str:
        """The value of the Host header."""
        return self.name or self.address


@dataclass(frozen=True)
class Workload:
    """One kind of request, sent by every connection for a whole interval."""

    name: str
    title: str
    method: Literal["tools/call", "tools/list"]
    tokens: Tokens
    status: int = 200
    tools: int = FEW_TOOLS
    """How many tools the server has; FastMCP's calls get slower with every one."""
    target: float | None = None
    """The CPU ratio to the floor that Gatepost is to reach without its controls."""
    controlled: float | None = None
    """The same with every control on."""
    controlled_p99_ms: float | None = None
    """What 99 of 100 answers are to take less than, with every control on."""

    @property
    def answer(self) -> str:
        """The kind of answer, which decides its size: `call`, `list` or `refusal`."""
        return "refusal" if self.status != 200 else self.method.partition("/")[2]

    @property
    def body(self) -> bytes:
        """The JSON-RPC request, the same bytes every time."""
        params: dict[str, object] = {"_meta": META}
        if self.method == "tools/call":
            params |= {"name": "echo", "arguments": {"text": TEXT}}
        message = {"jsonrpc": "2.0", "id": 1, "method": self.method, "params": params}
        return json.dumps(message, separators=(",", ":")).encode()

    def headers(self, place: Place) -> dict[str, str]:
        """Everything but Authorization and Content-Length."""
        headers = {
            "Host": place.host,
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": REVISION,
            "Mcp-Method": self.method,
        }
        if self.method == "tools/call":
            headers["Mcp-Name"] = "echo"
        return headers

    def misread(self, status: int, body: bytes) -> str | None:
        """Why an answer is not the one expected; None when it is."""
        if status != self.status:
            return f"status {status} instead of {self.status}: {body[:300]!r}"
        if self.status != 200:
            return None
        if self.method == "tools/call":
            return None if TEXT.encode() in body else f"no echo in {body[:300]!r}"
        listed = body.count(b'"inputSchema"')
        return None if listed >= self.tools else f"{listed} tools instead of {self.tools}"


WORKLOADS = (
    Workload(
        "warm",
        "tools/call, one token",
        "tools/call",
        "one",
        target=0.42,
        controlled=0.30,
        controlled_p99_ms=6.0,
    ),
    Workload("rotation", "tools/call, a thousand tokens", "tools/call", "thousand", target=0.42),
    Workload(
        "fresh", "tools/call, RS256 tokens never seen before", "tools/call", "fresh", target=0.20
    ),
    Workload("no-token", "refusal, no token", "tools/call", "none", 401, target=0.75),
    Workload("garbage", "refusal, garbage token", "tools/call", "garbage", 401, target=0.75),
    Workload(
        "list",
        f"tools/list, {MANY_TOOLS} tools",
        "tools/list",
        "one",
        tools=MANY_TOOLS,
        target=0.45,
    ),
)


def named(names: Sequence[str]) -> tuple[Workload, ...]:
    """The workloads of these names, in their usual order; ValueError for an unknown name."""
    unknown = set(names) - {workload.name for workload in WORKLOADS}
    if unknown:
        known = ", ".join(workload.name for workload in WORKLOADS)
        raise ValueError(f"unknown workload {sorted(unknown)[0]!r}; there are {known}")
    return tuple(workload for workload in WORKLOADS if workload.name in names)
