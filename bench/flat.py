"""`python -m bench --flat`: what a call costs with more tenants, tools, tokens and records."""

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench import contestants, gatepost, wrk
from bench.gatepost import DEMO_TOOLS, free_port
from bench.history import PageCost, fill, pages
from bench.issuer import BenchIssuer
from bench.probe import first_answer, line_printed
from bench.process import BenchProcess, Cores, usage
from bench.servers.settings import Settings
from bench.tokens import Mint
from bench.workload import PATH, WORKLOADS, BenchEndpoint
from gatepost.config.settings import Config

WARM = WORKLOADS[0]
START_S = 120
WARM_UP_S = 300
"""How long all tokens may take to be sent once."""
FLOOR = "floor"

SIZES: Mapping[str, tuple[int, ...]] = {
    "tenants": (1, 100, 1_000),
    "tools": (DEMO_TOOLS, 100, 1_000),
    "tokens": (1, 100, 10_000),
    "records": (1_000, 100_000),
}
"""What grows, and its sizes in a usual run; the first is what the others are compared with."""
FULL: Mapping[str, int] = {"tenants": 10_000, "tokens": 100_000, "records": 10_000_000}
"""One more size for each in a full run."""
TARGET = 1.10
"""How many times the cost at the first size a call may cost at the others."""
OF_TENANTS = 1.30
"""The same for tenants that each have a token of their own, a wider bound."""


@dataclass(frozen=True)
class FlatStep:
    """One server of a run: what grows, and how far."""

    name: str
    size: int

    @property
    def is_floor(self) -> bool:
        """Return whether this is the bare server."""
        return self.name == FLOOR

    @property
    def tenants(self) -> int:
        """Return the number of tenants whose callers take turns."""
        return self.size if self.name == "tenants" else 1

    @property
    def tokens(self) -> int:
        """Return the number of tokens that are sent in turn."""
        return self.size if self.name in {"tenants", "tokens"} else 1

    @property
    def cached_tokens(self) -> int:
        """Return the server's `limits.cached_tokens`: the default, or the number of sent tokens."""
        return 0 if self.is_floor else max(Config(resource="").limits.cached_tokens, self.tokens)

    @property
    def tools(self) -> int:
        """Return the number of tools."""
        return self.size if self.name == "tools" else DEMO_TOOLS

    @property
    def records(self) -> int:
        """Return the number of audit records of the tenant before the first call."""
        return self.size if self.name == "records" else 0


@dataclass(frozen=True)
class FlatSample:
    """One interval of one server."""

    step: FlatStep
    cpu_us: float
    """CPU time of the server for each call."""
    rate: float
    p99_us: float
    failed: int
    resident: int
    """Resident bytes of the server after the interval."""


@dataclass(frozen=True)
class FlatResults:
    """What a run found."""

    samples: list[FlatSample]
    pages: list[PageCost]


def steps(*, full: bool, only: Sequence[str] = ()) -> dict[str, list[FlatStep]]:
    """Return the steps of each row; raise ValueError for an unknown name."""
    if unknown := set(only) - SIZES.keys():
        raise ValueError(f"unknown {sorted(unknown)[0]!r}; there are {', '.join(SIZES)}")
    return {
        name: [
            FlatStep(name, size)
            for size in (*sizes, *((FULL[name],) if full and name in FULL else ()))
        ]
        for name, sizes in SIZES.items()
        if name in (only or SIZES)
    }


class FlatSite:
    """Where the servers of a run live, each in a folder of its own."""

    def __init__(self, folder: Path, issuer: BenchIssuer, cores: Cores) -> None:
        self.folder, self.cores, self._issuer = folder, cores, issuer
        # All servers are one resource, so that a token is minted once.
        self._port = free_port()
        self._resource = f"http://127.0.0.1:{self._port}{PATH}"
        self._mint = Mint.create(issuer.url, self._resource, fast=True)
        issuer.key_set = self._mint.key_set

    @contextmanager
    def served(self, step: FlatStep) -> Iterator["Served"]:
        """Run the server of a step that has answered a call with each token."""
        folder = self.folder / f"{step.name}-{step.size}"
        folder.mkdir()
        tokens = self._tokens(step, folder)
        port, process = self._started(step, folder)
        try:
            if not step.is_floor:
                line_printed(process, "Gatepost is ready at", limit_s=START_S)
            endpoint = BenchEndpoint(
                port, "/call" if step.is_floor else PATH, f"127.0.0.1:{self._port}"
            )
            served = Served(step, process, endpoint, folder, self.cores)
            first_answer(process, endpoint, WARM, tokens[0], limit_s=START_S)
            served.warm_up()
            yield served
        finally:
            process.stop()

    def database(self, step: FlatStep) -> Path:
        """Return the path of a step's SQLite file."""
        return self.folder / f"{step.name}-{step.size}" / "gatepost.db"

    def _tokens(self, step: FlatStep, folder: Path) -> list[str]:
        mint = Mint(self._mint.issuer, self._mint.resource, self._mint.key, step.tenants)
        tokens = mint.pool(step.tokens)
        (folder / "tokens").write_text("".join(f"{token}\n" for token in tokens), encoding="ascii")
        return tokens

    def _started(self, step: FlatStep, folder: Path) -> tuple[int, BenchProcess]:
        port = free_port()
        sizes = dict.fromkeys(("call", "document", "progress", "list", "refusal"), 400)
        settings = Settings(
            self._port, self._issuer.url, self._issuer.jwks_uri, self._resource, step.tools, sizes
        )
        env = {
            "GATEPOST_LISTEN__PORT": str(port),
            "GATEPOST_LIMITS__CACHED_TOKENS": str(step.cached_tokens),
        }
        if step.is_floor:
            floor = Settings(port, "", "", self._resource, 0, sizes)
            launch = contestants.module("floor")(floor, folder)
        else:
            config = gatepost.write_config(settings, folder)
            if step.records:
                asyncio.run(fill(folder, "tenant-0", step.records))
            launch = contestants.serve(config)
        log = folder / "output.log"
        process = BenchProcess.start(
            launch.command, log=log, cores=self.cores, env={**launch.env, **env}
        )
        return port, process


class Served:
    """A server that answers."""

    def __init__(
        self,
        step: FlatStep,
        process: BenchProcess,
        endpoint: BenchEndpoint,
        folder: Path,
        cores: Cores,
    ) -> None:
        self.step, self._process, self._endpoint, self._cores = step, process, endpoint, cores
        self._script, self._file = folder / "calls.lua", folder / "tokens"
        self._script.write_text(wrk.script(WARM, endpoint, self._file), encoding="utf-8")
        self._tokens = self._file.read_text(encoding="ascii").split()

    def _load(self, seconds: int) -> wrk.Account:
        url = f"http://{self._endpoint.address}"
        account = wrk.load(url, self._script, seconds=seconds, cores=self._cores)
        # wrk begins with the first token: the next interval goes on where this one ended.
        at = account.requests % len(self._tokens)
        self._tokens = [*self._tokens[at:], *self._tokens[:at]]
        self._file.write_text("".join(f"{token}\n" for token in self._tokens), encoding="ascii")
        return account

    def warm_up(self) -> None:
        """Send each token once, as far as that is possible within a time."""
        sent, until = 0, time.monotonic() + WARM_UP_S
        while sent < len(self._tokens) and time.monotonic() < until:
            sent += self._load(2).requests

    def sample(self, seconds: int) -> FlatSample:
        """Call the server for an interval."""
        before = usage(self._process.pid).cpu_s
        account = self._load(seconds)
        after = usage(self._process.pid)
        cpu_s = after.cpu_s - before
        return FlatSample(
            step=self.step,
            cpu_us=cpu_s / account.requests * 1e6 if account.requests else 0.0,
            rate=account.rate,
            p99_us=account.p99_us,
            failed=account.failed + account.refused,
            resident=after.resident,
        )


def run(
    site: FlatSite,
    rows: Mapping[str, Sequence[FlatStep]],
    rounds: int,
    seconds: int,
    say: Callable[[str], object] = print,
) -> FlatResults:
    """Measure each row: the floor and all sizes in turn, several times."""
    samples: list[FlatSample] = []
    for name, row in rows.items():
        with ExitStack() as stack:
            served = [stack.enter_context(site.served(FlatStep(FLOOR, len(samples))))]
            for step in row:
                served.append(stack.enter_context(site.served(step)))
                say(f"{step.size:,} {name}: ready")
            for _ in range(rounds):
                for server in served:
                    sample = server.sample(seconds)
                    floor = FlatStep(name, 0) if server.step.is_floor else server.step
                    samples.append(replace(sample, step=floor))
                    say(f"{floor.size:,} {name}: {sample.cpu_us:.0f} µs")
    costs = []
    for step in rows.get("records", ()):
        costs += asyncio.run(pages(site.database(step), "tenant-0", step.size))
    return FlatResults(samples, costs)


def render(results: FlatResults) -> str:
    """
    Render the lowest CPU of each size as lines of text, as other load only adds to it.

    `cached` is the setting `limits.cached_tokens` that the server ran with.
    """
    lines = ["CPU of a call with every control on, SQLite, 32 connections", ""]
    heads = f"{'µs':>7} {'floors':>7} {'times':>6} {'p99 ms':>7} {'MiB':>5} {'cached':>8}"
    lines.append(f"{'':>24} {heads}")
    for name in dict.fromkeys(sample.step.name for sample in results.samples):
        lines += _row(name, [sample for sample in results.samples if sample.step.name == name])
    if results.pages:
        lines += ["", "milliseconds of a page by the number of records", ""]
        lines += [page.line for page in results.pages]
    return "\n".join(lines)


def _row(name: str, samples: Sequence[FlatSample]) -> list[str]:
    lines, base = [], 0.0
    floor = min(sample.cpu_us for sample in samples if not sample.step.size)
    for size in sorted({sample.step.size for sample in samples} - {0}):
        of_size = [sample for sample in samples if sample.step.size == size]
        cpu_us = min(sample.cpu_us for sample in of_size)
        p99_ms = statistics.median(sample.p99_us for sample in of_size) / 1000
        base = base or cpu_us
        times = cpu_us / base
        text = (
            f"{size:>15,} {name:<8} {cpu_us:7.0f} {cpu_us / floor:7.2f} {times:6.2f} {p99_ms:7.1f}"
            f" {of_size[-1].resident / 2**20:5.0f} {of_size[-1].step.cached_tokens:>8,}"
        )
        if failed := sum(sample.failed for sample in of_size):
            text += f"  {failed} calls failed"
        lines.append(text if times == 1 else f"{text}  {_verdict(name, times)}")
    return lines


def _verdict(name: str, times: float) -> str:
    verdicts = [f"{TARGET:g}: {_met(times, TARGET)}"]
    if name == "tenants":
        verdicts.append(f"{OF_TENANTS:g}: {_met(times, OF_TENANTS)}")
    return ", ".join(verdicts)


def _met(times: float, target: float) -> str:
    return "met" if times <= target else f"missed by {times - target:.2f}"


def save(results: FlatResults, machine: dict[str, object], path: Path) -> None:
    """Write the results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, **asdict(results)}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
