"""Count the calls of upstreams and their failures for `/metrics`, by the configured names."""

from collections.abc import Callable, Mapping

from gatepost.telemetry import metric_families
from gatepost.telemetry.metrics import Growth, Meter
from gatepost.upstreams.calls.health import HealthNumbers

TenantServer = tuple[str, str]
"""A tenant and the id of its server."""


class UpstreamMetrics:
    """
    The health of all upstreams that this process has called.

    *health* returns its numbers, and *name_of* the name of a server of the configuration; the
    servers that tenants registered count together as `other`.
    """

    def __init__(
        self,
        health: Callable[[], Mapping[TenantServer, HealthNumbers]],
        clock: Callable[[], float],
        name_of: Callable[[TenantServer], str],
    ) -> None:
        self._health, self._clock, self._name_of = health, clock, name_of
        self._grown: dict[tuple[TenantServer, str], Growth] = {}
        self._labels: set[str] = set()

    async def __call__(self, meter: Meter) -> None:
        """Update the meter."""
        now = self._clock()
        is_open = dict.fromkeys(self._labels, 0)
        failing_s = dict.fromkeys(self._labels, 0.0)
        numbers = self._health()
        for key, server in numbers.items():
            label = self._name_of(key)
            self._labels.add(label)
            counts = {
                "answered": server.calls - server.failures,
                "failed": server.failures,
                "not_made": server.refused,
            }
            for result, count in counts.items():
                grown = self._grown.setdefault((key, result), Growth()).since(count)
                meter.inc(metric_families.UPSTREAM_CALLS, grown, label, result)
            is_open[label] = is_open.get(label, 0) + (server.circuit != "closed")
            since = 0.0 if server.failing_since is None else max(now - server.failing_since, 0.0)
            failing_s[label] = max(failing_s.get(label, 0.0), since)
        for label, count in is_open.items():
            meter.set(metric_families.UPSTREAM_CIRCUITS, count, label)
            meter.set(metric_families.UPSTREAM_FAILING, failing_s[label], label)
        self._grown = {key: counts for key, counts in self._grown.items() if key[0] in numbers}
