"""`python -m bench`: one interleaved run, tables on the terminal, every sample in a file."""

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from bench import (
    checkpoints,
    contestants,
    flat,
    gateway,
    hotspots,
    interference,
    issuer,
    listen,
    processes,
    redaction,
    replicas,
    report,
    requests,
    rounds,
    sizes,
    soak,
    tokens,
    walk,
    workers,
    workload,
    wrk,
)
from bench.contestants import Contestant
from bench.gatepost import free_port
from bench.machine import this_machine
from bench.process import Cores
from bench.rounds import BenchPlan, RoundRunner

Sample = TypeVar("Sample")

RESULTS = Path(__file__).resolve().parent / "results"
FRESH_A_SECOND = 12_000
"""More never-seen tokens than a core can check in a second."""


def arguments(values: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than a minute, more noise")
    parser.add_argument("--rounds", type=int, help="how often everything is measured (3)")
    parser.add_argument("--seconds", type=int, help="length of one interval (3)")
    parser.add_argument(
        "--only", action="append", default=[], help="a server or a workload; repeat"
    )
    parser.add_argument("--fresh", type=int, help="size of the pool of never-seen tokens")
    parser.add_argument(
        "--listen", action="store_true", help="what open streams cost, instead of calls"
    )
    parser.add_argument(
        "--gateway", action="store_true", help="what a call of an upstream costs, beside gateways"
    )
    parser.add_argument("--streams", type=int, default=10_000, help="how many of them (10000)")
    parser.add_argument(
        "--redaction", action="store_true", help="what searching answers for secrets costs"
    )
    parser.add_argument(
        "--soak", type=float, metavar="SECONDS", help="what is left after so long of mixed traffic"
    )
    parser.add_argument(
        "--checkpoints", action="store_true", help="what signing the chains of many tenants costs"
    )
    parser.add_argument("--tenants", type=int, default=10_000, help="how many of them (10000)")
    parser.add_argument(
        "--replicas", action="store_true", help="what one tenant does over several replicas"
    )
    parser.add_argument(
        "--processes", action="store_true", help="what a call costs over PostgreSQL and Valkey"
    )
    parser.add_argument("--workers", action="store_true", help="what two workers do, beside one")
    parser.add_argument(
        "--interference", action="store_true", help="what a call costs beside heavy ones of others"
    )
    parser.add_argument(
        "--flat", action="store_true", help="what a call costs with more tenants, tools, records"
    )
    parser.add_argument("--full", action="store_true", help="with --flat: the largest sizes too")
    parser.add_argument("--sizes", action="store_true", help="what documents of each size cost")
    parser.add_argument("--requests", action="store_true", help="what other kinds of requests cost")
    parser.add_argument("--profile", action="store_true", help="where Gatepost's time goes")
    parser.add_argument(
        "--walk", action="store_true", help="how many files and functions one call goes through"
    )
    parser.add_argument("--listed", action="store_true", help="with --walk: name them")
    return parser.parse_args(values)


def selected(options: argparse.Namespace) -> tuple[tuple[Contestant, ...], tuple[str, ...]]:
    """Return the servers and workloads of this run; raise ValueError for unknown names."""
    names = {each.name for each in workload.WORKLOADS}
    workloads = [name for name in options.only if name in names]
    servers = [name for name in options.only if name not in names]
    everyone = [each.name for each in contestants.CONTESTANTS]
    return (
        contestants.by_name(servers or everyone),
        tuple(each.name for each in workload.by_name(workloads or sorted(names))),
    )


def servers_to_profile(options: argparse.Namespace) -> list[str]:
    """Return the names of the servers to profile: those given, else Gatepost."""
    names = [each.name for each in contestants.CONTESTANTS]
    return [name for name in options.only if name in names] or ["gatepost"]


def print_line(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def free_ports(names: Sequence[str]) -> dict[str, int]:
    """Return an unused loopback port for each name, all different."""
    sockets = [socket.socket() for _ in names]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in zip(names, sockets, strict=True)}
    finally:
        for each in sockets:
            each.close()


def plan(options: argparse.Namespace) -> BenchPlan:
    """Return the plan of what the command line asks for."""
    servers, names = selected(options)

    def workloads(contestant: Contestant, number: int) -> tuple[str, ...]:
        offered = contestant.workloads
        if options.quick:
            # The peers once, and only the plain call: they are far from any target.
            offered = contestant.quick if number == 1 else contestant.again
        return tuple(name for name in offered if name in names)

    quick = 1 if options.quick else 3
    return BenchPlan(
        servers, workloads, options.seconds or quick, options.rounds or min(quick + 1, 3)
    )


def result_path(ending: str) -> Path:
    """Return the path of a new file of results, named by the time."""
    return RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}{ending}"


def execute(options: argparse.Namespace, bench_plan: BenchPlan) -> int:
    """Mint, run, print, save."""
    cores = Cores.choose()
    if cores.note:
        print(cores.note)
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"load average {busy:.1f}: this machine is busy; trust ratios, not microseconds")
    everyone = (*contestants.CONTESTANTS, listen.SSE, *gateway.gateways(""))
    ports = free_ports(sorted({each.name for each in everyone}))
    resource = f"http://127.0.0.1:{ports['gatepost']}{workload.PATH}"
    workload_names = {
        name for each in bench_plan.contestants for name in bench_plan.workloads(each, 1)
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as folder_name, issuer.running() as origin:
        folder = Path(folder_name)
        mint = tokens.Mint.create(origin.url, resource)
        origin.key_set = mint.key_set
        calls_only = options.listen or options.gateway or "fresh" not in workload_names
        fresh_tokens = 0 if calls_only else options.fresh or FRESH_A_SECOND * bench_plan.seconds
        print(f"minting {fresh_tokens + 1001} tokens ...", flush=True)
        token_pools = tokens.TokenPools.fill(mint, folder, fresh_tokens=fresh_tokens)
        # Not before the tokens are minted, which every core may help with.
        cores.pin_load(0)
        bench = RoundRunner(folder, origin, resource, token_pools, cores, ports)
        if options.listen:
            return listened(options, bench, mint)
        if options.gateway:
            return proxied(options, bench)
        if options.profile:
            return profiled(options, bench, sorted(workload_names), max(bench_plan.seconds, 5))
        results = rounds.run(bench, bench_plan, print_line)
    print(f"\n{report.render(results, bench_plan.contestants)}\n")
    path = result_path(".json")
    report.save(results, this_machine(), path)
    print(f"Every sample: {shown_path(path)}")
    return 0


def profiled(
    options: argparse.Namespace, bench: RoundRunner, workloads: Sequence[str], seconds: int
) -> int:
    """Look at each server under each workload, print, save."""
    profiles = []
    for load in workload.by_name(workloads):
        for server in servers_to_profile(options):
            profiles.append(hotspots.profile(bench, server, load, seconds))
            print(profiles[-1], end="\n\n", flush=True)
    return save_profiles(profiles)


def save_profiles(profiles: Sequence[str]) -> int:
    """Write profiles, with the machine that they are of."""
    path = result_path("-profile.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = json.dumps(this_machine(), indent=1)
    path.write_text("\n\n".join([*profiles, machine, ""]), encoding="utf-8")
    print(f"Every profile: {shown_path(path)}")
    return 0


def listened(options: argparse.Namespace, bench: RoundRunner, mint: tokens.Mint) -> int:
    """Open the streams, print, save."""
    idle_s = 5 if options.quick else 20
    costs = listen.run(bench, mint, options.streams, idle_s, print_line)
    print(f"\n{listen.render(costs)}\n")
    path = result_path("-listen.json")
    listen.save(costs, this_machine(), path)
    print(f"Every figure: {shown_path(path)}")
    return 0


def proxied(options: argparse.Namespace, bench: RoundRunner) -> int:
    """Call upstreams through each gateway, print, save; with --profile only look at Gatepost."""
    seconds = options.seconds or (1 if options.quick else 3)
    if options.profile:
        servers = [name for name in options.only if name] or ["stripped"]
        profile = gateway.profile(bench, servers, max(seconds, 5))
        print(profile)
        return save_profiles([profile])
    number = options.rounds or (1 if options.quick else 3)
    costs = gateway.run(bench, number, seconds, print_line, options.only)
    print(f"\n{gateway.render(costs)}\n")
    path = result_path("-gateway.json")
    gateway.save(costs, this_machine(), path)
    print(f"Every sample: {shown_path(path)}")
    return 0


def soaked(seconds: float) -> int:
    """Run, print; exit status 1 when something is left."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder_name,
        issuer.running() as origin,
        soak.served(Path(folder_name), origin, free_port()) as (process, mint),
    ):
        soaking = asyncio.run(soak.run(process, mint, seconds, print_line))
    print(f"\n{soak.render(soaking)}")
    return 1 if soaking.leaks else 0


def signed(options: argparse.Namespace) -> int:
    """Sign, stop, print."""
    cores = Cores.choose()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder_name, issuer.running() as origin:
        cores.pin_load(0)
        site = checkpoints.CheckpointSite(Path(folder_name), origin, free_port(), cores)
        costs = checkpoints.run(site, options.tenants, print_line)
    print(f"\n{checkpoints.render(costs)}")
    return 0


def several(
    name: str,
    run: Callable[[replicas.Measurement], list[Sample]],
    render: Callable[[Sequence[Sample]], str],
    seconds: int,
    options: argparse.Namespace,
) -> int:
    """Measure several times, print, save; *seconds* unless the options say otherwise."""
    number = options.rounds or (1 if options.quick else 3)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder_name, issuer.running() as origin:
        measurement = replicas.Measurement(
            Path(folder_name), origin, number, options.seconds or seconds, print_line
        )
        samples = run(measurement)
    print(f"\n{render(samples)}\n")
    path = result_path(f"-{name}.json")
    report.save_samples(samples, this_machine(), path)
    print(f"Every sample: {shown_path(path)}")
    return 0


def flattened(options: argparse.Namespace) -> int:
    """Call servers of growing sizes, print, save."""
    steps = flat.steps(full=options.full, only=options.only)
    number, seconds = options.rounds or (1 if options.quick else 3), options.seconds or 3
    with tempfile.TemporaryDirectory(prefix="bench-") as folder_name, issuer.running() as origin:
        site = flat.FlatSite(Path(folder_name), origin, Cores.choose())
        results = flat.run(site, steps, number, seconds, print_line)
    print(f"\n{flat.render(results)}\n")
    path = result_path("-flat.json")
    flat.save(results, this_machine(), path)
    print(f"Every sample: {shown_path(path)}")
    return 0


def redacted(options: argparse.Namespace) -> int:
    """Search, print, save; needs no server and no load."""
    costs, makings = redaction.run(options.rounds or (3 if options.quick else 9))
    print("\nms of CPU for each megabyte (times what encoding it costs)\n")
    print(f"{redaction.render(costs, makings)}\n")
    path = result_path("-redaction.json")
    redaction.save(costs, makings, this_machine(), path)
    print(f"Every figure: {shown_path(path)}")
    return 0


MEASUREMENTS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "checkpoints": signed,
    "replicas": partial(several, "replicas", replicas.run, replicas.render, 5),
    "processes": partial(several, "processes", processes.run, processes.render, 3),
    "workers": partial(several, "workers", workers.run, workers.render, 3),
    "interference": partial(several, "interference", interference.run, interference.render, 3),
    "flat": flattened,
    "sizes": partial(several, "sizes", sizes.run, sizes.render, 2),
    "requests": partial(several, "requests", requests.run, requests.render, 2),
}
"""The measurements that have an option of their own and need a load."""


def shown_path(path: Path) -> Path:
    """Return a path relative to the working directory, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main(values: Sequence[str] | None = None) -> int:
    """Exit status: 0 measured, 1 something leaks, 2 cannot be measured like this."""
    options = arguments(values)
    if options.redaction:
        return redacted(options)
    if options.soak:
        return soaked(options.soak)
    if options.walk:
        print(walk.render(walk.run(), with_functions=options.listed))
        return 0
    try:
        wrk.program()
        for name, measure in MEASUREMENTS.items():
            if getattr(options, name):
                return measure(options)
        bench_plan = plan(options)
    except (wrk.LoadError, ValueError) as reason:
        print(reason, file=sys.stderr)
        return 2
    if find_spec("uvloop") is None:
        print("uvloop is not installed: run this in the development environment", file=sys.stderr)
        return 2
    return execute(options, bench_plan)


if __name__ == "__main__":
    sys.exit(main())
