"""From samples to tables: each value with its ratio to the floor of the same round."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.contestants import Contestant
from bench.rounds import RoundResults, RoundSample, Start
from bench.workload import WORKLOADS, Workload

FLOOR = "floor"
START_TARGETS = {"gatepost": ("controls on", 0.7, 80), "stripped": ("off", 0.5, 60)}
"""Of each server: its title here, seconds to the first answer, MiB after all calls."""
MEGA = 1_000_000
MEBI = 1 << 20


@dataclass(frozen=True)
class Measure:
    """The median over the rounds of a value and of its ratio to the floor, with the spread."""

    value: float
    ratio: float
    low: float
    high: float
    best: float
    """The lowest values of both compared: neighbours only ever add to a cost."""


def over_rounds(
    values: dict[int, float], floor: dict[int, float], *, inverse: bool = False
) -> Measure | None:
    """
    Return one measure from values by round; None without any.

    *inverse* divides the floor's value by ours, so that costs too read as "1 is the floor".
    """
    if not values:
        return None
    ratios = [ratio(values[n], floor[n], inverse=inverse) for n in values if n in floor]
    ratios = [each for each in ratios if not math.isnan(each)]
    nan = float("nan")
    return Measure(
        median(values.values()),
        median(ratios) if ratios else nan,
        min(ratios, default=nan),
        max(ratios, default=nan),
        ratio(min(values.values()), min(floor.values()), inverse=inverse) if floor else nan,
    )


def ratio(value: float, floor: float, *, inverse: bool) -> float:
    """Return own to floor, or floor to own; not a number where one is missing."""
    over, under = (floor, value) if inverse else (value, floor)
    return over / under if under else float("nan")


def of_samples(
    samples: Iterable[RoundSample], server: str, workload: str, field: str
) -> dict[int, float]:
    """Return one field of one server and workload, by round, without samples that have a remark."""
    return {
        sample.round: getattr(sample, field)
        for sample in samples
        if (sample.server, sample.workload) == (server, workload) and not sample.note
    }


def of_starts(starts: Iterable[Start], server: str, field: str) -> dict[int, float]:
    """Return one field of one server's starts, by round."""
    values = {start.round: getattr(start, field) for start in starts if start.server == server}
    return {number: value for number, value in values.items() if value is not None}


def verdict(value: float, target: float, *, at_most: bool = False, unit: str = "") -> str:
    """Return `met`, or how far the value is from the target."""
    short = value - target if at_most else target - value
    return "met" if short <= 0 else f"short by {short:.2f}{unit}"


def number(value: float, digits: int = 1) -> str:
    """Format a figure for a table; a dash for an unknown figure."""
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns as wide as they need to be, the first to the left, the rest to the right."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        aligned = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *aligned]).rstrip()

    return "\n".join([line(head), *(line(row) for row in rows)])


COLUMNS: tuple[tuple[str, str, bool, Callable[[float], str]], ...] = (
    ("CPU µs", "cpu_us", True, lambda value: number(value)),
    ("req/s", "rate", False, lambda value: number(value, 0)),
    ("p50 ms", "p50_us", False, lambda value: number(value / 1000, 2)),
    ("p99 ms", "p99_us", False, lambda value: number(value / 1000, 2)),
)


def workload_table(
    results: RoundResults, contestants: Sequence[Contestant], workload: Workload
) -> str:
    """Return the table of a workload: a row per server, figures with their ratio to the floor."""
    rows = []
    for contestant in contestants:
        cells = [contestant.title]
        for _, field, inverse, show in COLUMNS:
            measure = compared(results, contestant.name, workload, field, inverse=inverse)
            cells += [show(measure.value), number(measure.ratio, 2)] if measure else ["-", "-"]
            if field == "cpu_us":
                cells += [spread(measure), number(measure.best, 2) if measure else "-"]
        if any(cell != "-" for cell in cells[1:]):
            rows.append(cells)
    head = [workload.title]
    for title, *_ in COLUMNS:
        head += [title, "ratio"] + (["spread", "best"] if title == "CPU µs" else [])
    return table(head, rows)


def spread(measure: Measure | None) -> str:
    """Return the lowest and highest ratio of the rounds."""
    if measure is None or math.isnan(measure.low):
        return "-"
    return f"{measure.low:.2f}-{measure.high:.2f}"


def start_table(results: RoundResults, contestants: Sequence[Contestant]) -> str:
    """Return the table of start-up and memory: a row per server."""
    fields = (("first_answer_s", 1.0), ("resident_idle", MEGA), ("resident", MEGA))
    rows = []
    for contestant in contestants:
        cells = [contestant.title]
        for field, unit in fields:
            starts = of_starts(results.starts, contestant.name, field)
            measure = over_rounds(starts, of_starts(results.starts, FLOOR, field))
            digits = 2 if unit == 1.0 else 0
            cells += (
                [number(measure.value / unit, digits), number(measure.ratio, 1)]
                if measure
                else ["-", "-"]
            )
        if any(cell != "-" for cell in cells[1:]):
            rows.append(cells)
    titles = ("first answer s", "RSS idle MB", "RSS loaded MB")
    head = ["start and memory"]
    for title in titles:
        head += [title, "ratio"]
    return table(head, rows)


def targets(results: RoundResults) -> list[tuple[str, str, str, str]]:
    """Return Gatepost's targets, what it reaches, and the verdicts; informs, never fails."""
    lines = []
    for workload in WORKLOADS:
        aims = (
            ("gatepost", "controls on", workload.controlled),
            ("stripped", "off", workload.target),
        )
        for server, state, target in aims:
            measure = compared(results, server, workload, "cpu_us", inverse=True)
            if measure and target is not None and not math.isnan(measure.ratio):
                reached, outcome = f"{measure.ratio:.2f}", verdict(measure.ratio, target)
                title = f"{workload.title}: CPU ratio, {state}"
                lines.append((title, f"{target:.2f}", reached, outcome))
        slowest = compared(results, "gatepost", workload, "p99_us")
        if slowest and workload.controlled_p99 is not None and not math.isnan(slowest.ratio):
            maximum = workload.controlled_p99
            outcome = verdict(slowest.ratio, maximum, at_most=True)
            title = f"{workload.title}: p99 to the floor's, controls on"
            lines.append((title, f"< {maximum:g}", f"{slowest.ratio:.1f}", outcome))
        lines += disk_targets(results, workload)
    return lines + start_targets(results)


def disk_targets(results: RoundResults, workload: Workload) -> list[tuple[str, str, str, str]]:
    """Compare the latency of a workload with an `fsync` of the same round."""
    lines = []
    for name, field in (("p50", "p50_us"), ("p99", "p99_us")):
        values = of_samples(results.samples, "gatepost", workload.name, field)
        measure = over_rounds(values, {disk.round: getattr(disk, field) for disk in results.disk})
        if measure and workload.of_fsync is not None and not math.isnan(measure.ratio):
            took = median(getattr(disk, field) for disk in results.disk)
            title = f"{workload.title}: {name} to an fsync's ({took:,.0f} µs), controls on"
            outcome = verdict(measure.ratio, workload.of_fsync, at_most=True)
            lines.append((title, f"< {workload.of_fsync:g}", f"{measure.ratio:.1f}", outcome))
    return lines


def compared(
    results: RoundResults, server: str, workload: Workload, value: str, *, inverse: bool = False
) -> Measure | None:
    """Compare one value of a server in a workload with the floor."""
    values = of_samples(results.samples, server, workload.name, value)
    return over_rounds(
        values, of_samples(results.samples, FLOOR, workload.name, value), inverse=inverse
    )


def start_targets(results: RoundResults) -> list[tuple[str, str, str, str]]:
    """Return the targets of start and memory, what is reached, and the verdicts."""
    lines = []
    for server, (state, seconds, mebibytes) in START_TARGETS.items():
        first = of_starts(results.starts, server, "first_answer_s")
        if first:
            reached = median(first.values())
            outcome = verdict(reached, seconds, at_most=True, unit=" s")
            title = f"first answer after the start, {state}"
            lines.append((title, f"< {seconds} s", f"{reached:.2f}", outcome))
        resident = of_starts(results.starts, server, "resident")
        if resident:
            reached = max(resident.values()) / MEBI
            outcome = verdict(reached, mebibytes, at_most=True, unit=" MiB")
            title = f"resident memory after load, {state}"
            lines.append((title, f"< {mebibytes} MiB", f"{reached:.0f}", outcome))
    return lines


def render(results: RoundResults, contestants: Sequence[Contestant]) -> str:
    """Return the whole report as text."""
    ordered = sorted(contestants, key=lambda each: each.name != FLOOR)
    parts = [
        workload_table(results, ordered, workload)
        for workload in WORKLOADS
        if any(sample.workload == workload.name for sample in results.samples)
    ]
    if results.starts:
        parts.append(start_table(results, ordered))
    aims = targets(results)
    if aims:
        parts.append(table(("Gatepost's targets", "target", "reached", "verdict"), aims))
    remarks = {f"{s.server}, {s.workload}: {s.note}" for s in results.samples if s.note}
    remarks |= {f"{name}: not measured: {reason}" for name, reason in results.missing.items()}
    if remarks:
        parts.append("\n".join(sorted(remarks)))
    return "\n\n".join(parts)


def save(results: RoundResults, machine: dict[str, object], path: Path) -> None:
    """Write every sample as JSON, for other statistics."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, **asdict(results)}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def save_samples(samples: Sequence[Any], machine: dict[str, object], path: Path) -> None:
    """Write samples, which are dataclasses, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "samples": [asdict(sample) for sample in samples]}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
