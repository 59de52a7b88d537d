"""`python -m bench --replicas`: what one tenant does over several replicas on one PostgreSQL."""

import asyncio
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from bench import contestants, gatepost, wrk
from bench.contestants import ROOT
from bench.issuer import BenchIssuer
from bench.probe import first_answer, line_printed
from bench.process import BenchProcess, Cores, usage
from bench.servers.settings import Settings
from bench.tokens import Mint
from bench.workload import PATH, WORKLOADS, BenchEndpoint
from gatepost.storage.sql.records import migrate
from tests.support.stores import Postgres

WARM = WORKLOADS[0]
NUMBERS = (1, 2, 4)
CONNECTIONS = 1
"""Of each replica, so that cores are not what limits four of them."""
DELAY_MS = 1.0
START_S = 60
ANYWHERE = Cores(None, None)
"""Several servers and the database share the machine."""
TARGET = 3.0
"""How often as many calls four replicas are to serve as one does."""


@dataclass(frozen=True)
class Measurement:
    """Where something is measured, how often and for how long, and who is told of each interval."""

    folder: Path
    issuer: BenchIssuer
    rounds: int
    seconds: int
    report_progress: Callable[[str], object] = print


@dataclass(frozen=True)
class ProcessesSample:
    """One interval of several processes that serve the same."""

    processes: int
    rate: float
    """Calls per second of all of them."""
    p99_us: float
    cpu_us: float
    """Their CPU time for each call, without that of their stores."""
    failed: int

    @classmethod
    def of(cls, processes: int, accounts: Sequence[wrk.Account], cpu_s: float) -> Self:
        """Sum up what the loads of one interval counted, and the CPU seconds that it took."""
        calls = sum(account.requests for account in accounts)
        return cls(
            processes=processes,
            rate=sum(account.rate for account in accounts),
            p99_us=max(account.p99_us for account in accounts),
            cpu_us=cpu_s / calls * 1e6 if calls else 0.0,
            failed=sum(account.failed + account.refused for account in accounts),
        )


class ReplicaSite:
    """A folder with the configuration of all replicas, and the token of one caller."""

    def __init__(
        self, folder: Path, issuer: BenchIssuer, *, further_files: Sequence[Path] = ()
    ) -> None:
        self.folder, self._further_files = folder, further_files
        self.port = gatepost.free_port()
        self._resource = f"http://127.0.0.1:{self.port}{PATH}"
        self.mint = Mint.create(issuer.url, self._resource)
        issuer.key_set = self.mint.key_set
        self._issuer, self.token = issuer, self.mint.token(0)
        (folder / "token").write_text(f"{self.token}\n", encoding="ascii")

    @contextmanager
    def served(
        self, number: int, database: str, shared: str = ""
    ) -> Iterator[list[tuple[int, BenchProcess]]]:
        """Run so many replicas on these stores; yields their ports and processes."""
        settings = Settings(
            self.port, self._issuer.url, self._issuer.jwks_uri, self._resource, 0, {}
        )
        config = gatepost.write_config(
            settings, self.folder, further_files=self._further_files, database=database
        )
        launch = contestants.serve(config)
        with ExitStack() as stack:
            served = []
            for at in range(number):
                port = self.port if at == 0 else gatepost.free_port()
                env = {
                    **launch.env,
                    "GATEPOST_LISTEN__PORT": str(port),
                    "GATEPOST_LISTEN__METRICS": f"127.0.0.1:{gatepost.free_port()}",
                    "GATEPOST_STORAGE__SHARED": shared,
                }
                process = self._started(f"replica-{number}-{at}", launch.command, env)
                stack.callback(process.stop)
                served.append((port, process))
            for port, process in served:
                line_printed(process, "Gatepost is ready at", limit_s=START_S)
                first_answer(process, self.endpoint(port), WARM, self.token, limit_s=START_S)
            yield served

    @contextmanager
    def delayed(self, url: str, delay_ms: float) -> Iterator[str]:
        """Yield the URL of a PostgreSQL whose answers take so much longer."""
        database_port = str(urlsplit(url).port)
        delayed_port = str(gatepost.free_port())
        command = [sys.executable, "-m", "bench.servers.delay"]
        command += [delayed_port, database_port, str(delay_ms)]
        process = self._started("delay", command, contestants.source_path(ROOT))
        try:
            yield url.replace(f":{database_port}/", f":{delayed_port}/")
        finally:
            process.stop()

    def endpoint(self, port: int) -> BenchEndpoint:
        """Return the endpoint of the replica at a port, with the name of the resource."""
        return BenchEndpoint(port, name=f"127.0.0.1:{self.port}")

    def _started(self, name: str, command: list[str], env: dict[str, str]) -> BenchProcess:
        log = self.folder / f"{name}.log"
        return BenchProcess.start(command, log=log, cores=ANYWHERE, env=env)

    def sample(
        self, served: Sequence[tuple[int, BenchProcess]], seconds: int, connections: int
    ) -> ProcessesSample:
        """Call all replicas for an interval, each over so many connections."""

        def called(port: int) -> wrk.Account:
            script = self.folder / f"calls-{port}.lua"
            script.write_text(wrk.script(WARM, self.endpoint(port), self.folder / "token"))
            url = f"http://127.0.0.1:{port}"
            return wrk.load(url, script, seconds=seconds, cores=ANYWHERE, connections=connections)

        before = sum(usage(process.pid).cpu_s for _, process in served)
        with ThreadPoolExecutor(len(served)) as threads:
            accounts = list(threads.map(called, [port for port, _ in served]))
        cpu_s = sum(usage(process.pid).cpu_s for _, process in served) - before
        return ProcessesSample.of(len(served), accounts, cpu_s)


def run(measurement: Measurement) -> list[ProcessesSample]:
    """Measure each number of replicas in turn, several times."""
    samples = []
    with Postgres.running(in_memory=False) as postgres:
        site = ReplicaSite(measurement.folder, measurement.issuer)
        for _ in range(measurement.rounds):
            for number in NUMBERS:
                with ExitStack() as stack:
                    url = stack.enter_context(postgres.database())
                    asyncio.run(migrate(url))
                    database = stack.enter_context(site.delayed(url, DELAY_MS))
                    served = stack.enter_context(site.served(number, database))
                    site.sample(served, 1, CONNECTIONS)
                    samples.append(site.sample(served, measurement.seconds, CONNECTIONS))
                measurement.report_progress(f"{number} replicas: {samples[-1].rate:6.0f} calls/s")
    return samples


def render(samples: Sequence[ProcessesSample]) -> str:
    """Return the medians as lines of text."""
    lines = [
        f"one tenant, PostgreSQL with {DELAY_MS:g} ms for each round trip, {os.cpu_count()} cores",
        f"{CONNECTIONS} connection for each replica",
        "",
    ]
    base = rate = 0.0
    for number in NUMBERS:
        of_number = [sample for sample in samples if sample.processes == number]
        rate = statistics.median(sample.rate for sample in of_number)
        base = base or rate
        cpu_us = statistics.median(sample.cpu_us for sample in of_number)
        p99_ms = statistics.median(sample.p99_us for sample in of_number) / 1000
        figures = f"{rate:.0f} calls/s ({rate / base:.1f} times), p99 {p99_ms:.1f} ms"
        lines.append(f"{number} replicas: {figures}, {cpu_us:.0f} µs CPU a call")
        if failed := sum(sample.failed for sample in of_number):
            lines.append(f"  {failed} calls failed")
    verdict = "met" if rate >= TARGET * base else f"missed by {TARGET - rate / base:.1f}"
    return "\n".join([*lines, f"target: {TARGET:g} times with {NUMBERS[-1]} replicas: {verdict}"])
