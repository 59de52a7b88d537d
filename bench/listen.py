"""`python -m bench --listen`: what ten thousand open streams cost beside a bare server's."""

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from threading import Thread

from bench import contestants, gatepost, wrk
from bench.client_streams import AT_ONCE, ClientStreams, room_for
from bench.contestants import Contestant, Launch, module
from bench.process import BenchProcess
from bench.report import number, table
from bench.rounds import WARM, RoundResults, RoundRunner
from bench.servers.settings import Settings
from bench.tokens import TENANTS, Mint
from bench.workload import FEW_TOOLS, META, PATH, REVISION, BenchEndpoint

OPEN_S = 60
EVENT_WAIT_S = 60
CALL_S = 10
CALLERS = 1000
"""How many principals the streams belong to."""
ANNOUNCEMENTS = 5

ANNOUNCE = '''\
"""A tool that tells all clients of its tenant of a change."""

from gatepost import CallContext, Pack

pack = Pack("announce")


@pack.tool()
async def announce(ctx: CallContext) -> str:
    """Announce that the list of tools changed."""
    await ctx.changes.listed("tools")
    return "Announced."
'''


def listening(settings: Settings, folder: Path) -> Launch:
    """Launch Gatepost as shipped, with a tool that announces changes."""
    tool = folder / "announce.py"
    tool.write_text(ANNOUNCE, encoding="utf-8")
    return contestants.serve(gatepost.write_config(settings, folder, further_files=[tool]))


GATEPOST = Contestant(
    "gatepost", "Gatepost as shipped", listening, ready_line="Gatepost is ready at", remembers=True
)
SSE = Contestant("sse", "Starlette on uvicorn", module("sse"), one_path=False)


@dataclass
class ListenCost:
    """What the streams of one server cost."""

    server: str
    streams: int
    bytes_per_connection: float = float("nan")
    """Of a connection that was answered once and is idle."""
    bytes_per_stream: float = float("nan")
    open_s: float = float("nan")
    idle_cpu: float = float("nan")
    """Cores used while nothing happens but keep-alive messages."""
    signs_of_life: int = 0
    reached_first_s: float = float("nan")
    reached_all_s: float = float("nan")
    """From the request that announces a change to the last stream that heard of it."""
    p99_us: dict[str, float] = field(default_factory=dict)
    """Of warm calls: `without` streams, beside `idle` ones, and while changes are `announced`."""


def request(endpoint: BenchEndpoint, method: str, params: dict[str, object], token: str) -> bytes:
    """Return a request of the modern era, byte for byte."""
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    ).encode()
    name = params.get("name")
    lines = [
        f"POST {endpoint.path} HTTP/1.1",
        f"Host: {endpoint.host}",
        "Accept: application/json, text/event-stream",
        "Content-Type: application/json",
        f"MCP-Protocol-Version: {REVISION}",
        f"Mcp-Method: {method}",
        *([f"Mcp-Name: {name}"] if name else []),
        f"Authorization: Bearer {token}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Trial:
    """One server's streams, from the first connection to the last announcement."""

    def __init__(
        self,
        bench: RoundRunner,
        contestant: Contestant,
        process: BenchProcess,
        tokens: list[str],
        idle_s: int,
    ) -> None:
        self._bench = bench
        self._contestant = contestant
        self._process = process
        self._tokens = tokens
        self._idle_s = idle_s
        self._port = bench.ports[contestant.name]
        self._bare = not contestant.one_path

    def connections(self, cost: ListenCost) -> None:
        """Measure idle connections, for comparison, of a server that has held nothing else."""
        before = self._warm()
        with ClientStreams(self._port) as streams:
            streams.join(cost.streams, self._call, b"HTTP/1.1 200", limit_s=OPEN_S)
            cost.bytes_per_connection = self._memory_growth(before) / cost.streams

    def streams(self, cost: ListenCost) -> None:
        """Measure the costs of open streams."""
        before = self._warm()
        cost.p99_us["without"] = self._p99()
        with ClientStreams(self._port) as streams:
            begun = time.monotonic()
            streams.join(cost.streams, self._listen, b"acknowledged", limit_s=OPEN_S)
            cost.open_s = time.monotonic() - begun
            cost.bytes_per_stream = self._memory_growth(before) / cost.streams
            cpu = self._process.usage().cpu_s
            cost.signs_of_life = streams.idle(self._idle_s)
            cost.idle_cpu = (self._process.usage().cpu_s - cpu) / self._idle_s
            cost.p99_us["idle"] = self._p99_during(streams.idle)
            firsts, lasts = zip(
                *(self._announce(streams) for _ in range(ANNOUNCEMENTS)), strict=True
            )
            cost.reached_first_s, cost.reached_all_s = median(firsts), median(lasts)
            cost.p99_us["announced"] = self._p99_during(lambda _: self._announce(streams))

    def _warm(self) -> int:
        """Return the resident bytes once every caller's token has been seen."""
        with ClientStreams(self._port) as streams:
            for first in range(0, len(self._tokens), AT_ONCE):
                request = partial(self._nth, first)
                streams.join(AT_ONCE, request, b"HTTP/1.1 200", limit_s=OPEN_S)
        return self._process.usage().resident

    def _nth(self, first: int, number: int) -> bytes:
        return self._call(first + number)

    def _memory_growth(self, before: int) -> int:
        return self._process.usage().resident - before

    def _p99(self) -> float:
        return float(self._bench.load(self._contestant, WARM, CALL_S).p99_us)

    def _p99_during(self, work: Callable[[float], object]) -> float:
        """Return the p99 of calls while *work* (given seconds) is done again and again."""
        p99s: list[float] = []
        calls = Thread(target=lambda: p99s.append(self._p99()))
        calls.start()
        while calls.is_alive():
            work(0.5)
        calls.join()
        if not p99s:
            raise wrk.LoadError("the calls beside the streams were not measured")
        return p99s[0]

    def _token(self, number: int) -> str:
        return self._tokens[number % len(self._tokens)]

    def _call(self, number: int) -> bytes:
        endpoint = BenchEndpoint(self._port, "/call" if self._bare else PATH)
        echo = {"name": "echo", "arguments": {"text": "x"}}
        return request(endpoint, "tools/call", echo, self._token(number))

    def _listen(self, number: int) -> bytes:
        endpoint = BenchEndpoint(self._port, "/listen" if self._bare else PATH)
        filters: dict[str, object] = {"notifications": {"toolsListChanged": True}}
        return request(endpoint, "subscriptions/listen", filters, self._token(number))

    def _announce(self, streams: ClientStreams) -> tuple[float, float]:
        """Announce a change; seconds until the first and the last stream heard of it."""
        endpoint = BenchEndpoint(self._port, "/announce" if self._bare else PATH)
        call: dict[str, object] = {"name": "announce", "arguments": {}}
        head, _, body = request(endpoint, "tools/call", call, self._token(0)).partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=CALL_S)
        begun = time.monotonic()
        connection.request("POST", endpoint.path, body, fields)
        moments = streams.hear(b"list_changed", limit_s=EVENT_WAIT_S)
        answer = connection.getresponse()
        connection.close()
        if answer.status != 200:
            raise wrk.LoadError(f"the announcement was answered {answer.status}")
        return moments[0] - begun, moments[-1] - begun


def run(
    bench: RoundRunner,
    mint: Mint,
    streams: int,
    idle_s: int,
    report_progress: Callable[[str], None],
) -> list[ListenCost]:
    """Run one trial of each server, one after the other."""
    room_for(streams)
    # All of one tenant, because a change is told to the clients of one.
    tokens = [mint.token(TENANTS * number) for number in range(CALLERS)]
    costs = []
    for contestant in (SSE, GATEPOST):
        report_progress(f"{contestant.title}: {streams} streams ...")
        cost = ListenCost(contestant.name, streams)
        for at, step in enumerate((Trial.connections, Trial.streams)):
            # A server of its own for each: freed memory is used again and would hide what is new.
            with bench.started(contestant, at, FEW_TOOLS, RoundResults()) as (process, _):
                step(Trial(bench, contestant, process, tokens, idle_s), cost)
        costs.append(cost)
    return costs


def render(costs: list[ListenCost]) -> str:
    """Return the costs as a table."""
    rows = []
    for cost in costs:
        without = cost.p99_us["without"]
        rows.append(
            [
                cost.server,
                number(cost.bytes_per_connection / 1024),
                number(cost.bytes_per_stream / 1024),
                number(cost.open_s / cost.streams * 1e6, 0),
                number(cost.idle_cpu * 100, 2),
                number(cost.reached_all_s * 1000, 0),
                number(without / 1000, 2),
                *(number(cost.p99_us[state] / without, 2) for state in ("idle", "announced")),
            ]
        )
    head = [
        f"{costs[0].streams} streams",
        "kB a connection",
        "kB a stream",
        "µs to open",
        "% CPU idle",
        "ms until all heard",
        "p99 ms without",
        "ratio idle",
        "ratio announcing",
    ]
    return table(head, rows)


def save(costs: list[ListenCost], machine: dict[str, object], path: Path) -> None:
    """Write the costs as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "streams": [asdict(cost) for cost in costs]}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
