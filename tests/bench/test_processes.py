"""The report about several processes on shared stores."""

from bench.processes import FOUR, GROUPS, SQLITE, ProcessGroup, ProcessGroupSample, render


def samples(costs: dict[ProcessGroup, float], failed: int = 0) -> list[ProcessGroupSample]:
    return [
        ProcessGroupSample(
            group.processes,
            1_000.0,
            2_000,
            costs.get(group, 150) + more,
            failed,
            group,
        )
        for group in GROUPS
        for more in (-90, 0, 90)
    ]


def test_four_processes_are_compared_with_one_on_sqlite() -> None:
    """The report has medians, failed calls and the met target."""
    report = render(samples({SQLITE: 100, FOUR: 150}, failed=1))

    assert "SQLite, 1 process with 32 connections: 100 µs CPU a call (1.0 times)" in report
    assert "PostgreSQL and Valkey, 4 processes with 8 connections: 150 µs" in report
    assert report.count("3 calls failed") == len(GROUPS)
    assert report.endswith("target: 1.5 times with four processes: met")


def test_the_report_says_how_much_dearer_a_call_of_four_processes_is() -> None:
    """Only four processes have a target: a lone one on PostgreSQL may cost more."""
    report = render(samples({SQLITE: 100, FOUR: 250, ProcessGroup(1, 8): 400}))

    assert report.endswith("missed by 1.0")
