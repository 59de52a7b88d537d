"""The numbers as prometheus_client writes them."""

import platform
from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gatepost.telemetry.cells import Board, Value, gathered
from gatepost.telemetry.family import BUILD, FAMILIES, Family

NANOSECOND = 1e-9


class Numbers(Collector):
    """Reads the board whenever somebody asks; safe in any thread."""

    def __init__(self, board: Board, *, version: str) -> None:
        self._board = board
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """Every family with what was counted so far."""
        for family in FAMILIES:
            yield metric_of(family, self._board)
        info = InfoMetricFamily(BUILD.name.removesuffix("_info"), BUILD.meaning)
        info.add_metric([], {"version": self._version, "python": platform.python_version()})
        yield info


def registry_of(board: Board, *, version: str) -> CollectorRegistry:
    """A registry with these numbers and nothing else."""
    registry = CollectorRegistry()
    registry.register(Numbers(board, version=version))
    return registry


def metric_of(family: Family, board: Board) -> Metric:
    """One family, its samples sorted by their labels."""
    values = sorted(gathered(board, family).items())
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
        for labels, counts in values:
            if isinstance(counts, list):
                buckets = cumulative(family.bounds, counts[:-1])
                histogram.add_metric(labels, buckets, counts[-1] * NANOSECOND)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.meaning, labels=family.labels)
    for labels, value in values:
        metric.add_metric(labels, shown(family, value))
    return metric


def shown(family: Family, value: Value) -> float:
    """A cell's number in the family's unit."""
    number = value if isinstance(value, int) else 0
    return number * NANOSECOND if family.in_seconds else number


def cumulative(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    """Each bucket with all below it, as the format wants them."""
    total = 0
    buckets = []
    for bound, count in zip((*map(float, bounds), float("inf")), counts, strict=True):
        total += count
        buckets.append((("+Inf" if bound == float("inf") else repr(bound)), float(total)))
    return buckets
