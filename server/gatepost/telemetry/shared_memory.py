"""Keep the metrics of all processes in shared memory, so that any process can report all."""

import mmap
from collections.abc import Callable, Iterable
from itertools import product
from operator import add
from typing import Protocol

from gatepost.telemetry.metric_families import (
    FAMILIES,
    OTHER,
    UNKNOWN,
    ConfiguredLabel,
    MetricFamily,
    MetricLabel,
)

INTEGER_BYTES = 8
NAME_BYTES = 64
"""The maximum length of a tool's name or a tenant's id in bytes."""

OFFSETS: dict[str, int] = {}
"""The index of the first integer of each family in the metrics of a process."""
NAME_OFFSETS: dict[str, int] = {}
"""The index of the values of each configured label; the first integer is their number."""


def _lay_out() -> int:
    """Fill OFFSETS and NAME_OFFSETS, and return the number of integers of a process."""
    end = 1  # the first integer is the id of the process, or 0 if there was none
    for family in FAMILIES:
        OFFSETS[family.name] = end
        end += family.size
        for label in family.labels:
            if isinstance(label, ConfiguredLabel) and label.name not in NAME_OFFSETS:
                NAME_OFFSETS[label.name] = end
                end += 1 + label.max_values * NAME_BYTES // INTEGER_BYTES
    return end


METRICS_SIZE = _lay_out()

COMBINED: dict[str, Callable[[int, int], int]] = {"sum": add, "max": max, "min": min}

MetricsMemory = memoryview
"""
The metrics of one process: unsigned 64-bit integers, each of which is written and read atomically.
"""


class UsedMetrics(Protocol):
    """The metrics of one process or of several."""

    def used_metrics(self) -> list[MetricsMemory]:
        """Return the metrics of the processes."""


class SharedMetrics:
    """
    Memory for the metrics of several processes, created before they are forked.

    The counts of a process remain when it dies, and its replacement continues from them, so that a
    counter never decreases.
    """

    def __init__(self, processes: int = 1) -> None:
        self._integers = memoryview(mmap.mmap(-1, processes * METRICS_SIZE * INTEGER_BYTES)).cast(
            "Q"
        )
        self._processes = [
            self._integers[number * METRICS_SIZE : (number + 1) * METRICS_SIZE]
            for number in range(processes)
        ]

    def of_process(self, number: int) -> MetricsMemory:
        """
        Return the metrics of one process; only that process writes them, each from one thread.
        """
        return self._processes[number]

    def used_metrics(self) -> list[MetricsMemory]:
        """Return the metrics of all processes that have ever counted."""
        return [process for process in self._processes if process[0]]


class LabelNames:
    """
    The values of one configured label in a process, in the order in which they were added.

    They are stored with the counts, so that readers and the next process find them.
    """

    def __init__(self, process: MetricsMemory, label: ConfiguredLabel) -> None:
        self._max_values = label.max_values
        start = NAME_OFFSETS[label.name]
        self._count = process[start : start + 1]
        self._bytes = process[
            start + 1 : start + 1 + label.max_values * NAME_BYTES // INTEGER_BYTES
        ].cast("B")
        self.numbers = {name: number for number, name in enumerate(self.read())}
        """The number of each value."""

    def read(self) -> list[str]:
        """Return all values in the order of their numbers."""
        names = (
            bytes(self._bytes[at * NAME_BYTES : (at + 1) * NAME_BYTES]).rstrip(b"\0").decode()
            for at in range(self._count[0])
        )
        return [UNKNOWN, OTHER, *names]

    def add(self, names: Iterable[str]) -> None:
        """Add names while there is room; names are never removed."""
        for name in names:
            encoded = name.encode()
            at = self._count[0]
            if name in self.numbers or at >= self._max_values or len(encoded) > NAME_BYTES:
                continue
            self._bytes[at * NAME_BYTES : (at + 1) * NAME_BYTES] = encoded.ljust(NAME_BYTES, b"\0")
            self._count[0] = at + 1  # last, so that a concurrent reader never reads half a name
            self.numbers[name] = at + 2


def values_of(process: MetricsMemory, label: MetricLabel) -> list[str]:
    """Return the values of a label that a process can have counted, in order."""
    return (
        LabelNames(process, label).read() if isinstance(label, ConfiguredLabel) else [*label.values]
    )


def totals_of(family: MetricFamily, metrics: UsedMetrics) -> dict[tuple[str, ...], list[int]]:
    """Return the integers of a family over all processes, for each used combination of labels."""
    combine = COMBINED[family.aggregation]
    totals: dict[tuple[str, ...], list[int]] = {}
    for process in metrics.used_metrics():
        start = OFFSETS[family.name]
        for values in product(*(values_of(process, label) for label in family.labels)):
            counted = process[start : start + family.width].tolist()
            start += family.width
            # For a gauge, 0 is a value. A counter with labels appears once it has counted.
            if any(counted) or not family.labels or family.kind == "gauge":
                before = totals.get(values)
                totals[values] = counted if before is None else [*map(combine, before, counted)]
    return totals
