"""
Store a report of each serving process for the operators' page.

A process writes its report every 15 seconds and removes it when it stops. Other processes of any
replica read it. Nothing is written unless an issuer gives the role `operator`.
"""

import asyncio
import contextlib
import os
import random
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Sized
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from gatepost.background import during
from gatepost.policy.revocation.watch import Revocations
from gatepost.runtime.readiness import missing
from gatepost.runtime.stores import StoreState, Watch
from gatepost.runtime.version import version
from gatepost.storage.entries import Entries
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.telemetry.metric_families import REFUSALS, TOKENS_REFUSED, TOOL_SECONDS, MetricFamily
from gatepost.telemetry.metrics import Meter
from gatepost.telemetry.shared_memory import totals_of
from gatepost_authz.check import OPERATOR
from gatepost_authz.issuer_key_sets import IssuerKeySets
from gatepost_authz.issuers import IssuerRegistry

DEPLOYMENT = "-"
"""The tenant of data that all tenants share; no real tenant has this id."""
SUBJECT = "processes"
EVERY_S, STARTING_S = 15.0, 3.0
"""Seconds between two reports: of a process that can serve, and of one that cannot yet."""
OUTDATED_S = 3 * EVERY_S
KEPT_S = 600.0
"""How long the report of a process is kept that ended without removing it."""
CLOSING_S = 2.0
MAX_ISSUERS, MAX_TOOLS = 100, 50
"""Maximum number of entries of one report; of the tools, those that took the most time."""
MAX_REPORTS = 200
BOUNDS_S = TOOL_SECONDS.buckets
"""The bounds of the buckets in `ToolTimes.counts`, in seconds; the last bucket has none."""
RANDOM = random.SystemRandom()


class ReportedKeys(msgspec.Struct, frozen=True):
    """The keys of an issuer, as one process has them."""

    issuer: str
    state: str
    """As in `/readyz`."""
    age_s: float | None
    """Seconds since they were fetched; None if the process has none."""


class ToolTimes(msgspec.Struct, frozen=True):
    """How long the calls of a tool took, since the process started."""

    tool: str
    counts: tuple[int, ...]
    """The calls in each bucket; all buckets but the last have a bound in `BOUNDS_S`."""
    seconds: float
    """The time of all calls together."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one process; times are seconds since the epoch."""

    process: str
    """A random id."""
    host: str
    pid: int
    version: str
    started_at: float
    written_at: float
    missing: tuple[str, ...] = ()
    """The reasons why it cannot serve, as in `/readyz`."""
    leaving: bool = False
    stores: dict[str, StoreState] = {}
    streams: int = 0
    """The number of open streams."""
    issuers: tuple[ReportedKeys, ...] = ()
    refusals: dict[str, int] = {}
    """Refused requests by reason, since the process started."""
    tokens: dict[str, int] = {}
    """Refused tokens by reason."""
    tools: tuple[ToolTimes, ...] = ()


class ReportedParts(Protocol):
    """The parts of the server that a report is about."""

    meter: Meter
    watch: Watch
    revocations: Revocations
    keys: IssuerKeySets
    issuers: IssuerRegistry
    leaving: bool

    @property
    def records(self) -> Records: ...
    @property
    def streams(self) -> Sized: ...


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ProcessReport).decode


def has_operators(issuers: IssuerRegistry) -> bool:
    """Return whether an issuer gives people of its dashboard the role `operator`."""
    settings = [issuer.settings for issuer in issuers.issuers]
    return any(issuer.dashboard is not None and OPERATOR in issuer.roles for issuer in settings)


class ProcessReporter:
    """Write the report of this process."""

    def __init__(self, parts: ReportedParts, *, clock: Callable[[], float] = time.time) -> None:
        self._parts, self._clock = parts, clock
        self._process, self._started_at = secrets.token_hex(8), clock()
        self._is_written = False

    async def write(self) -> bool:
        """
        Write the current report, if there is an operator to read it.

        Return whether it can wait for the next one: the process can serve, or there is none to
        write. Raises StoreUnavailable.
        """
        if not has_operators(self._parts.issuers):
            return True
        now, report = self._clock(), await self.report()
        await _stored(self._parts.records).put(
            self._process, _encode(report), now=now, expires_at=now + KEPT_S
        )
        self._is_written = True
        return not report.missing

    async def remove(self) -> None:
        """Remove the report; raises StoreUnavailable."""
        if self._is_written:
            await _stored(self._parts.records).delete(self._process)

    async def report(self) -> ProcessReport:
        """Return the current report."""
        parts, issuers = self._parts, self._parts.issuers.issuers
        stores = await parts.watch.states()
        keys = tuple(
            ReportedKeys(
                trusted.settings.issuer, parts.keys.state_of(trusted), parts.keys.age_of(trusted)
            )
            for trusted in issuers
        )
        return ProcessReport(
            process=self._process,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version(),
            started_at=self._started_at,
            written_at=self._clock(),
            missing=tuple(
                missing(
                    stores,
                    knows_revocations=parts.revocations.is_ready,
                    issuers=[key.state for key in keys],
                )
            ),
            leaving=parts.leaving,
            stores=dict(stores),
            streams=len(parts.streams),
            issuers=keys[:MAX_ISSUERS],
            refusals=_by_reason(REFUSALS, parts.meter),
            tokens=_by_reason(TOKENS_REFUSED, parts.meter),
            tools=tool_times(parts.meter),
        )

    async def always(self) -> None:
        """Write the report again and again."""
        while True:
            is_ready = False
            with contextlib.suppress(StoreUnavailable):  # the stores log that themselves
                is_ready = await self.write()
            # Random, so that replicas do not write at the same moment.
            await asyncio.sleep((EVERY_S if is_ready else STARTING_S) * RANDOM.uniform(0.8, 1.0))


def tool_times(meter: Meter) -> tuple[ToolTimes, ...]:
    """Return the tools of this process that took the most time, the slowest first."""
    times = [
        ToolTimes(tool, tuple(counts), nanoseconds / 1e9)
        for (tool,), (*counts, nanoseconds) in totals_of(TOOL_SECONDS, meter).items()
    ]
    return tuple(sorted(times, key=lambda time: -time.seconds)[:MAX_TOOLS])


@asynccontextmanager
async def reporting(parts: ReportedParts) -> AsyncIterator[None]:
    """Write the report of this process during a block, and remove it at its end."""
    reporter = ProcessReporter(parts)
    try:
        async with during("process report", reporter.always):
            yield
    finally:
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                await reporter.remove()


async def reports(records: Records, now: float) -> list[ProcessReport]:
    """Return the reports of all processes by host and start; raises StoreUnavailable."""
    # Expired reports stay stored for a while. The limit applies after removing them, and keeps the
    # newest reports, so that killed processes do not hide a serving one.
    current = [entry for entry in await _stored(records).all() if (entry.expires_at or 0.0) > now]
    newest = sorted(current, key=lambda entry: -(entry.expires_at or 0.0))[:MAX_REPORTS]
    read_reports = [report for entry in newest if (report := _read(entry.value)) is not None]
    return sorted(read_reports, key=lambda report: (report.host, report.started_at, report.process))


def added(counts_of_processes: Sequence[Mapping[str, int]]) -> list[tuple[str, int]]:
    """Return the sum of each count, the highest first."""
    totals = Counter[str]()
    for counts in counts_of_processes:
        totals.update(counts)
    return sorted(totals.items(), key=lambda total: (-total[1], total[0]))


def _by_reason(family: MetricFamily, meter: Meter) -> dict[str, int]:
    return {reason: number for (reason,), (number,) in totals_of(family, meter).items()}


def _stored(records: Records) -> Entries:
    return records.for_tenant(DEPLOYMENT).entries(SUBJECT)


def _read(value: bytes) -> ProcessReport | None:
    try:
        return _decode(value)
    except msgspec.DecodeError:
        return None  # written by another version, which may run at the same time
