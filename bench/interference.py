"""`python -m bench --interference`: what a call costs beside heavy calls of another caller."""

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from bench import wrk
from bench.probe import first_answer
from bench.process import BenchProcess
from bench.replicas import ANYWHERE, START_S, Measurement, ReplicaSite
from bench.report import number, table
from bench.sizes import KIB, prose, rows
from bench.workload import WORKLOADS, Workload

TOOLS = '''\
"""Tools that keep a server busy."""

import time

from gatepost import CallContext, Pack

pack = Pack("heavy")


@pack.tool(read_only=True)
def compute(ctx: CallContext, text: str) -> str:
    """Compute for a third of a second, in a thread."""
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        sum(number * number for number in range(100))
    return text


@pack.tool(read_only=True)
async def repeat(ctx: CallContext, text: str) -> str:
    """Give a document back."""
    return text
'''
LIGHT = replace(WORKLOADS[0], connections=1)


def heavy(title: str, tool: str, text: str, connections: int) -> Workload:
    """Return calls of one tool with one text."""
    return Workload(
        tool, title, "tools/call", "one", other_tool=tool, text=text, connections=connections
    )


HEAVY: tuple[Workload | None, ...] = (
    None,
    heavy("1 tool computes", "compute", "a", 1),
    heavy("4 tools compute", "compute", "a", 4),
    heavy("64 KiB of text", "repeat", prose(64 * KIB), 1),
    heavy("900 KiB of text", "repeat", prose(900 * KIB), 1),
    heavy("900 KiB of text, 4 at once", "repeat", prose(900 * KIB), 4),
    heavy("64 KiB of JSON in a text", "repeat", rows(64 * KIB), 1),
    heavy("900 KiB of JSON in a text", "repeat", rows(900 * KIB), 1),
)
"""What another caller sends meanwhile."""


@dataclass(frozen=True)
class InterferenceSample:
    """One interval of light calls over one connection; times in microseconds."""

    beside: str
    p50_us: float
    p99_us: float
    heavy_rate: float
    """The heavy calls a second."""
    failed: int


class TwoCallers:
    """A caller of light calls, and another one of heavy calls."""

    def __init__(self, site: ReplicaSite) -> None:
        self._folder, self._endpoint = site.folder, site.endpoint(site.port)
        self._tokens = site.token, site.mint.token(1)

    def begin(self, process: BenchProcess) -> None:
        """Send each heavy call once."""
        for load in filter(None, HEAVY):
            first_answer(process, self._endpoint, load, self._tokens[0], limit_s=START_S)

    def sample(self, beside: Workload | None, seconds: int) -> InterferenceSample:
        """Send light calls for an interval, and heavy ones of another caller beside them."""
        # Tools of the last heavy calls may compute for another second.
        self._load(LIGHT, self._tokens[0], 2)
        with ThreadPoolExecutor(1) as threads:
            # A second longer, so that the light calls are never alone.
            future = beside and threads.submit(self._load, beside, self._tokens[1], seconds + 1)
            account = self._load(LIGHT, self._tokens[0], seconds)
            others = future.result() if future else None
        failed = sum(each.failed + each.refused for each in (account, others) if each)
        return InterferenceSample(
            beside.title if beside else "nothing",
            account.p50_us,
            account.p99_us,
            others.rate if others else 0.0,
            failed,
        )

    def _load(self, load: Workload, token: str, seconds: int) -> wrk.Account:
        tokens, script = self._folder / f"{load.name}.token", self._folder / f"{load.name}.lua"
        tokens.write_text(f"{token}\n", encoding="ascii")
        script.write_text(wrk.script(load, self._endpoint, tokens), encoding="utf-8")
        url, connections = f"http://{self._endpoint.address}", load.connections
        return wrk.load(url, script, seconds=seconds, cores=ANYWHERE, connections=connections)


def run(measurement: Measurement) -> list[InterferenceSample]:
    """Measure each kind of heavy calls in turn, several times."""
    samples = []
    tools = measurement.folder / "heavy.py"
    tools.write_text(TOOLS, encoding="utf-8")
    site = ReplicaSite(measurement.folder, measurement.issuer, further_files=[tools])
    with site.served(1, database="") as [(_, process)]:
        callers = TwoCallers(site)
        callers.begin(process)
        for _ in range(measurement.rounds):
            for load in HEAVY:
                sample = callers.sample(load, measurement.seconds)
                samples.append(sample)
                measurement.report_progress(f"{sample.beside}: p50 {sample.p50_us / 1000:.1f} ms")
    return samples


def render(samples: Sequence[InterferenceSample]) -> str:
    """Return the medians of the rounds as a table."""
    lines = []
    for beside in dict.fromkeys(sample.beside for sample in samples):
        own_samples = [sample for sample in samples if sample.beside == beside]
        p50_ms = statistics.median(sample.p50_us for sample in own_samples) / 1000
        p99_ms = statistics.median(sample.p99_us for sample in own_samples) / 1000
        rate = statistics.median(sample.heavy_rate for sample in own_samples)
        failed = str(sum(sample.failed for sample in own_samples))
        lines.append((beside, number(p50_ms), number(p99_ms), number(rate), failed))
    titles = ("one call after another, beside", "p50 ms", "p99 ms", "heavy calls/s", "failed")
    return table(titles, lines)
