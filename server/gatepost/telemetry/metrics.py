"""Count events in one process."""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat

from gatepost.telemetry.metric_families import (
    APPROVALS_DECIDED,
    FAMILIES,
    LIMITED,
    OFFER_CALLS,
    OTHER,
    REASONS,
    REFUSALS,
    REQUEST_SECONDS,
    REQUESTS,
    STARTED,
    TENANT,
    TENANT_CALLS,
    TOKENS_REFUSED,
    TOOL,
    TOOL_CALLS,
    TOOL_SECONDS,
    UNKNOWN,
    UPSTREAM,
    WORKERS,
    ConfiguredLabel,
    MetricFamily,
)
from gatepost.telemetry.shared_memory import (
    INTEGER_BYTES,
    OFFSETS,
    LabelNames,
    MetricsMemory,
    SharedMetrics,
)
from gatepost_authz.reasons import LABEL_OF

NANOSECONDS = 1_000_000_000
MAX_REMEMBERED = 4096
"""The number of label combinations whose place is remembered; looking one up again costs more."""


class Meter:
    """
    Counts metrics of one process, on its event loop.

    Labels come from fixed lists or from the configuration, never from a client. Other values count
    as `unknown` or `other`.
    """

    def __init__(self, process: MetricsMemory) -> None:
        self._metrics = process
        self._names = {label.name: LabelNames(process, label) for label in (TOOL, TENANT, UPSTREAM)}
        self._layout = {family.name: self._layout_of(family) for family in FAMILIES}
        self._in_seconds = frozenset(family.name for family in FAMILIES if family.in_seconds)
        self._index = lru_cache(MAX_REMEMBERED)(self._index_of)
        # Callers decide how often a refusal happens, so these are looked up only once.
        self._refusals = {reason: self._index(REFUSALS.name, reason) for reason in REASONS}
        self._token_refusals = {
            reason: self._index(TOKENS_REFUSED.name, label)
            for reason, label in (*LABEL_OF.items(), (OTHER, OTHER))
        }
        self._tenants: frozenset[str] = frozenset()
        self.counts_tenants = False
        """Whether calls are counted by tenant."""

    @classmethod
    def unshared(cls) -> "Meter":
        """Return a meter that shares its metrics with no other process."""
        return cls(SharedMetrics().of_process(0))

    def used_metrics(self) -> list[MetricsMemory]:
        """Return the metrics of this process alone."""
        return [self._metrics]

    def start(self, *, now: float) -> None:
        """Start counting: counters continue, gauges start again."""
        for family in FAMILIES:
            if family.kind == "gauge":
                start = OFFSETS[family.name]
                zeros = memoryview(bytes(INTEGER_BYTES * family.size)).cast("Q")
                self._metrics[start : start + family.size] = zeros
        self.set(WORKERS, 1)
        self.set(STARTED, now)
        self._metrics[0] = os.getpid()

    def set_label_values(
        self,
        tools: Iterable[str],
        tenants: Iterable[str] | None,
        upstreams: Iterable[str] = (),
    ) -> None:
        """
        Set the names that may be labels; with *tenants* None, calls are not counted by tenant.
        """
        self.counts_tenants = tenants is not None
        self._tenants = frozenset(tenants or ())
        self._names[TOOL.name].add(sorted(tools))
        self._names[TENANT.name].add(sorted(self._tenants))
        self._names[UPSTREAM.name].add(sorted(set(upstreams)))
        self._index.cache_clear()

    def called(self, kind: str, name: str | None, outcome: str, *seconds: float) -> None:
        """
        Count calls with this outcome and their durations in seconds.

        *kind* as in `Call.kind`, *name* is the tool's own, or None if there is none of that name;
        *outcome* is "success", a failure's kind, or another of OUTCOMES.
        """
        if kind != "tool":
            self._metrics[self._index(OFFER_CALLS.name, kind, outcome)] += len(seconds)
            return
        tool = UNKNOWN if name is None else name
        self._metrics[self._index(TOOL_CALLS.name, tool, outcome)] += len(seconds)
        self._observe_all(TOOL_SECONDS, seconds, tool)

    def called_for(self, tenant: str, outcome: str, calls: int = 1) -> None:
        """Count tool calls of this tenant, if calls are counted by tenant."""
        if self.counts_tenants:
            label = tenant if tenant in self._tenants else OTHER
            self.inc(TENANT_CALLS, calls, label, outcome)

    def answered(self, route: str, status: int, *seconds: float) -> None:
        """
        Count HTTP requests and their durations in seconds.

        *route* is of ROUTES, *status* 0 if the client had disconnected.
        """
        status_class = f"{status // 100}xx" if 200 <= status < 600 else "none"
        self._metrics[self._index(REQUESTS.name, route, status_class)] += len(seconds)
        self._observe_all(REQUEST_SECONDS, seconds, route)

    def refused(self, reason: str) -> None:
        """Count a refused request; *reason* is one of REASONS."""
        self._metrics[self._refusals.get(reason, self._refusals[OTHER])] += 1

    def refused_token(self, reason: str) -> None:
        """Count a refused token; *reason* is that of the `AuthError`."""
        self._metrics[self._token_refusals.get(reason, self._token_refusals[OTHER])] += 1

    def limited(self, limit: str) -> None:
        """Count a call that a limit refused (`caller`, `tenant`, `tool`, `concurrency`, …)."""
        self.inc(LIMITED, 1, limit)

    def decided(self, result: str) -> None:
        """Count a closed approval request: `approved`, `rejected`, `expired`, …"""
        self.inc(APPROVALS_DECIDED, 1, result)

    def inc(self, family: MetricFamily, amount: float, *labels: str) -> None:
        """Increase a counter or a gauge, by seconds if the family counts seconds."""
        self._metrics[self._index(family.name, *labels)] += self._stored(family, amount)

    def set(self, family: MetricFamily, amount: float, *labels: str) -> None:
        """Set a gauge."""
        self._metrics[self._index(family.name, *labels)] = max(self._stored(family, amount), 0)

    def observe(self, family: MetricFamily, seconds: float, *labels: str) -> None:
        """Add one observation to a histogram."""
        start, seconds = self._index(family.name, *labels), max(seconds, 0.0)
        self._metrics[start + bisect_left(family.buckets, seconds)] += 1
        self._metrics[start + len(family.buckets) + 1] += int(seconds * NANOSECONDS)

    def _stored(self, family: MetricFamily, amount: float) -> int:
        return int(amount * NANOSECONDS) if family.name in self._in_seconds else int(amount)

    def _observe_all(self, family: MetricFamily, seconds: Sequence[float], *labels: str) -> None:
        start = self._index(family.name, *labels)
        for bucket, number in Counter(map(bisect_left, repeat(family.buckets), seconds)).items():
            self._metrics[start + bucket] += number
        self._metrics[start + len(family.buckets) + 1] += int(sum(seconds) * NANOSECONDS)

    def _layout_of(self, family: MetricFamily) -> tuple[int, list[tuple[Mapping[str, int], int]]]:
        """Return the family's first index, and for each label its values' numbers and stride."""
        strides: list[tuple[Mapping[str, int], int]] = []
        stride = family.width
        for label in reversed(family.labels):
            if isinstance(label, ConfiguredLabel):
                strides.append((self._names[label.name].numbers, stride))
            else:
                strides.append(({value: n for n, value in enumerate(label.values)}, stride))
            stride *= label.size
        return OFFSETS[family.name], strides[::-1]

    def _index_of(self, family: str, *values: str) -> int:
        """Return the index of the first integer for these values of the family's labels."""
        index, labels = self._layout[family]
        for (numbers, stride), value in zip(labels, values, strict=True):
            index += numbers[value if value in numbers else OTHER] * stride
        return index


class Growth:
    """Turns an externally counted number into increments of a counter."""

    def __init__(self, before: float = 0) -> None:
        self._before = before

    def since(self, now: float) -> float:
        """Return the growth since the last call; a number that was reset has grown from 0."""
        grown = now - self._before if now >= self._before else now
        self._before = now
        return grown
