"""Serve `GET /metrics` as an ASGI app without authentication, on its own address."""

import asyncio
import platform
import time
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.types import Receive, Scope, Send

from gatepost.telemetry.access import COLLECTED_S
from gatepost.telemetry.metric_families import BUILD, FAMILIES, MetricFamily
from gatepost.telemetry.shared_memory import SharedMetrics, totals_of

CACHED_S = 0.2
"""The time in seconds for which a response is reused, which bounds the cost of frequent scrapes."""
TYPED_ADDRESS = b"none"
"""The `Sec-Fetch-Site` value of an address that the user typed."""

OPENMETRICS, PLAIN_TEXT = "application/openmetrics-text", "text/plain"
FORMATS: dict[str, tuple[str, Callable[[CollectorRegistry], bytes]]] = {
    OPENMETRICS: (
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        openmetrics.generate_latest,
    ),
    PLAIN_TEXT: (CONTENT_TYPE_PLAIN_0_0_4, generate_latest),
}

NANOSECOND = 1e-9

PageHeaders = tuple[tuple[bytes, bytes], ...]


class Exposition:
    """
    Answers `GET /metrics` in the requested format, and `GET /health`.

    Requests that a page of another site causes in a browser are refused, because the address may be
    reachable only from the browser's machine.
    """

    def __init__(
        self, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._pages: dict[str, tuple[float, bytes]] = {}
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, body, headers = await self._answer(scope)
        start: list[tuple[bytes, bytes]] = [
            *headers,
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": start})
        body = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope) -> tuple[int, bytes, PageHeaders]:
        headers = dict(scope["headers"])
        if b"origin" in headers or headers.get(b"sec-fetch-site", TYPED_ADDRESS) != TYPED_ADDRESS:
            return 403, b"Pages of other sites may not read this.\n", TEXT
        if scope["path"] not in ("/metrics", "/health"):
            return 404, b"Only /metrics and /health are served here.\n", TEXT
        if scope["method"] not in ("GET", "HEAD"):
            return 405, b"Only GET and HEAD are served here.\n", ((b"allow", b"GET, HEAD"), *TEXT)
        if scope["path"] == "/health":
            return 200, b"ok\n", TEXT
        return 200, *await self._metrics(headers.get(b"accept", b"").decode("latin-1"))

    async def _metrics(self, accept: str) -> tuple[bytes, PageHeaders]:
        # The library's own choice is not used, because it repeats what the client wrote, and may
        # fail at it.
        kind = OPENMETRICS if OPENMETRICS in accept else PLAIN_TEXT
        async with self._making:
            cached = self._pages.get(kind)
            if cached is None or self._clock() - cached[0] >= CACHED_S:
                # The response includes everything that ended before the scrape, in any worker.
                await asyncio.sleep(2 * COLLECTED_S)
                cached = self._pages[kind] = self._clock(), FORMATS[kind][1](self._registry)
        return cached[1], ((b"content-type", FORMATS[kind][0].encode()),)


TEXT: PageHeaders = ((b"content-type", b"text/plain; charset=utf-8"),)


def registry_of(metrics: SharedMetrics, *, version: str) -> CollectorRegistry:
    """Return a registry with the metrics of all processes, and no others."""
    registry = CollectorRegistry()
    registry.register(SharedMetricsCollector(metrics, version=version))
    return registry


class SharedMetricsCollector(Collector):
    """Reads the shared memory at every scrape; safe in any thread."""

    def __init__(self, metrics: SharedMetrics, *, version: str) -> None:
        self._metrics = metrics
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """Return every family with its current values."""
        for family in FAMILIES:
            yield metric_of(family, self._metrics)
        info = InfoMetricFamily(BUILD.name.removesuffix("_info"), BUILD.help)
        info.add_metric([], {"version": self._version, "python": platform.python_version()})
        yield info


def metric_of(family: MetricFamily, metrics: SharedMetrics) -> Metric:
    """Return one family with its samples sorted by label."""
    totals = sorted(totals_of(family, metrics).items())
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.label_names)
        bounds = [*(repr(float(bound)) for bound in family.buckets), "+Inf"]
        for values, (*counts, nanoseconds) in totals:
            cumulative = [*zip(bounds, map(float, accumulate(counts)), strict=True)]
            histogram.add_metric(values, cumulative, nanoseconds * NANOSECOND)
        return histogram
    unit = NANOSECOND if family.in_seconds else 1
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.label_names)
    for values, (amount,) in totals:
        metric.add_metric(values, amount * unit)
    return metric
