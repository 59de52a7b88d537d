"""`python -m bench --processes`: what a call costs over several processes on shared stores."""

import asyncio
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from bench.process import BenchProcess
from bench.replicas import Measurement, ProcessesSample, ReplicaSite
from gatepost.storage.sql.records import migrate
from tests.support.stores import Postgres, Valkey


@dataclass(frozen=True)
class ProcessGroup:
    """Processes that serve the same resource on the same stores."""

    processes: int
    connections: int
    """Of each process."""
    is_shared: bool = True
    """Whether the stores are PostgreSQL and Valkey, not a SQLite file."""

    @property
    def title(self) -> str:
        """Return the name of its line in the report."""
        stores = "PostgreSQL and Valkey" if self.is_shared else "SQLite"
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return f"{stores}, {processes} with {self.connections} connections"


SQLITE = ProcessGroup(1, 32, is_shared=False)
FOUR = ProcessGroup(4, 8)
GROUPS = (
    SQLITE,
    ProcessGroup(1, 8, is_shared=False),
    ProcessGroup(1, 32),
    ProcessGroup(1, 8),
    ProcessGroup(2, 16),
    FOUR,
)
TARGET = 1.5
"""How many times the CPU of a call on SQLite a call of four processes may take."""


@dataclass(frozen=True)
class ProcessGroupSample(ProcessesSample):
    """One interval of a group of processes."""

    group: ProcessGroup


def run(measurement: Measurement) -> list[ProcessGroupSample]:
    """Measure each group in turn, several times."""
    samples = []
    with Postgres.running() as postgres, Valkey.running() as valkey:
        site = ReplicaSite(measurement.folder, measurement.issuer)
        for _ in range(measurement.rounds):
            for group in GROUPS:
                with _served(site, group, postgres, valkey) as processes:
                    site.sample(processes, 1, group.connections)
                    sample = site.sample(processes, measurement.seconds, group.connections)
                samples.append(ProcessGroupSample(**asdict(sample), group=group))
                figure = f"{sample.cpu_us:.0f} µs CPU a call"
                measurement.report_progress(f"{group.title}: {figure}")
    return samples


@contextmanager
def _served(
    site: ReplicaSite, group: ProcessGroup, postgres: Postgres, valkey: Valkey
) -> Iterator[list[tuple[int, BenchProcess]]]:
    with postgres.database() as url:
        database, shared = "", ""
        if group.is_shared:
            database, shared = url, valkey.url()
            asyncio.run(migrate(url))
        with site.served(group.processes, database, shared) as processes:
            yield processes


def render(samples: Sequence[ProcessGroupSample]) -> str:
    """Return the medians as lines of text."""
    lines = [f"one caller, all controls on, {os.cpu_count()} cores", ""]
    costs = dict[ProcessGroup, float]()
    for group in GROUPS:
        own_samples = [sample for sample in samples if sample.group == group]
        costs[group] = statistics.median(sample.cpu_us for sample in own_samples)
        rate = statistics.median(sample.rate for sample in own_samples)
        p99_ms = statistics.median(sample.p99_us for sample in own_samples) / 1000
        times = costs[group] / costs[SQLITE]
        figures = f"{costs[group]:.0f} µs CPU a call ({times:.1f} times)"
        lines.append(f"{group.title}: {figures}, {rate:.0f} calls/s, p99 {p99_ms:.1f} ms")
        if failed := sum(sample.failed for sample in own_samples):
            lines.append(f"  {failed} calls failed")
    times = costs[FOUR] / costs[SQLITE]
    verdict = "met" if times <= TARGET else f"missed by {times - TARGET:.1f}"
    return "\n".join([*lines, f"target: {TARGET:g} times with four processes: {verdict}"])
