"""The report about calls beside heavy ones."""

from bench.interference import InterferenceSample, render


def test_light_calls_are_reported_by_what_runs_beside_them() -> None:
    """The report has medians of the rounds, and all failed calls."""
    samples = [
        InterferenceSample(beside, p50_us, 10 * p50_us, rate, failed=1)
        for beside, rate in (("nothing", 0.0), ("1 tool computes", 3.0))
        for p50_us in (1_000, 2_000, 9_000)
    ]
    head, nothing, computing = render(samples).splitlines()

    assert head.split()[-5:] == ["p99", "ms", "heavy", "calls/s", "failed"]
    assert nothing.split() == ["nothing", "2.0", "20.0", "0.0", "3"]
    assert computing.split()[-4:] == ["2.0", "20.0", "3.0", "3"]
