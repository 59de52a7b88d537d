"""The report about growth."""

import pytest

from bench.flat import FLOOR, FULL, FlatResults, FlatSample, FlatStep, render, steps
from bench.history import PageCost


def sample(name: str, size: int, cpu_us: float, failed: int = 0) -> FlatSample:
    return FlatSample(
        FlatStep(name, size), cpu_us, rate=1_000, p99_us=2_000, failed=failed, resident=100 << 20
    )


def test_each_size_is_compared_with_the_first() -> None:
    """The ratio uses the lowest CPU time of the rounds; failed calls are reported."""
    rows = [("tools", 0, 50), ("tools", 5, 100), ("tools", 100, 108), ("tools", 1_000, 120)]
    samples = [sample(*row) for row in rows] + [sample("tools", 1_000, 190, failed=3)]
    _, _, _, first, some, most = render(FlatResults(samples, [])).splitlines()

    assert first.split() == ["5", "tools", "100", "2.00", "1.00", "2.0", "100", "20,000"]
    assert some.split()[2:5] == ["108", "2.16", "1.08"]
    assert some.endswith("1.1: met")
    assert "3 calls failed" in most
    assert most.endswith("1.1: missed by 0.10")


def test_the_report_has_the_number_of_cached_tokens() -> None:
    """It is the default, or the number of tokens that are sent if that is larger."""
    samples = [sample("tokens", size, 100) for size in (0, 1, 100_000)]
    *_, few, many = render(FlatResults(samples, [])).splitlines()

    assert few.split()[7] == "20,000"
    assert many.split()[7] == "100,000"


def test_the_report_has_both_targets_for_tenants() -> None:
    """One target is missed, and the wider target is met."""
    samples = [sample("tenants", size, cpu) for size, cpu in ((0, 50), (1, 100), (1_000, 125))]

    assert render(FlatResults(samples, [])).endswith("1.1: missed by 0.15, 1.3: met")


def test_pages_are_compared_with_a_time_limit() -> None:
    """For other rows the report shows only the growth."""
    pages = [
        PageCost("usage", 1_000_000, 40.0, limited=True),
        PageCost("audit", 1_000_000, 140.0, limited=True),
        PageCost("audit verify", 1_000_000, 9_000.0, limited=False),
    ]
    *_, usage, audit, verify = render(FlatResults([], pages)).splitlines()

    assert usage.endswith("100: met")
    assert audit.endswith("100: missed by 40")
    assert verify.split() == ["1,000,000", "records", "audit", "verify", "9000.0"]


def test_a_full_run_has_the_largest_sizes() -> None:
    """Each row varies one thing; an unknown row is refused."""
    usual, full = steps(full=False), steps(full=True)

    assert {name: row[-1].size for name, row in full.items() if name in FULL} == FULL
    assert all(row[0] == full[name][0] for name, row in usual.items())
    assert [(size.tenants, size.tokens) for size in full["tenants"]][-1] == (10_000, 10_000)
    assert [(size.tenants, size.tokens) for size in full["tokens"]][-1] == (1, 100_000)
    assert FlatStep(FLOOR, 3).is_floor
    with pytest.raises(ValueError, match="nothing"):
        steps(full=False, only=["nothing"])
