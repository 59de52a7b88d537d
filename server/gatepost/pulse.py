"""What nobody counts when it happens: looked at now and then, for `/metrics`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Sized
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import msgspec

from gatepost.audit.journal import Journal
from gatepost.chore import during
from gatepost.counting import Decided
from gatepost.outlet import Outlet
from gatepost.reviews import Reviews
from gatepost.storage import Watch
from gatepost.telemetry import family, process
from gatepost.telemetry.access import AccessLog
from gatepost.telemetry.family import Family
from gatepost.telemetry.metrics import Growth, Meter
from gatepost.tools.redaction import Redaction
from gatepost_authz.issuers import TrustedIssuer
from gatepost_authz.jwks import Keys

EVERY_S = 0.5
SELDOM = 10
"""Beats from one look at stores, issuers and the process to the next."""


class Gauge(msgspec.Struct, frozen=True):
    """A number that is what it is at the moment."""

    family: Family
    read: Callable[[], float]


class Counter(msgspec.Struct, frozen=True):
    """A number that somebody counts; it only grows."""

    family: Family
    read: Callable[[], float]
    values: tuple[str, ...] = ()
    growth: Growth = msgspec.field(default_factory=Growth)


class Issuers(Protocol):
    """Those of the configuration in force."""

    @property
    def issuers(self) -> Sequence[TrustedIssuer]: ...


class Parts(Protocol):
    """What there is to look at."""

    @property
    def meter(self) -> Meter: ...
    @property
    def keeper(self) -> Sized: ...
    @property
    def streams(self) -> Sized: ...
    @property
    def keys(self) -> Keys: ...
    @property
    def issuers(self) -> Issuers: ...
    @property
    def watch(self) -> Watch: ...
    @property
    def redaction(self) -> Redaction: ...
    @property
    def log(self) -> AccessLog: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def reviews(self) -> Reviews: ...
    @property
    def outlet(self) -> Outlet: ...


class Look(Protocol):
    """Something that is looked at; it must not take long."""

    async def __call__(self, meter: Meter) -> None: ...


class Pulse:
    """Puts into the meter what *gauges*, *counters* and *looks* say; the looks seldom."""

    def __init__(
        self,
        meter: Meter,
        *,
        gauges: Iterable[Gauge] = (),
        counters: Iterable[Counter] = (),
        looks: Iterable[Look] = (),
    ) -> None:
        self._meter = meter
        self._gauges, self._counters = tuple(gauges), tuple(counters)
        self._looks = (Process(), *looks)

    async def beat_always(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        beats = 0
        while True:
            await self.beat(seldom=beats % SELDOM == 0)
            beats += 1
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._meter.observe(family.LAG, max(loop.time() - due, 0.0))

    async def beat(self, *, seldom: bool = True) -> None:
        """Look once."""
        for gauge in self._gauges:
            self._meter.put(gauge.family, gauge.read())
        for counter in self._counters:
            self._meter.add(counter.family, counter.growth.since(counter.read()), *counter.values)
        if seldom:
            for look in self._looks:
                await look(self._meter)


class Process:
    """What this process takes."""

    def __init__(self) -> None:
        self._cpu = Growth()

    async def __call__(self, meter: Meter) -> None:
        """See `Look`."""
        meter.add(family.PROCESS_SECONDS, self._cpu.since(process.cpu_seconds()))
        meter.put(family.RESIDENT, process.resident_bytes())
        meter.put(family.OPEN_FILES, process.open_files())


class Stores:
    """Which stores answer, and how often one stopped to."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._down: set[str] = set()

    async def __call__(self, meter: Meter) -> None:
        """See `Look`."""
        for store, state in (await self._watch.states()).items():
            meter.put(family.STORE_UP, state == "ok", store)
            if state == "ok":
                self._down.discard(store)
            elif store not in self._down:
                self._down.add(store)
                meter.add(family.OUTAGES, 1, store)


class IssuerKeys:
    """Whether issuers' tokens can be checked, and how old the keys are."""

    def __init__(self, keys: Keys, issuers: Callable[[], Sequence[TrustedIssuer]]) -> None:
        self._keys = keys
        self._issuers = issuers

    async def __call__(self, meter: Meter) -> None:
        """See `Look`."""
        states = [self._keys.state_of(one) for one in self._issuers()]
        ready = sum(state in {"ready", "asked", "template"} for state in states)
        meter.put(family.ISSUERS, ready, "ready")
        meter.put(family.ISSUERS, len(states) - ready, "waiting")
        meter.put(family.KEY_AGE, self._keys.oldest_s())


def pulse_of(parts: Parts) -> Pulse:
    """
    What is looked at for `/metrics`; parts that a reload replaces are looked up each time.

    What tells of itself is told whom to tell.
    """
    meter, desk = parts.meter, parts.reviews.desk
    told = parts.reviews.courier.done
    desk.herald.hearers.append(Decided(meter))
    parts.journal.timers.append(lambda seconds: meter.observe(family.AUDIT_SECONDS, seconds))
    return Pulse(
        parts.meter,
        gauges=[
            Gauge(family.TASKS, lambda: len(parts.keeper)),
            Gauge(family.WAITING, lambda: desk.attended),
            Gauge(family.AUDIT_QUEUE, lambda: len(parts.journal)),
            Gauge(family.STREAMS, lambda: len(parts.streams)),
        ],
        counters=[
            Counter(family.REDACTIONS, lambda: parts.redaction.found),
            Counter(family.LINES_DROPPED, lambda: parts.log.dropped),
            Counter(family.EXPORT_DROPPED, lambda: parts.outlet.dropped[0], ("traces",)),
            Counter(family.EXPORT_DROPPED, lambda: parts.outlet.dropped[1], ("logs",)),
            *(Counter(family.TOLD, partial(told.__getitem__, how), (how,)) for how in told),
            Counter(family.KEY_FETCHES, lambda: parts.keys.fetched, ("fetched",)),
            Counter(family.KEY_FETCHES, lambda: parts.keys.failed, ("failed",)),
        ],
        looks=[Stores(parts.watch), IssuerKeys(parts.keys, lambda: parts.issuers.issuers)],
    )


@asynccontextmanager
async def beating(pulse: Pulse) -> AsyncIterator[None]:
    """Let it beat for the time of a block."""
    async with during("pulse", pulse.beat_always):
        yield
