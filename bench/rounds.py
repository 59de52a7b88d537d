"""The run: every round starts all servers, then asks each of them in turn, A B C … A B C …"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

from bench import wrk
from bench.contestants import Contestant, Unavailable
from bench.issuer import BenchIssuer
from bench.probe import NotAnswering, ask, first_answer, line_printed
from bench.process import BenchProcess, Cores
from bench.servers.settings import Settings
from bench.tokens import Purse
from bench.workload import FEW_TOOLS, WORKLOADS, BenchEndpoint, Workload

START_S = 60
FSYNCS, WRITTEN_BYTES = 500, 16_384
"""How often the disk is waited for, after about as many bytes as the record of a call takes."""
WARM = WORKLOADS[0]
WARM_UP_S, MAX_WARM_UPS = 1, 10
DEFAULT_SIZES = {"call": 213, "list": 26_000, "refusal": 84, "document": 135_000, "progress": 1_500}


@dataclass(frozen=True)
class RoundSample:
    """One server under one workload in one round; microseconds and answers a second."""

    round: int
    server: str
    workload: str
    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float
    note: str = ""


@dataclass(frozen=True)
class Start:
    """How one server started in one round (seconds), and what it held (bytes)."""

    round: int
    server: str
    first_answer_s: float
    ready_s: float | None
    resident_idle: int
    resident: int = 0
    """After the round's last interval."""


@dataclass(frozen=True)
class Disk:
    """What an `fsync` took in one round, on the disk of the servers' databases (microseconds)."""

    round: int
    p50_us: float
    p99_us: float


@dataclass
class RoundResults:
    """Everything that was measured, and why what is missing is missing."""

    samples: list[RoundSample] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    disk: list[Disk] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: dict(DEFAULT_SIZES))
    """Body sizes of the floor's answers: Gatepost's own, once it has been asked."""


@dataclass(frozen=True)
class BenchPlan:
    """Which servers are asked what, for how long, how often."""

    contestants: Sequence[Contestant]
    workloads: Callable[[Contestant, int], Sequence[str]]
    """Names of a contestant's workloads in a round."""
    seconds: int
    rounds: int


@dataclass(frozen=True)
class RoundRunner:
    """What all rounds share."""

    folder: Path
    issuer: BenchIssuer
    resource: str
    purse: Purse
    cores: Cores
    ports: dict[str, int]

    def settings(self, name: str, tools: int, sizes: dict[str, int]) -> Settings:
        """Return the settings of one server."""
        return Settings(
            port=self.ports[name],
            issuer=self.issuer.url,
            jwks_uri=self.issuer.jwks_uri,
            resource=self.resource,
            tools=tools,
            sizes=sizes,
        )

    def endpoint(self, contestant: Contestant, workload: Workload) -> BenchEndpoint:
        """Return the endpoint where a server takes a workload's requests."""
        endpoint = contestant.endpoint(self.ports[contestant.name], workload)
        # All tokens are for one resource, so every Gatepost has to be that one.
        return (
            replace(endpoint, name=urlsplit(self.resource).netloc)
            if contestant.remembers
            else endpoint
        )

    def load(self, contestant: Contestant, workload: Workload, seconds: int) -> wrk.Account:
        """Send a workload to a server for one interval."""
        endpoint = self.endpoint(contestant, workload)
        path = self.folder / f"{workload.name}-{contestant.name}.lua"
        script = wrk.script(workload, endpoint, self.purse.files.get(workload.tokens))
        path.write_text(script, encoding="utf-8")
        return wrk.load(
            f"http://{endpoint.address}",
            path,
            seconds=seconds,
            cores=self.cores,
            connections=workload.connections,
        )

    @contextmanager
    def started(
        self, contestant: Contestant, number: int, tools: int, results: RoundResults
    ) -> Iterator[tuple[BenchProcess, Start]]:
        """Yield a running server that has answered once; raise Unavailable or NotAnswering."""
        folder = self.folder / f"{number}-{tools}-{contestant.name}"
        folder.mkdir()
        launch = contestant.launch(self.settings(contestant.name, tools, results.sizes), folder)
        begun = time.monotonic()
        process = BenchProcess.start(
            launch.command, log=folder / "output.log", cores=self.cores, env=launch.env
        )
        try:
            ready_s = None
            if contestant.ready_line:
                ready_s = line_printed(process, contestant.ready_line, limit_s=START_S) - begun
            endpoint, token = self.endpoint(contestant, WARM), self.purse.take(WARM.tokens)
            answered = first_answer(process, endpoint, WARM, token, limit_s=START_S) - begun
            resident = process.usage().resident
            yield process, Start(number, contestant.name, answered, ready_s, resident)
        finally:
            process.stop()
            # The access log of a full run is hundreds of megabytes.
            shutil.rmtree(folder, ignore_errors=True)

    def introduce(self, contestant: Contestant, workload: Workload) -> None:
        """Send every token of a workload once: what its first use costs is measured as `fresh`."""
        for _ in range(MAX_WARM_UPS):
            if self.load(contestant, workload, WARM_UP_S).reused:
                return
        raise NotAnswering(f"{workload.name}: not every token was sent in {MAX_WARM_UPS} s")

    def measure(
        self,
        number: int,
        contestant: Contestant,
        process: BenchProcess,
        workload: Workload,
        seconds: int,
    ) -> RoundSample:
        """Measure one interval, the server's CPU taken from outside around it."""
        answer = ask(
            self.endpoint(contestant, workload), workload, self.purse.take(workload.tokens)
        )
        problem = workload.misread(answer.status, answer.body)
        if problem:
            raise NotAnswering(f"{workload.name}: {problem}")
        if workload.tokens == "thousand" and contestant.remembers:
            self.introduce(contestant, workload)
        before = process.usage().cpu_s
        account = self.load(contestant, workload, seconds)
        used = process.usage().cpu_s - before
        return RoundSample(
            number,
            contestant.name,
            workload.name,
            account.rate,
            account.p50_us,
            account.p99_us,
            used / account.requests * 1e6 if account.requests else float("nan"),
            remark(account, workload, contestant),
        )


def remark(account: wrk.Account, workload: Workload, contestant: Contestant) -> str:
    """Return what a reader must know before believing a sample; empty when nothing."""
    expected = account.requests if workload.status != 200 else 0
    if not account.requests:
        return "no answer at all"
    if account.failed:
        return f"{account.failed} connections or answers failed"
    if account.refused != expected:
        return f"{account.refused} of {account.requests} answers had a status above 399"
    if workload.tokens == "fresh" and account.reused and contestant.remembers:
        return "the pool ran out and tokens were seen twice: mint more with --fresh"
    return ""


def learn_sizes(bench: RoundRunner, workloads: Sequence[Workload], results: RoundResults) -> None:
    """Let the floor answer as many bytes as Gatepost does."""
    endpoint = BenchEndpoint(bench.ports["gatepost"])
    for workload in workloads:
        # Every token but a refused one gets the same answer, and fresh ones must stay fresh.
        token = bench.purse.take("one" if workload.status == 200 else workload.tokens)
        answer = ask(endpoint, workload, token)
        if workload.misread(answer.status, answer.body) is None:
            results.sizes[workload.answer] = len(answer.body)


def run_round(bench: RoundRunner, plan: BenchPlan, number: int, results: RoundResults) -> None:
    """Run one round: the calls with few tools, then the list with many, on fresh servers."""
    for tools in sorted({workload.tools for workload in WORKLOADS}):
        workloads = [workload for workload in WORKLOADS if workload.tools == tools]
        names = {workload.name for workload in workloads}
        contestants = [
            each
            for each in plan.contestants
            if names & set(plan.workloads(each, number))
            and not {each.name, staged(each, tools)} & results.missing.keys()
        ]
        if contestants:
            with ExitStack() as stack:
                running = start_all(stack, bench, contestants, (number, tools), results)
                for workload in workloads:
                    ask_in_turn(bench, plan, workload, running, (number, results))
                if tools == FEW_TOOLS:
                    for process, start, _ in running:
                        results.starts.append(replace(start, resident=process.usage().resident))


def staged(contestant: Contestant, tools: int) -> str:
    """Return the key of `missing` for a server that does not start with that many tools."""
    return contestant.name if tools == FEW_TOOLS else f"{contestant.name} with {tools} tools"


Running = list[tuple[BenchProcess, Start, Contestant]]


def start_all(
    stack: ExitStack,
    bench: RoundRunner,
    contestants: Sequence[Contestant],
    stage: tuple[int, int],
    results: RoundResults,
) -> Running:
    """Start and warm up everyone who can be started; *stage* is round and number of tools."""
    running = []
    for contestant in contestants:
        try:
            process, start = stack.enter_context(bench.started(contestant, *stage, results))
        except (Unavailable, NotAnswering) as reason:
            results.missing[staged(contestant, stage[1])] = str(reason)
            continue
        if contestant.name == "gatepost":
            learn_sizes(
                bench, [workload for workload in WORKLOADS if workload.tools == stage[1]], results
            )
        bench.load(contestant, WARM, WARM_UP_S)
        running.append((process, start, contestant))
    return running


def ask_in_turn(
    bench: RoundRunner,
    plan: BenchPlan,
    workload: Workload,
    running: Running,
    account: tuple[int, RoundResults],
) -> None:
    """Measure one interval of a workload for each server that has it, one after another."""
    number, results = account
    for process, _, contestant in running:
        if workload.name not in plan.workloads(contestant, number):
            continue
        try:
            sample = bench.measure(number, contestant, process, workload, plan.seconds)
        except (NotAnswering, wrk.LoadError, OSError) as reason:
            results.missing[f"{contestant.name}, {workload.name}"] = str(reason)
            continue
        results.samples.append(sample)
        if workload.of_fsync is not None and contestant.name == "gatepost":
            results.disk.append(disk(bench.folder, number))


def disk(folder: Path, number: int) -> Disk:
    """Append to a file and wait for the disk, as often as shows what is usual."""
    path, took = folder / "disk", list[float]()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(FSYNCS):
            os.write(handle, bytes(WRITTEN_BYTES))
            began = time.perf_counter()
            os.fsync(handle)
            took.append((time.perf_counter() - began) * 1e6)
    finally:
        os.close(handle)
        path.unlink()
    return Disk(number, median(took), quantiles(took, n=100)[98])


def run(bench: RoundRunner, plan: BenchPlan, tell: Callable[[str], None]) -> RoundResults:
    """Run all rounds; *tell* receives the progress."""
    results = RoundResults()
    for number in range(1, plan.rounds + 1):
        tell(f"round {number} of {plan.rounds} ...")
        run_round(bench, plan, number, results)
    return results
