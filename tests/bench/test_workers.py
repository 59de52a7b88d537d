"""The report about workers."""

from bench.replicas import ProcessesSample
from bench.workers import render


def test_two_workers_are_compared_by_their_calls_and_by_their_cpu_time() -> None:
    """The report has medians, failed calls and the met target."""
    samples = [
        ProcessesSample(workers, rate * workers, 2_000, 100, failed)
        for workers in (1, 2)
        for rate, failed in ((90, 0), (100, workers - 1), (300, 0))
    ]
    report = render(samples)

    assert "workers: 1, 100 calls/s, p99 2.0 ms, 100 µs CPU a call" in report
    assert "workers: 2, 200 calls/s" in report
    assert "1 calls failed" in report
    assert "2.00 times the calls, and 2.00 times as many" in report
    assert report.endswith("target: 1.8 times by both: met")


def test_a_higher_cpu_time_with_two_workers_misses_the_target() -> None:
    """Workers that are half idle could answer as many calls, so the CPU time decides."""
    report = render(
        [ProcessesSample(1, 100, 2_000, 100, 0), ProcessesSample(2, 200, 2_000, 160, 0)]
    )

    assert report.endswith("target: 1.8 times by both: missed by 0.55")
