"""`python -m bench --checkpoints`: what signing many chains costs calls and a stop."""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import contestants, gatepost, wrk
from bench.issuer import BenchIssuer
from bench.probe import first_answer, line_printed
from bench.process import BenchProcess, Cores
from bench.servers.settings import Settings
from bench.tokens import Mint
from bench.workload import PATH, WORKLOADS, BenchEndpoint
from gatepost.audit.batches import WriteAttempt
from gatepost.audit.record import RecordBody
from gatepost.audit.record_builder import new_record
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.backends import open_records

WARM = WORKLOADS[0]
QUIET_S = 10
"""How long calls are measured before the first checkpoint is due."""
SECONDS = 2
"""Length of one interval."""
START_S = 60
SIGNED_S = 300
STOP_S = 120
BATCH = 500
AUDIT = """
[audit]
checkpoint_s = {after_s}
checkpoint_records = 1_000_000
"""


@dataclass(frozen=True)
class Interval:
    """Calls of one interval, and the checkpoints signed meanwhile."""

    rate: float
    p99_us: float
    signed: int


@dataclass(frozen=True)
class Costs:
    """What a run found."""

    tenants: int
    intervals: list[Interval]
    signing_s: float
    idle_stop_s: float
    """A stop with nothing left to sign."""
    stop_s: float
    """A stop with every tenant's chain unsigned."""
    signed_at_stop: int


async def grow(folder: Path, tenants: int) -> None:
    """Add a record that no checkpoint covers to the chain of each tenant."""
    records = await open_records(f"sqlite:///{folder / 'gatepost.db'}")
    audit_store = records.open_audit(None)  # written into the tables at once
    keyring = KeyRing.load(f"file:{folder / 'keyring.json'}")
    names = [f"grown-{number:06}" for number in range(tenants)]
    now = int(time.time() * 1000)
    for first in range(0, tenants, BATCH):
        batch = {
            (name, 1): [
                new_record(RecordBody(at=now, kind="call", tenant=name, outcome="success"), {})
            ]
            for name in names[first : first + BATCH]
        }
        await audit_store.write(batch, WriteAttempt(keyring).link)
    await records.aclose()


class CheckpointSite:
    """Where the servers of a run live, one after the other, on one database."""

    def __init__(self, folder: Path, issuer: BenchIssuer, port: int, cores: Cores) -> None:
        self.folder, self.cores, self.endpoint = folder, cores, BenchEndpoint(port)
        resource = f"http://127.0.0.1:{port}{PATH}"
        mint = Mint.create(issuer.url, resource)
        issuer.key_set = mint.key_set
        self._settings = Settings(port, issuer.url, issuer.jwks_uri, resource, tools=0, sizes={})
        self._token = mint.token(0)
        (folder / "token").write_text(f"{self._token}\n", encoding="ascii")
        script = wrk.script(WARM, self.endpoint, folder / "token")
        (folder / "calls.lua").write_text(script, encoding="utf-8")
        self.configure(after_s=QUIET_S)

    def configure(self, *, after_s: int) -> None:
        """Write the configuration; checkpoints are signed so long after a start."""
        self._config = gatepost.write_config(
            self._settings, self.folder, controls=gatepost.ON + AUDIT.format(after_s=after_s)
        )

    @contextmanager
    def served(self) -> Iterator[BenchProcess]:
        """Run a server that has answered a call."""
        launch = contestants.serve(self._config)
        log = self.folder / f"output-{time.monotonic_ns()}.log"
        process = BenchProcess.start(launch.command, log=log, cores=self.cores, env=launch.env)
        try:
            line_printed(process, "Gatepost is ready at", limit_s=START_S)
            first_answer(process, self.endpoint, WARM, self._token, limit_s=START_S)
            yield process
        finally:
            process.stop()

    def interval(self, process: BenchProcess) -> Interval:
        """Send calls for an interval."""
        before = signed_checkpoints(process)
        url, script = f"http://{self.endpoint.address}", self.folder / "calls.lua"
        account = wrk.load(url, script, seconds=SECONDS, cores=self.cores)
        return Interval(account.rate, account.p99_us, signed_checkpoints(process) - before)


def signed_checkpoints(process: BenchProcess) -> int:
    """Return how many checkpoints a server has logged."""
    return process.output.count('"audit_checkpoint"')


def stop_duration_s(process: BenchProcess) -> float:
    """Stop a server and return how many seconds it took to end."""
    began = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    while process.running and time.monotonic() < began + STOP_S:
        time.sleep(0.01)
    return time.monotonic() - began


def run(
    site: CheckpointSite, tenants: int, report_progress: Callable[[str], object] = print
) -> Costs:
    """Measure calls before, while and after all chains are signed, and then the two stops."""
    asyncio.run(grow(site.folder, tenants))
    intervals: list[Interval] = []
    with site.served() as process:
        until = time.monotonic() + SIGNED_S
        while signed_checkpoints(process) < tenants and time.monotonic() < until:
            intervals.append(site.interval(process))
            report_progress(
                f"{intervals[-1].rate:6.0f} calls/s, {intervals[-1].signed} checkpoints"
            )
        idle_stop_s = stop_duration_s(process)
    asyncio.run(grow(site.folder, tenants))
    site.configure(after_s=3600)
    with site.served() as process:
        stop_s = stop_duration_s(process)
        at_stop = signed_checkpoints(process)
    signing_s = SECONDS * sum(1 for interval in intervals if interval.signed)
    return Costs(tenants, intervals, signing_s, idle_stop_s, stop_s, at_stop)


def render(costs: Costs) -> str:
    """Return the figures as lines of text."""
    quiet = [interval for interval in costs.intervals if not interval.signed]
    busy = [interval for interval in costs.intervals if interval.signed]
    lines = [f"{costs.tenants} tenants, SQLite, {wrk.CONNECTIONS} connections", ""]
    for name, intervals in (("nothing is signed", quiet), ("chains are signed", busy)):
        if intervals:
            rate = statistics.median(interval.rate for interval in intervals)
            p99_ms = statistics.median(interval.p99_us for interval in intervals) / 1000
            lowest = min(interval.rate for interval in intervals)
            lines.append(
                f"while {name}: {rate:.0f} calls/s (lowest {lowest:.0f}), p99 {p99_ms:.1f} ms"
            )
    lines += [
        f"all chains were signed within {costs.signing_s:.0f} s",
        f"a stop with nothing to sign took {costs.idle_stop_s:.1f} s",
        f"a stop with every chain unsigned took {costs.stop_s:.1f} s and signed "
        f"{costs.signed_at_stop}",
    ]
    return "\n".join(lines)
