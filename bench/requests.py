"""`python -m bench --requests`: what requests cost that the usual workloads do not send."""

import http.client
import json
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.controls import CONTROLS, ControlledServer, ControlsSite, ServerCost
from bench.probe import TIMEOUT_S, NotAnswering
from bench.replicas import Measurement
from bench.report import number, table
from bench.sizes import KIB, prose, rows
from bench.workload import CONNECTIONS, META, PATH, REVISION, TEXT, BenchEndpoint
from bench.wrk import ACCOUNT_SCRIPT, cycling, quoted

HANDSHAKE_REVISION = "2025-11-25"
KEYS_A_SECOND = 10_000
"""More idempotency keys than Gatepost can store in a second."""
SESSIONS = 8
"""How many short sessions go on at once."""
REQUEST_HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}
ECHOED = {"name": "repeat", "arguments": {"text": TEXT}}

TOOLS = '''\
"""Tools of several kinds."""

from typing import Any

from gatepost import CallContext, Outcome, Pack, ToolFailure

pack = Pack("kinds")


@pack.tool(read_only=True)
async def repeat(ctx: CallContext, text: str) -> str:
    """Give a text back."""
    return text


@pack.tool(read_only=True)
def plain(ctx: CallContext, text: str) -> str:
    """Give a text back, as a plain function."""
    return text


@pack.tool()
async def change(ctx: CallContext, text: str) -> str:
    """Give a text back, as a tool that changes something."""
    return text


@pack.tool(read_only=True)
async def refuse(ctx: CallContext, text: str) -> str:
    """Refuse."""
    raise ToolFailure("not_found", "There is no such text.")


@pack.tool(read_only=True)
async def crash(ctx: CallContext, text: str) -> str:
    """Fail unexpectedly."""
    raise KeyError(text)


@pack.tool(read_only=True)
async def query(ctx: CallContext, count: int) -> list[dict[str, Any]]:
    """Return rows."""
    row = {"id": 12345, "name": "A row of a table", "tags": ["a", "b"], "total": 12.5}
    return [row] * count


@pack.tool(read_only=True)
async def report(ctx: CallContext, count: int) -> Outcome:
    """Return a text and rows."""
    row = {"id": 12345, "name": "A row of a table", "tags": ["a", "b"], "total": 12.5}
    text = {"type": "text", "text": f"There are {count} rows."}
    return Outcome((text,), {"rows": [row] * count})


@pack.tool(read_only=True)
async def parts(ctx: CallContext, count: int) -> Outcome:
    """Return several texts."""
    return Outcome(({"type": "text", "text": "A line of a report."},) * count)


@pack.tool(read_only=True)
async def table(ctx: CallContext, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give rows back."""
    return rows
'''


@dataclass(frozen=True)
class RawRequest:
    """A request without what depends on the server and the caller."""

    body: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: REQUEST_HEADERS)
    method: str = "POST"
    path: str = PATH

    def parts(self, endpoint: BenchEndpoint, last_header: str) -> tuple[str, str]:
        """Return what stands before and after the value that follows *last_header*."""
        fields = {"Host": endpoint.host, **self.headers, "Content-Length": str(len(self.body))}
        # The floor has paths of its own.
        path = self.path if endpoint.path == PATH else endpoint.path
        lines = [f"{self.method} {path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
        return "\r\n".join([*lines, last_header]), f"\r\n\r\n{self.body}"


@dataclass(frozen=True)
class RequestKind:
    """A kind of requests, all of them alike."""

    title: str
    request: RawRequest
    in_session: bool = False
    has_key: bool = False
    """Whether each request has another idempotency key."""


def message(method: str, params: Mapping[str, Any], request_id: int | None = 1) -> str:
    """Return a JSON-RPC request, or a notification if *request_id* is None."""
    fields = {"jsonrpc": "2.0", "method": method, "params": params}
    with_id = fields if request_id is None else fields | {"id": request_id}
    return json.dumps(with_id, separators=(",", ":"))


def call(tool: str, arguments: Mapping[str, Any], **headers: str) -> RawRequest:
    """Return a `tools/call` of the current revision."""
    routing = {"MCP-Protocol-Version": REVISION, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    params = {"_meta": META, "name": tool, "arguments": arguments}
    return RawRequest(message("tools/call", params), REQUEST_HEADERS | routing | headers)


HANDSHAKE_CALL = RawRequest(
    message("tools/call", ECHOED), REQUEST_HEADERS | {"MCP-Protocol-Version": HANDSHAKE_REVISION}
)
TEXT_ARGUMENTS = {"text": TEXT}
KINDS = (
    RequestKind("a call, as the workload warm sends it", call("repeat", TEXT_ARGUMENTS)),
    RequestKind("of a plain function (def)", call("plain", TEXT_ARGUMENTS)),
    RequestKind("of a tool that refuses (ToolFailure)", call("refuse", TEXT_ARGUMENTS)),
    RequestKind("of a tool that fails unexpectedly", call("crash", TEXT_ARGUMENTS)),
    RequestKind("with an argument that is not valid", call("repeat", {"text": 1})),
    RequestKind("of a tool that changes something", call("change", TEXT_ARGUMENTS)),
    RequestKind("the same with an idempotency key", call("change", TEXT_ARGUMENTS), has_key=True),
    RequestKind("over a new connection", call("repeat", TEXT_ARGUMENTS, Connection="close")),
    RequestKind(f"of {HANDSHAKE_REVISION}, without a session", HANDSHAKE_CALL),
    RequestKind("the same in a session", HANDSHAKE_CALL, in_session=True),
    RequestKind(
        "over REST",
        RawRequest(
            json.dumps(TEXT_ARGUMENTS),
            {"Content-Type": "application/json"},
            path="/tool/repeat/call",
        ),
    ),
    RequestKind("with 4 KiB of text", call("repeat", {"text": prose(4 * KIB)})),
    RequestKind("with 16 KiB of JSON in a text", call("repeat", {"text": rows(16 * KIB)})),
    RequestKind("that returns 10 rows", call("query", {"count": 10})),
    RequestKind("that returns 100 rows", call("query", {"count": 100})),
    RequestKind("that returns a text and 10 rows (Outcome)", call("report", {"count": 10})),
    RequestKind("that returns a text and 100 rows", call("report", {"count": 100})),
    RequestKind("that returns 10 texts", call("parts", {"count": 10})),
    RequestKind("with 1 KiB of rows", call("table", {"rows": json.loads(rows(KIB))})),
    RequestKind("with 16 KiB of rows", call("table", {"rows": json.loads(rows(16 * KIB))})),
)
SHORT_SESSION = "each of the four requests of a short session"
INITIALIZE = message(
    "initialize",
    {
        "protocolVersion": HANDSHAKE_REVISION,
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
)
INITIALIZED = message("notifications/initialized", {}, None)

SESSION_SCRIPT = """\
local head = {head}
local bodies = {bodies}
local threads = {{}}
local step = 0
local session = ""

function setup(thread) threads[#threads + 1] = thread end

function request()
  -- wrk also calls this function once before it sends anything.
  step = session == "" and 1 or step % #bodies + 1
  local named = step == 1 and "" or
    "MCP-Protocol-Version: {revision}\\r\\nMcp-Session-Id: " .. session .. "\\r\\n"
  return "POST {path} HTTP/1.1\\r\\n" .. head .. named ..
    "Content-Length: " .. #bodies[step] .. "\\r\\n\\r\\n" .. bodies[step]
end

function response(_, headers, _)
  -- The floor has none.
  if step == 1 then session = headers["mcp-session-id"] or headers["Mcp-Session-Id"] or "none" end
end
"""
"""
The script of short sessions. Each thread has one connection, so its last request is the one that
is answered.
"""


@dataclass(frozen=True)
class RequestSample:
    """One interval of each server; CPU microseconds of an answer."""

    title: str
    floor_us: float
    off_us: float
    on_us: float
    on_rate: float
    on_p99_us: float


class RequestSite(ControlsSite):
    """Sends one kind of requests to a server."""

    def answer(self, server: ControlledServer, kind: RequestKind) -> bytes:
        """Send one request and return the body of its answer; raises NotAnswering."""
        request, headers = kind.request, {**kind.request.headers, **self._session(server, kind)}
        if kind.has_key:
            headers["Idempotency-Key"] = str(uuid.uuid4())
        answer, body = self._exchange(server, request, headers)
        # A tool that refuses or fails answers an error within a result.
        if answer.status != http.HTTPStatus.OK or b'"error":' in body:
            raise NotAnswering(f"{kind.title}: {answer.status} {body[:300]!r}")
        return body

    def sample(self, server: ControlledServer, kind: RequestKind, seconds: int) -> ServerCost:
        """Send requests for an interval."""
        headers = {**kind.request.headers, **self._session(server, kind)}
        values, last_header = self.token_file, "Authorization: Bearer "
        if kind.has_key:
            headers["Authorization"] = f"Bearer {self.token}"
            values, last_header = self.folder / "keys", "Idempotency-Key: "
            keys = (str(uuid.uuid4()) for _ in range(KEYS_A_SECOND * seconds))
            values.write_text("\n".join([*keys, ""]), encoding="ascii")
        request = RawRequest(kind.request.body, headers, kind.request.method, kind.request.path)
        script = cycling(*request.parts(server.endpoint, last_header), values)
        cost = self.cost(server, script, seconds, connections=CONNECTIONS)
        # The floor looks at none.
        if kind.has_key and cost.account.reused and server.endpoint.path == PATH:
            raise NotAnswering(f"{kind.title}: there were too few keys")
        return cost

    def short_sessions(self, server: ControlledServer, seconds: int) -> ServerCost:
        """
        Begin sessions, in each of which the tools are listed and one is called, for an interval.

        They are not ended: a caller may end ten sessions a second.
        """
        fields = {"Host": server.endpoint.host, "Authorization": f"Bearer {self.token}"}
        lines = [f"{name}: {value}\r\n" for name, value in {**REQUEST_HEADERS, **fields}.items()]
        bodies = [INITIALIZE, INITIALIZED, message("tools/list", {}), HANDSHAKE_CALL.body]
        script = SESSION_SCRIPT.format(
            head=quoted("".join(lines)),
            bodies=f"{{{', '.join(map(quoted, bodies))}}}",
            revision=HANDSHAKE_REVISION,
            path=server.endpoint.path,
        )
        return self.cost(
            server, script + ACCOUNT_SCRIPT, seconds, connections=SESSIONS, threads=SESSIONS
        )

    def _session(self, server: ControlledServer, kind: RequestKind) -> dict[str, str]:
        """Begin a session if the requests are in one; return the header that names it."""
        # The floor has none.
        if not kind.in_session or server.endpoint.path != PATH:
            return {}
        answer, body = self._exchange(server, RawRequest(INITIALIZE), REQUEST_HEADERS)
        session = answer.getheader("Mcp-Session-Id")
        if session is None:
            raise NotAnswering(f"no session: {answer.status} {body[:300]!r}")
        named = {"MCP-Protocol-Version": HANDSHAKE_REVISION, "Mcp-Session-Id": session}
        self._exchange(server, RawRequest(INITIALIZED), REQUEST_HEADERS | named)
        return {"Mcp-Session-Id": session}

    def _exchange(
        self, server: ControlledServer, request: RawRequest, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        endpoint = server.endpoint
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=TIMEOUT_S)
        try:
            own = {"Host": endpoint.host, "Authorization": f"Bearer {self.token}"}
            connection.request(request.method, request.path, request.body, {**own, **headers})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()


def run(measurement: Measurement) -> list[RequestSample]:
    """Send each kind of requests to the floor and both Gateposts in turn, several times."""
    samples: list[RequestSample] = []
    site = RequestSite(measurement.folder, measurement.issuer, TOOLS, {})
    site.cores.pin_load(0)

    def measure(
        title: str, answer_bytes: int, cost: Callable[[ControlledServer], ServerCost]
    ) -> None:
        with site.floor(f"{len(samples)}", answer_bytes) as floor:
            for _ in range(measurement.rounds):
                costs = [cost(server) for server in (floor, *gates)]
                floor_us, off_us, on_us = (each.cpu_us for each in costs)
                account = costs[-1].account
                samples.append(
                    RequestSample(title, floor_us, off_us, on_us, account.rate, account.p99_us)
                )
        measurement.report_progress(f"{title}: done")

    with ExitStack() as stack:
        gates = [stack.enter_context(site.gate(controls)) for controls in CONTROLS]
        for kind in KINDS:
            answer_bytes = len(site.answer(gates[0], kind))

            def cost(server: ControlledServer, kind: RequestKind = kind) -> ServerCost:
                return site.sample(server, kind, measurement.seconds)

            measure(kind.title, answer_bytes, cost)
        answer_bytes = len(site.answer(gates[0], KINDS[0]))
        measure(
            SHORT_SESSION,
            answer_bytes,
            lambda server: site.short_sessions(server, measurement.seconds),
        )
    return samples


def render(samples: Sequence[RequestSample]) -> str:
    """Render the lowest costs of each kind, as other load only adds to them."""
    head = ["", "floor µs", "off µs", "ratio", "on µs", "ratio", "on, answers/s", "p99 ms"]
    lines = []
    for title in dict.fromkeys(sample.title for sample in samples):
        own = [sample for sample in samples if sample.title == title]
        floor_us = min(sample.floor_us for sample in own)
        cells = [title, number(floor_us, 0)]
        for us in (min(each.off_us for each in own), min(each.on_us for each in own)):
            cells += [number(us, 0), number(floor_us / us, 2)]
        rate = statistics.median(sample.on_rate for sample in own)
        p99_ms = statistics.median(sample.on_p99_us for sample in own) / 1000
        lines.append([*cells, number(rate, 0), number(p99_ms)])
    return table(head, lines)
