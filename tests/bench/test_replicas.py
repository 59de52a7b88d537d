"""The report about replicas."""

from bench.replicas import ProcessesSample, render


def test_the_report_compares_with_one_replica() -> None:
    """It uses the medians of the rounds and reports failed calls."""
    samples = [
        ProcessesSample(replicas, rate * replicas, 2_000, 300, failed)
        for replicas in (1, 2, 4)
        for rate, failed in ((90, 0), (100, 1), (110, 0))
    ]
    report = render(samples)

    assert "4 replicas: 400 calls/s (4.0 times), p99 2.0 ms, 300 µs CPU a call" in report
    assert report.count("1 calls failed") == 3
    assert report.endswith("target: 3 times with 4 replicas: met")


def test_the_report_says_by_how_much_a_target_is_missed() -> None:
    """Four replicas serve as many calls as one replica."""
    report = render([ProcessesSample(replicas, 100.0, 2_000, 300, 0) for replicas in (1, 2, 4)])

    assert report.endswith("missed by 2.0")
