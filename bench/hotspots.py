"""Where a server's time goes: samples of its stack under load, as microseconds a request."""

import pstats
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import wrk
from bench.contestants import CONTESTANTS, Contestant, Launch, Unavailable
from bench.probe import NotAnswering
from bench.process import BenchProcess
from bench.report import number, table
from bench.rounds import RoundResults, RoundRunner
from bench.servers.settings import Settings
from bench.workload import Workload

RATE = 400
ROWS = 40
FRAME = re.compile(r"(?P<name>.+) \((?P<file>[^():]+)(?::\d+)?\)$")
WAITING = re.compile(
    r"(?:concurrent/futures/thread.py _worker|threading.py (?:Condition\.)?wait"
    r"|admission_queue.py get"
    r"|sqlite.py WorkThreads._work)$"
)
"""Threads with nothing to do, which py-spy takes for busy ones in some containers."""
LIBRARY = re.compile(r".*/site-packages/")

MISSING = (
    "py-spy is not installed (`pip install py-spy`), or may not look at this process; "
    "cProfile was used, which makes small functions look larger than they are."
)


@dataclass(frozen=True)
class Spot:
    """One function: microseconds a request in itself, and with all that it calls."""

    name: str
    own_us: float
    total_us: float


def frame_name(frame: str) -> str:
    """Shorten `run (/…/site-packages/uvicorn/server.py:71)` to `uvicorn/server.py run`."""
    match = FRAME.match(frame)
    if not match:
        return frame
    file = LIBRARY.sub("", match["file"])
    for root in ("/server/", "/authz/", "/keys/", "/bench/", "/lib/python"):
        if file.startswith("/") and root in file:
            file = file.partition(root)[2]
    return f"{file} {match['name']}"


def from_stacks(text: str, cpu_us: float) -> list[Spot]:
    """Turn collapsed stacks (`outer;inner count`, one a line) into shares of a request's CPU."""
    own_samples: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [frame_name(frame) for frame in stack.split(";")]
        if WAITING.search(frames[-1]):
            continue
        own_samples[frames[-1]] += int(count)
        for frame in set(frames):
            total[frame] += int(count)
    return spots(own_samples, total, cpu_us / (own_samples.total() or 1))


def from_statistics(path: Path, cpu_us: float) -> list[Spot]:
    """Return what cProfile recorded, scaled to a request's CPU."""
    own_s: dict[str, float] = {}
    total: dict[str, float] = {}
    recorded: Mapping[tuple[str, int, str], tuple[int, int, float, float, object]]
    recorded = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, _, self_s, all_s, _) in recorded.items():
        key = frame_name(f"{name} ({file})")
        own_s[key] = own_s.get(key, 0.0) + self_s
        total[key] = total.get(key, 0.0) + all_s
    return spots(own_s, total, cpu_us / (sum(own_s.values()) or 1))


def spots(of_itself: Mapping[str, float], total: Mapping[str, float], unit: float) -> list[Spot]:
    """Turn counts into microseconds, the most expensive first."""
    found_spots = [Spot(name, of_itself.get(name, 0) * unit, total[name] * unit) for name in total]
    return sorted(found_spots, key=lambda spot: (-spot.own_us, -spot.total_us))


def render(title: str, hot_spots: list[Spot], cpu_us: float) -> str:
    """Render the files first, then the functions."""
    files: Counter[str] = Counter()
    for spot in hot_spots:
        files[spot.name.rpartition(" ")[0] or spot.name] += spot.own_us
    by_file = [(name, number(us), number(100 * us / cpu_us)) for name, us in files.most_common(25)]
    by_function = [
        (spot.name, number(spot.own_us), number(spot.total_us)) for spot in hot_spots[:ROWS]
    ]
    return "\n\n".join(
        [
            f"{title}: {cpu_us:.1f} µs CPU a request",
            table(("file", "own µs", "%"), by_file),
            table(("function", "own µs", "with callees µs"), by_function),
        ]
    )


def py_spy_path() -> str | None:
    """Return where py-spy is: beside this interpreter or on the path."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def recorded_stacks(
    bench: RoundRunner,
    process: BenchProcess,
    contestant: Contestant,
    workload: Workload,
    seconds: int,
) -> str | None:
    """Return the stacks of a process under load; None when py-spy cannot read them."""
    program = py_spy_path()
    if program is None:
        return None
    path = bench.folder / "stacks.txt"
    command = [program, "record", "--pid", str(process.pid), "--format", "raw"]
    command += ["--full-filenames", "--rate", str(RATE), "--duration", str(seconds)]
    watcher = subprocess.Popen(
        [*command, "--output", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    bench.load(contestant, workload, seconds)
    watcher.wait(60)
    return path.read_text(encoding="utf-8") if path.exists() else None


def under_cprofile(contestant: Contestant, path: Path) -> Contestant:
    """Return the same server started under cProfile, which writes its statistics when it ends."""

    def launch(settings: Settings, folder: Path) -> Launch:
        launched = contestant.launch(settings, folder)
        interpreter, *arguments = launched.command
        return Launch([interpreter, "-m", "cProfile", "-o", str(path), *arguments], launched.env)

    return Contestant(contestant.name, contestant.title, launch, ready_line=contestant.ready_line)


def profile(bench: RoundRunner, server: str, workload: Workload, seconds: int) -> str:
    """Load one server with one workload, once to count and once to look; a printable report."""
    contestant = next(each for each in CONTESTANTS if each.name == server)
    title = f"{contestant.title}, {workload.title}"
    results = RoundResults()
    try:
        with ExitStack() as stack:
            process, _ = stack.enter_context(bench.started(contestant, 0, workload.tools, results))
            bench.load(contestant, workload, 1)
            cpu_us = bench.measure(0, contestant, process, workload, seconds).cpu_us
            stacks = recorded_stacks(bench, process, contestant, workload, seconds)
        if stacks:
            return render(title, from_stacks(stacks, cpu_us), cpu_us)
        path = bench.folder / "statistics"
        with ExitStack() as stack:
            slowed = under_cprofile(contestant, path)
            stack.enter_context(bench.started(slowed, 1, workload.tools, results))
            bench.load(contestant, workload, seconds)
    except (Unavailable, NotAnswering, wrk.LoadError) as reason:
        return f"{title}: not measured: {reason}"
    return f"{MISSING}\n\n{render(title, from_statistics(path, cpu_us), cpu_us)}"
