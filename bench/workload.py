"""What is asked of each server: the requests, the tokens they carry, the answer expected."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PATH = "/mcp"
REVISION = "2026-07-28"
TEXT = "Hello from the benchmark."
DOCUMENT = "A line of a document, as agents send and read them: 64 KiB of it.\n" * 1000
STEPS = 5
CONNECTIONS = 32
FEW_TOOLS = 5
MANY_TOOLS = 100

Tokens = Literal["one", "thousand", "fresh", "none", "garbage"]

META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True)
class BenchEndpoint:
    """Where a request goes: a port of this machine, and a path."""

    port: int
    path: str = PATH
    name: str = ""
    """What the Host header says where that is another server's address."""

    @property
    def address(self) -> str:
        """Return the address to connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def host(self) -> str:
        """Return the value of the Host header."""
        return self.name or self.address


@dataclass(frozen=True)
class Workload:
    """One kind of request, sent by every connection for a whole interval."""

    name: str
    title: str
    method: Literal["tools/call", "tools/list"]
    tokens: Tokens
    status: int = 200
    text: str = TEXT
    """What `echo` is asked to return."""
    progress: bool = False
    """Whether `count_slowly` is called instead, with five reports before its result (SSE)."""
    connections: int = CONNECTIONS
    other_tool: str = ""
    """The tool that is called, if it is not the usual one."""
    tools: int = FEW_TOOLS
    """How many tools the server has; FastMCP's calls get slower with every one."""
    target: float | None = None
    """The CPU ratio to the floor that Gatepost is to reach without its controls."""
    controlled: float | None = None
    """The same with every control on."""
    controlled_p99: float | None = None
    """What the p99 is to stay under, with every control on, as a multiple of the floor's."""
    of_fsync: float | None = None
    """What p50 and p99 are to stay under, with every control on, as a multiple of an `fsync`'s."""

    @property
    def answer(self) -> str:
        """Return the kind of answer, which decides its size."""
        if self.status != 200:
            return "refusal"
        if self.progress:
            return "progress"
        return "document" if self.text is not TEXT else self.method.partition("/")[2]

    @property
    def tool(self) -> str:
        """Return the tool that a call names."""
        return self.other_tool or ("count_slowly" if self.progress else "echo")

    @property
    def body(self) -> bytes:
        """Return the JSON-RPC request, the same bytes every time."""
        params: dict[str, object] = {"_meta": META}
        if self.progress:
            params["_meta"] = META | {"progressToken": 1}
            params |= {"name": self.tool, "arguments": {"steps": STEPS, "delay_s": 0}}
        elif self.method == "tools/call":
            params |= {"name": self.tool, "arguments": {"text": self.text}}
        message = {"jsonrpc": "2.0", "id": 1, "method": self.method, "params": params}
        return json.dumps(message, separators=(",", ":")).encode()

    def headers(self, endpoint: BenchEndpoint) -> dict[str, str]:
        """Return all headers but Authorization and Content-Length."""
        headers = {
            "Host": endpoint.host,
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": REVISION,
            "Mcp-Method": self.method,
        }
        if self.method == "tools/call":
            headers["Mcp-Name"] = self.tool
        return headers

    def misread(self, status: int, body: bytes) -> str | None:
        """Return why an answer is not the expected one; None when it is."""
        if status != self.status:
            return f"status {status} instead of {self.status}: {body[:300]!r}"
        if self.status != 200:
            return None
        if self.progress:
            reports = body.count(b"notifications/progress")
            return None if reports == STEPS else f"{reports} reports in {body[:300]!r}"
        if self.method == "tools/call":
            # As JSON writes it.
            sought = json.dumps(self.text)[1:-1].encode()
            return None if sought in body else f"no echo in {body[:300]!r}"
        listed_tools = body.count(b'"inputSchema"')
        return (
            None if listed_tools >= self.tools else f"{listed_tools} tools instead of {self.tools}"
        )


WORKLOADS = (
    Workload(
        "warm",
        "tools/call, one token",
        "tools/call",
        "one",
        target=0.40,
        controlled=0.30,
    ),
    Workload(
        "rotation",
        "tools/call, a thousand tokens",
        "tools/call",
        "thousand",
        target=0.45,
        controlled=0.30,
        controlled_p99=3,
    ),
    Workload(
        "fresh",
        "tools/call, RS256 tokens never seen before",
        "tools/call",
        "fresh",
        target=0.22,
        controlled=0.16,
    ),
    Workload(
        "document",
        "tools/call, 64 KiB in and out, 16 connections",
        "tools/call",
        "one",
        text=DOCUMENT,
        connections=16,
        target=0.35,
        controlled=0.18,
    ),
    Workload(
        "alone",
        "tools/call, one connection, one after another",
        "tools/call",
        "one",
        connections=1,
        of_fsync=2.5,
    ),
    Workload(
        "progress",
        "tools/call, five progress events, then the result (SSE)",
        "tools/call",
        "one",
        progress=True,
        target=0.30,
    ),
    Workload(
        "no-token", "refusal, no token", "tools/call", "none", 401, target=0.80, controlled=0.80
    ),
    Workload(
        "garbage",
        "refusal, garbage token",
        "tools/call",
        "garbage",
        401,
        target=0.80,
        controlled=0.80,
    ),
    Workload(
        "list",
        f"tools/list, {MANY_TOOLS} tools",
        "tools/list",
        "one",
        tools=MANY_TOOLS,
        target=0.45,
    ),
)


def by_name(names: Sequence[str]) -> tuple[Workload, ...]:
    """Return the named workloads in their usual order; raise ValueError for an unknown name."""
    unknown = set(names) - {workload.name for workload in WORKLOADS}
    if unknown:
        offered = ", ".join(workload.name for workload in WORKLOADS)
        raise ValueError(f"unknown workload {sorted(unknown)[0]!r}; there are {offered}")
    return tuple(workload for workload in WORKLOADS if workload.name in names)
