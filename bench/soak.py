"""`python -m bench --soak SECONDS`: what a server holds after a long time of mixed traffic."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

from bench import contestants, gatepost
from bench.issuer import BenchIssuer
from bench.probe import line_printed
from bench.process import BenchProcess, Cores
from bench.servers import soak_tools
from bench.servers.settings import Settings
from bench.tokens import Mint
from bench.traffic import OPERATIONS, BenchTraffic
from bench.workload import PATH

START_S = 60
CALLERS = 10
AT_ONCE = 8
WARM_UP = 0.2
"""The part of the time after which the server must hold all that it ever holds."""
LARGE = 500_000
SIZES = (10, 10, 10, 1_000, 1_000, 20_000, LARGE)
OPERATION_S = 60.0
SETTLE_S = 30.0
KEPT_S = 120.0
"""How long the server keeps what its promises need: event logs of ended streams, the longest."""
KEPT_TYPES = frozenset(
    {
        "gatepost.mcp.sessions.resumable.EventLog",
        "gatepost.mcp.sessions.session.McpSession",
        "gatepost.mcp.sessions.channel.RegisteredSession",
        "gatepost.mcp.sessions.channel.MessageChannel",
        "gatepost.mcp.sessions.channel.StreamEvents",
        "gatepost.storage.shared_store.MemorySubscription",
        "gatepost.storage.shared_store._Log",
        "gatepost.storage.sql.sessions.SqlSessions",
    }
)
"""Types of what is kept for so long after a session was left."""
BOUNDED = frozenset(
    {
        "gatepost.audit.record_builder.CallerFields",
        "gatepost.storage.sql.sqlite_audit_wal.Frame",
    }
)
"""Types of what a cache of a fixed size holds, or waits a second to be merged."""
MIN_GROWTH = 40
"""So many objects of a type may be more: caches that fill, and what has just begun."""
MORE_MEMORY, MORE_BYTES = 1.15, 24_000_000
"""What memory may grow by: an allocator gives back whole pages only."""

APPROVALS = """
[approvals]
timeout_s = 5
max_waiting_per_caller = 1000
max_waiting_per_tenant = 10000
"""


@dataclass(frozen=True)
class MemoryUse:
    """What the server held at one moment, after so many operations."""

    operations: int
    resident: int
    objects: Mapping[str, int]


@dataclass
class Soak:
    """What a run found."""

    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    before: MemoryUse = MemoryUse(0, 0, {})
    after: MemoryUse = MemoryUse(0, 0, {})

    @property
    def leaks(self) -> list[str]:
        """Return the kinds of objects and memory that grew after the first fifth of the run."""
        leaks = []
        complete = self.seconds * WARM_UP >= KEPT_S
        for kind, number in sorted(self.after.objects.items()):
            growth = number - self.before.objects.get(kind, 0)
            if kind in BOUNDED:
                continue
            is_gatepost = kind.startswith("gatepost")
            if (is_gatepost and kind not in KEPT_TYPES) or (complete and kind != "blocks"):
                # What grows with the traffic grows by at least a hundredth of it.
                operations = self.after.operations - self.before.operations
                if growth > max(MIN_GROWTH, operations / 100 if is_gatepost else operations / 20):
                    leaks.append(f"{growth} more {kind}, {number} in all")
        max_bytes = self.before.resident * MORE_MEMORY + MORE_BYTES
        if self.after.resident > max_bytes:
            before, after = self.before.resident / 1e6, self.after.resident / 1e6
            leaks.append(f"{after:.0f} MB of memory instead of {before:.0f}")
        return leaks


@contextmanager
def served(folder: Path, issuer: BenchIssuer, port: int) -> Iterator[tuple[BenchProcess, Mint]]:
    """Run a Gatepost with everything on, its tools of `soak_tools` and a key for its tokens."""
    resource = f"http://127.0.0.1:{port}{PATH}"
    mint = Mint.create(issuer.url, resource)
    issuer.key_set = mint.key_set
    settings = Settings(port, issuer.url, issuer.jwks_uri, resource, tools=0, sizes={})
    tools = [Path(soak_tools.__file__)]
    path = gatepost.write_config(
        settings, folder, further_files=tools, controls=gatepost.ON + APPROVALS
    )
    launch = contestants.serve(path)
    cores = Cores(None, None)
    process = BenchProcess.start(
        launch.command, log=folder / "output.log", cores=cores, env=launch.env
    )
    try:
        line_printed(process, "Gatepost is ready at", limit_s=START_S)
        yield process, mint
    finally:
        process.stop()


async def run(
    process: BenchProcess,
    mint: Mint,
    seconds: float,
    report_progress: Callable[[str], object] = print,
) -> Soak:
    """Send every kind of operation for so long; look after a fifth of it and at the end."""
    parts = urlsplit(mint.resource)
    address = (parts.hostname or "", parts.port or 80)
    tokens = mint.pool(CALLERS)
    callers = [BenchTraffic(address, parts.netloc, parts.path, token) for token in tokens]
    soak = Soak(seconds)
    for part, name in ((WARM_UP, "before"), (1 - WARM_UP, "after")):
        until = monotonic() + seconds * part
        await asyncio.gather(*(_work(soak, callers[n::AT_ONCE], until, n) for n in range(AT_ONCE)))
        memory_use = await _idle_memory_use(process, callers[0], soak)
        setattr(soak, name, memory_use)
        objects, memory = sum(memory_use.objects.values()), memory_use.resident / 1e6
        report_progress(f"{memory_use.operations} operations: {objects} objects, {memory:.0f} MB")
    return soak


async def _work(soak: Soak, callers: list[BenchTraffic], until: float, seed: int) -> None:
    source = random.Random(seed)
    names = list(OPERATIONS)
    for number, caller in enumerate(cycle(callers)):
        if monotonic() >= until:
            return
        name, size = names[(number + seed) % len(names)], source.choice(SIZES)
        try:
            await asyncio.wait_for(OPERATIONS[name](caller, size), OPERATION_S)
        except Exception as error:  # noqa: BLE001  # told at the end; the others go on
            soak.failed[f"{name}: {type(error).__name__}: {error}"[:200]] += 1
        soak.counts[name] += 1


async def _idle_memory_use(process: BenchProcess, caller: BenchTraffic, soak: Soak) -> MemoryUse:
    """Look again until no call is left that its client has abandoned, for a while."""
    until = monotonic() + SETTLE_S
    while True:
        objects = await caller.objects()
        # The call that counts is one of them.
        if (
            objects.get("gatepost.tools.calls.redacted_call.RedactedCall", 0) <= 1
            or monotonic() >= until
        ):
            return MemoryUse(soak.counts.total(), process.usage().resident, objects)
        await asyncio.sleep(0.5)


def render(soak: Soak) -> str:
    """Render the operations of a run, what failed, and what is left of them."""
    lines = [f"{number:8} {name}" for name, number in sorted(soak.counts.items())]
    lines += [
        f"{number:8} failed: {operation}" for operation, number in soak.failed.most_common(20)
    ]
    return "\n".join([*lines, "", *(soak.leaks or ["Nothing is left."])])
