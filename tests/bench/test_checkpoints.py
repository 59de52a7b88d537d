"""The report about checkpoints."""

from bench.checkpoints import Costs, Interval, render


def test_intervals_with_and_without_signing_are_reported_separately() -> None:
    """The report compares calls during checkpoints with calls without them."""
    intervals = [Interval(100, 2_000, 0), Interval(80, 5_000, 50), Interval(60, 9_000, 30)]
    report = render(Costs(80, intervals, 4.0, 0.5, 2.5, 40))

    assert "while nothing is signed: 100 calls/s (lowest 100), p99 2.0 ms" in report
    assert "while chains are signed: 70 calls/s (lowest 60), p99 7.0 ms" in report
    assert "took 2.5 s and signed 40" in report
