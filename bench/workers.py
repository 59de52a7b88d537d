"""`python -m bench --workers`: what two workers of one machine do at half load, beside one."""

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import contestants, gatepost, wrk
from bench.issuer import BenchIssuer
from bench.probe import first_answer, line_printed
from bench.process import BenchProcess
from bench.replicas import ANYWHERE, START_S, Measurement, ProcessesSample
from bench.servers.settings import Settings
from bench.tokens import Mint
from bench.workload import PATH, WORKLOADS, BenchEndpoint
from tests.support.stores import Valkey

WARM = WORKLOADS[0]
NUMBERS = (1, 2)
CONNECTIONS, PAUSE_MS = 32, 6
"""
The connections for each worker, and the pause of each between two calls. They keep half a core
busy, so that two workers and the load have room on two cores.
"""
TARGET = 1.8
"""How often as many calls two workers are to serve as one does."""


class WorkerSite:
    """A folder with the configuration of the server, and the token of one caller."""

    def __init__(self, folder: Path, issuer: BenchIssuer, valkey: Valkey) -> None:
        self.folder, self._valkey = folder, valkey
        self._endpoint = BenchEndpoint(gatepost.free_port())
        resource = f"http://127.0.0.1:{self._endpoint.port}{PATH}"
        mint = Mint.create(issuer.url, resource)
        issuer.key_set = mint.key_set
        self._token = mint.token(0)
        (folder / "token").write_text(f"{self._token}\n", encoding="ascii")
        self._settings = Settings(self._endpoint.port, issuer.url, issuer.jwks_uri, resource, 0, {})

    @contextmanager
    def served(self, workers: int, number: int) -> Iterator[BenchProcess]:
        """Run so many workers on a new SQLite file, which share limits through Valkey."""
        folder = self.folder / f"{number}-{workers}"
        folder.mkdir()
        launch = contestants.serve(gatepost.write_config(self._settings, folder))
        env = {
            **launch.env,
            "GATEPOST_LISTEN__WORKERS": str(workers),
            "GATEPOST_STORAGE__SHARED": self._valkey.url(),
        }
        process = BenchProcess.start(
            launch.command, log=folder / "output.log", cores=ANYWHERE, env=env
        )
        try:
            line_printed(process, "Gatepost is ready at", limit_s=START_S)
            first_answer(process, self._endpoint, WARM, self._token, limit_s=START_S)
            yield process
        finally:
            process.stop()

    def sample(self, process: BenchProcess, workers: int, seconds: int) -> ProcessesSample:
        """Call the workers for an interval."""
        script = self.folder / "calls.lua"
        calls = wrk.script(WARM, self._endpoint, self.folder / "token")
        script.write_text(f"{calls}\nfunction delay() return {PAUSE_MS} end\n")
        url, connections = f"http://{self._endpoint.address}", CONNECTIONS * workers
        before = process.usage().cpu_s
        account = wrk.load(url, script, seconds=seconds, cores=ANYWHERE, connections=connections)
        cpu_s = process.usage().cpu_s - before
        return ProcessesSample.of(workers, [account], cpu_s)


def run(measurement: Measurement) -> list[ProcessesSample]:
    """Measure one and two workers in turn, several times."""
    samples = []
    with Valkey.running() as valkey:
        site = WorkerSite(measurement.folder, measurement.issuer, valkey)
        for number in range(measurement.rounds):
            for workers in NUMBERS:
                with site.served(workers, number) as process:
                    site.sample(process, workers, 1)
                    samples.append(site.sample(process, workers, measurement.seconds))
                measurement.report_progress(f"workers: {workers}, {samples[-1].rate:6.0f} calls/s")
    return samples


def render(samples: Sequence[ProcessesSample]) -> str:
    """Return the medians as lines of text."""
    lines = [
        f"SQLite and Valkey, {os.cpu_count()} cores, all controls on",
        f"for each worker {CONNECTIONS} connections that pause {PAUSE_MS} ms after each call",
        "",
    ]
    rates, costs = dict[int, float](), dict[int, float]()
    for workers in NUMBERS:
        of_number = [sample for sample in samples if sample.processes == workers]
        rates[workers] = statistics.median(sample.rate for sample in of_number)
        costs[workers] = statistics.median(sample.cpu_us for sample in of_number)
        p99_ms = statistics.median(sample.p99_us for sample in of_number) / 1000
        figures = f"{rates[workers]:.0f} calls/s, p99 {p99_ms:.1f} ms"
        lines.append(f"workers: {workers}, {figures}, {costs[workers]:.0f} µs CPU a call")
        if failed := sum(sample.failed for sample in of_number):
            lines.append(f"  {failed} calls failed")
    single, double = NUMBERS
    # Two cores that are only half busy must not hide that each call costs more with two workers.
    by_rate = rates[double] / rates[single]
    by_cpu = double * costs[single] / costs[double]
    times = min(by_rate, by_cpu)
    verdict = "met" if times >= TARGET else f"missed by {TARGET - times:.2f}"
    lines.append(
        f"two workers: {by_rate:.2f} times the calls, "
        f"and {by_cpu:.2f} times as many for the CPU time of two cores"
    )
    return "\n".join([*lines, f"target: {TARGET:g} times by both: {verdict}"])
