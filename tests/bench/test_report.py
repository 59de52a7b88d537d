"""The arithmetic behind the tables."""

import json
import math
from pathlib import Path

import pytest

from bench import report
from bench.contestants import CONTESTANTS
from bench.hotspots import from_stacks
from bench.rounds import Disk, RoundResults, RoundSample, Start, disk


def sample(number: int, server: str, cpu_us: float, note: str = "") -> RoundSample:
    return RoundSample(number, server, "warm", 1e6 / cpu_us, 800.0, 1500.0, cpu_us, note)


def results() -> RoundResults:
    results = RoundResults()
    for number, floor, ours in ((1, 20.0, 50.0), (2, 40.0, 80.0), (3, 20.0, 40.0)):
        results.samples += [sample(number, "floor", floor), sample(number, "gatepost", ours)]
    results.starts = [Start(1, "floor", 0.1, None, 30_000_000, 30_000_000)]
    results.starts.append(Start(1, "gatepost", 0.6, 0.5, 60_000_000, 90_000_000))
    return results


def test_a_ratio_uses_the_floor_of_the_same_round() -> None:
    """A busy round slows both, so the median of ratios is more stable than a ratio of medians."""
    measure = report.over_rounds({1: 50.0, 2: 80.0, 3: 40.0}, {1: 20.0, 2: 40.0}, inverse=True)

    assert measure is not None
    assert measure.value == 50.0
    assert measure.ratio == pytest.approx(0.45)
    assert (measure.low, measure.high) == (0.4, 0.5)
    assert measure.best == 0.5


def test_a_measure_without_a_floor_has_a_value_but_no_ratio() -> None:
    """A row stays readable when the floor of its rounds is missing."""
    measure = report.over_rounds({1: 50.0}, {})

    assert measure is not None
    assert measure.value == 50.0
    assert math.isnan(measure.ratio)
    assert report.over_rounds({}, {1: 20.0}) is None


@pytest.mark.parametrize(
    ("value", "target", "at_most", "outcome"),
    [
        (0.43, 0.42, False, "met"),
        (0.42, 0.42, False, "met"),
        (0.40, 0.42, False, "short by 0.02"),
        (0.60, 0.70, True, "met"),
        (0.75, 0.70, True, "short by 0.05"),
    ],
)
def test_the_verdict_says_met_or_the_missing_amount(
    value: float, target: float, at_most: bool, outcome: str
) -> None:
    """The targets are printed, never enforced."""
    assert report.verdict(value, target, at_most=at_most) == outcome


def test_a_single_call_is_compared_with_the_disk_of_its_round() -> None:
    """The report has the usual and the longest time, because the disk causes part of both."""
    results = RoundResults(disk=[Disk(1, 400.0, 1_000.0)])
    results.samples.append(RoundSample(1, "gatepost", "alone", 1_000.0, 800.0, 3_000.0, 200.0))
    lines = [line for line in report.render(results, CONTESTANTS).splitlines() if "fsync" in line]

    assert [line.partition("< 2.5")[2].split() for line in lines] == [
        ["2.0", "met"],
        ["3.0", "short", "by", "0.50"],
    ]


def test_the_disk_is_measured_where_the_databases_are(tmp_path: Path) -> None:
    """The measurement leaves no file there."""
    measurement = disk(tmp_path, 2)

    assert (
        measurement.round,
        measurement.p50_us > 0,
        measurement.p99_us >= measurement.p50_us,
    ) == (2, True, True)
    assert list(tmp_path.iterdir()) == []


def test_the_report_has_targets_figures_and_unmeasured_servers() -> None:
    """A reader sees which targets are met or missed, and what could not be measured."""
    measured = results()
    measured.missing["fastmcp"] = "no matching distribution"

    text = report.render(measured, CONTESTANTS)

    aims = [line for line in text.splitlines() if line.startswith("tools/call, one token: ")]
    assert [line.split()[-3:] for line in aims] == [["0.30", "0.50", "met"]]
    [first] = [
        line for line in text.splitlines() if line.startswith("first answer after the start")
    ]
    assert first.split()[-3:] == ["s", "0.60", "met"]
    assert "short by 5.83 MiB" in text  # 90 MB instead of 80 MiB
    assert "fastmcp: not measured: no matching distribution" in text


def test_samples_with_a_remark_are_left_out_of_the_median() -> None:
    """A run whose fresh tokens ran out has a figure that is too good."""
    measured = results()
    measured.samples.append(sample(4, "gatepost", 1.0, "the pool ran out"))

    assert 4 not in report.of_samples(measured.samples, "gatepost", "warm", "cpu_us")
    assert "gatepost, warm: the pool ran out" in report.render(measured, CONTESTANTS)


def test_every_sample_is_saved(tmp_path: Path) -> None:
    """A reader may want other statistics."""
    path = tmp_path / "results" / "run.json"

    report.save(results(), {"cores": 2}, path)

    saved = json.loads(path.read_text(encoding="utf-8"))
    assert len(saved["samples"]) == 6
    assert saved["machine"] == {"cores": 2}


def test_profiler_stacks_are_converted_to_microseconds_of_a_request() -> None:
    """Own times add up to the request's CPU time, without recursion and waiting."""
    stacks = """\
main (/x/site-packages/uvicorn/server.py:10);call (/w/server/gatepost/mcp/endpoint.py:5) 30
main (/x/site-packages/uvicorn/server.py:10);call (/w/server/gatepost/mcp/endpoint.py:9);\
call (/w/server/gatepost/mcp/endpoint.py:5) 10
main (/x/site-packages/uvicorn/server.py:12) 60
run (/usr/lib/python3.11/threading.py:1);\
_worker (/usr/lib/python3.11/concurrent/futures/thread.py:81) 99
"""
    costs = {spot.name: spot for spot in from_stacks(stacks, 50.0)}

    assert sum(spot.own_us for spot in costs.values()) == pytest.approx(50.0)
    assert costs["gatepost/mcp/endpoint.py call"].total_us == pytest.approx(20.0)
    assert costs["uvicorn/server.py main"].own_us == pytest.approx(30.0)
