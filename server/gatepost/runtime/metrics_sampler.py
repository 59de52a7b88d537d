"""Sample metrics periodically that are not counted as events."""

import asyncio
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Sized
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from gatepost.audit.writer import AuditWriter
from gatepost.background import during
from gatepost.runtime.approvals import ApprovalServices
from gatepost.runtime.exporter import Exporter
from gatepost.runtime.stores import Watch
from gatepost.runtime.upstream_loading import UpstreamLoader
from gatepost.runtime.watchdog import Watchdog
from gatepost.telemetry import metric_families
from gatepost.telemetry.access import AccessLog
from gatepost.telemetry.metric_families import MetricFamily
from gatepost.telemetry.metrics import Growth, Meter
from gatepost.tools.calls.redaction import Redaction
from gatepost_authz.issuer_key_sets import USABLE, IssuerKeySets
from gatepost_authz.issuers import TrustedIssuer

EVERY_S = 0.5
SELDOM = 10
"""Ticks between two ticks of stores, issuers and the process."""
STATM, FILES = Path("/proc/self/statm"), Path("/proc/self/fd")
PAGE_BYTES = resource.getpagesize()


class Gauge(msgspec.Struct, frozen=True):
    """A metric with a current value."""

    family: MetricFamily
    read: Callable[[], float]


class Counter(msgspec.Struct, frozen=True):
    """A metric that only grows and is counted elsewhere."""

    family: MetricFamily
    read: Callable[[], float]
    values: tuple[str, ...] = ()
    growth: Growth = msgspec.field(default_factory=Growth)


class Issuers(Protocol):
    """The issuers of the current configuration."""

    @property
    def issuers(self) -> Sequence[TrustedIssuer]: ...


class SampledParts(Protocol):
    """The parts of the server that are sampled."""

    @property
    def meter(self) -> Meter: ...
    @property
    def task_runner(self) -> Sized: ...
    @property
    def streams(self) -> Sized: ...
    @property
    def keys(self) -> IssuerKeySets: ...
    @property
    def issuers(self) -> Issuers: ...
    @property
    def watch(self) -> Watch: ...
    @property
    def redaction(self) -> Redaction: ...
    @property
    def log(self) -> AccessLog: ...
    @property
    def audit_writer(self) -> AuditWriter: ...
    @property
    def approval_services(self) -> ApprovalServices: ...
    @property
    def exporter(self) -> Exporter: ...
    @property
    def upstreams(self) -> UpstreamLoader: ...


class Sample(Protocol):
    """Reads values into the meter; must be fast."""

    async def __call__(self, meter: Meter) -> None: ...


class MetricsSampler:
    """Update the meter from *gauges*, *counters* and, less often, *samples*."""

    def __init__(
        self,
        meter: Meter,
        *,
        gauges: Iterable[Gauge] = (),
        counters: Iterable[Counter] = (),
        samples: Iterable[Sample] = (),
    ) -> None:
        self._meter = meter
        self._gauges, self._counters = tuple(gauges), tuple(counters)
        self._samples = (ProcessMetrics(), *samples)

    async def run(self) -> None:
        """Sample until cancelled."""
        loop = asyncio.get_running_loop()
        ticks = 0
        while True:
            await self.sample(seldom=ticks % SELDOM == 0)
            ticks += 1
            planned_at = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._meter.observe(metric_families.LAG, max(loop.time() - planned_at, 0.0))

    async def sample(self, *, seldom: bool = True) -> None:
        """Sample once."""
        for gauge in self._gauges:
            self._meter.set(gauge.family, gauge.read())
        for counter in self._counters:
            self._meter.inc(counter.family, counter.growth.since(counter.read()), *counter.values)
        if seldom:
            for sample in self._samples:
                await sample(self._meter)


class ProcessMetrics:
    """CPU time, memory and open files of this process."""

    def __init__(self) -> None:
        self._cpu = Growth()

    async def __call__(self, meter: Meter) -> None:
        """Update the meter."""
        meter.inc(metric_families.PROCESS_SECONDS, self._cpu.since(time.process_time()))
        meter.set(metric_families.RESIDENT, resident_bytes())
        meter.set(metric_families.OPEN_FILES, open_files())


def resident_bytes() -> int:
    """Return the memory in use, or its maximum if the system does not report it."""
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * PAGE_BYTES
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def open_files() -> int:
    """Return the number of open file descriptors, or 0 if the system does not report it."""
    try:
        return len(os.listdir(FILES))
    except OSError:
        return 0


class StoreMetrics:
    """Which stores answer, and how often one failed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._unreachable: set[str] = set()

    async def __call__(self, meter: Meter) -> None:
        """Update the meter."""
        for store, state in (await self._watch.states()).items():
            meter.set(metric_families.STORE_UP, state == "ok", store)
            if state == "ok":
                self._unreachable.discard(store)
            elif store not in self._unreachable:
                self._unreachable.add(store)
                meter.inc(metric_families.OUTAGES, 1, store)


class IssuerKeyMetrics:
    """Which issuers have usable keys, and how old the keys are."""

    def __init__(self, keys: IssuerKeySets, issuers: Callable[[], Sequence[TrustedIssuer]]) -> None:
        self._keys = keys
        self._issuers = issuers

    async def __call__(self, meter: Meter) -> None:
        """Update the meter."""
        states = [self._keys.state_of(issuer) for issuer in self._issuers()]
        usable = sum(state in USABLE for state in states)
        meter.set(metric_families.ISSUERS, usable, "ready")
        meter.set(metric_families.ISSUERS, len(states) - usable, "waiting")
        meter.set(metric_families.KEY_AGE, self._keys.oldest_s())


def sampler_of(parts: SampledParts) -> MetricsSampler:
    """Return the sampler for `/metrics`; parts that a reload replaces are looked up each time."""
    approvals = parts.approval_services.service
    webhook_messages = parts.approval_services.outbox.counts
    return MetricsSampler(
        parts.meter,
        gauges=[
            Gauge(metric_families.TASKS, lambda: len(parts.task_runner)),
            Gauge(metric_families.APPROVALS_WAITING, lambda: approvals.waiting_calls),
            Gauge(metric_families.AUDIT_QUEUE, lambda: len(parts.audit_writer)),
            Gauge(metric_families.STREAMS, lambda: len(parts.streams)),
        ],
        counters=[
            Counter(metric_families.REDACTIONS, lambda: parts.redaction.redacted_outcomes),
            Counter(metric_families.LINES_DROPPED, lambda: parts.log.dropped),
            Counter(metric_families.EXPORT_DROPPED, lambda: parts.exporter.dropped[0], ("traces",)),
            Counter(metric_families.EXPORT_DROPPED, lambda: parts.exporter.dropped[1], ("logs",)),
            *(
                Counter(
                    metric_families.WEBHOOK_MESSAGES,
                    partial(webhook_messages.__getitem__, outcome),
                    (outcome,),
                )
                for outcome in webhook_messages
            ),
            Counter(metric_families.KEY_FETCHES, lambda: parts.keys.fetched, ("fetched",)),
            Counter(metric_families.KEY_FETCHES, lambda: parts.keys.failed, ("failed",)),
        ],
        samples=[
            StoreMetrics(parts.watch),
            IssuerKeyMetrics(parts.keys, lambda: parts.issuers.issuers),
            parts.upstreams.sample,
        ],
    )


@asynccontextmanager
async def sampling_metrics(sampler: MetricsSampler) -> AsyncIterator[None]:
    """Sample during a block, and log a blocked event loop."""
    with Watchdog().watching():
        async with during("metrics", sampler.run):
            yield
