"""Spans and log records for an OpenTelemetry collector; loaded only where one is configured."""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

import httpx2
import msgspec
from opentelemetry import context as contexts
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as SdkSpan

from gatepost.stores.audit import Row
from gatepost.telemetry.delivery import TIMEOUT_S, Delivery, LogDelivery, SpanDelivery
from gatepost.telemetry.logs import details, frames, printable, scrub
from gatepost.telemetry.settings import TelemetrySettings
from gatepost.telemetry.trace import CURRENT, Context, Mark, Said, Span

QUEUE, BATCH, EVERY_MS = 4096, 512, 1000
CLOSING_S = 3.0
OWN = ("opentelemetry", "gatepost.otlp", "httpx2", "httpcore2")
"""Loggers whose events are about sending events."""
MOST_CHARACTERS = 1000

KINDS: Mapping[str, SpanKind] = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
SEVERITIES = {
    "DEBUG": SeverityNumber.DEBUG,
    "INFO": SeverityNumber.INFO,
    "WARNING": SeverityNumber.WARN,
    "ERROR": SeverityNumber.ERROR,
    "CRITICAL": SeverityNumber.FATAL,
}
DICE = random.SystemRandom()
"""Not the generator that everybody shares: who knows its state would know ids beforehand."""


class Ids(IdGenerator):
    """Ids that nobody can guess."""

    def generate_span_id(self) -> int:
        """See `IdGenerator`."""
        return DICE.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        """See `IdGenerator`."""
        return DICE.getrandbits(128) or 1


class Work(msgspec.Struct, frozen=True):
    """See `Span`."""

    span: SdkSpan

    def say(self, name: str, value: str | int) -> None:
        """See `Span`."""
        if self.span.is_recording():
            self.span.set_attribute(name, value)

    def failed(self, kind: str) -> None:
        """See `Span`."""
        if self.span.is_recording():
            self.span.set_attribute("error.type", kind)
            self.span.set_status(Status(StatusCode.ERROR))


class OtelTracer:
    """See `Tracer`."""

    def __init__(self, provider: TracerProvider, *, trusts: bool) -> None:
        self._tracer = provider.get_tracer("gatepost")
        self._trusts = trusts

    def span(
        self,
        name: str,
        kind: Literal["server", "internal"],
        *,
        callers: Sequence[Context | None] = (),
        said: Said | None = None,
    ) -> "Block":
        """See `Tracer`."""
        theirs = [remote(one, trusted=self._trusts) for one in callers if one is not None]
        parent = contexts.Context() if kind == "server" else None
        shared = bool(theirs)
        if self._trusts and theirs:
            parent = set_span_in_context(NonRecordingSpan(theirs.pop(0)), contexts.Context())
        span = self._tracer.start_span(
            name,
            context=parent,
            kind=KINDS[kind],
            attributes=dict(said or {}),
            links=[Link(one) for one in theirs],
            record_exception=False,
            set_status_on_exception=False,
        )
        return Block(Work(span), shared=shared)


class Block:
    """The time of one span, within one task."""

    def __init__(self, work: Work, *, shared: bool) -> None:
        self._work = work
        outer = CURRENT.get()
        self._mark = mark_of(work, shared or (outer is not None and outer.shared))

    def __enter__(self) -> Span:
        self._here = CURRENT.set(self._mark)
        self._token = contexts.attach(set_span_in_context(self._work.span))
        return self._work

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            # Its class, or the code that the wire has; what it says may quote anybody.
            self._work.failed(str(getattr(error, "code", None) or type(error).__name__))
        contexts.detach(self._token)
        CURRENT.reset(self._here)
        self._work.span.end()


def mark_of(work: Work, shared: bool) -> Mark:
    """The span as the rest of the code knows it."""
    own = work.span.get_span_context()
    trace_id, span_id = f"{own.trace_id:032x}", f"{own.span_id:016x}"
    return Mark(trace_id, span_id, own.trace_flags.sampled, work, shared)


def remote(caller: Context, *, trusted: bool) -> SpanContext:
    """A caller's context as the SDK takes it; what strangers add for their vendors stays out."""
    return SpanContext(
        caller.trace_id,
        caller.span_id,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if caller.sampled else TraceFlags.DEFAULT),
        trace_state=TraceState(caller.state) if trusted else None,
    )


class Events(logging.Handler):
    """Sends log events, as clean as the log itself has them."""

    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._logger = provider.get_logger("gatepost")

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`; the record goes into a queue."""
        if record.name.startswith(OWN):
            return
        said: dict[str, str] = {
            name: printable(scrub(str(value)), limit=MOST_CHARACTERS)
            for name, value in details(record).items()
        }
        if record.exc_info:
            said["exception.type"] = getattr(record.exc_info[0], "__name__", "")
            said["exception.stacktrace"] = frames(record.exc_info)[-MOST_CHARACTERS * 8 :]
        self.send(
            scrub(record.getMessage())[:MOST_CHARACTERS],
            said | {"logger.name": record.name},
            at_s=record.created,
            severity=record.levelname,
        )

    def send(
        self,
        body: str,
        said: Mapping[str, str],
        *,
        at_s: float,
        severity: str = "INFO",
        name: str = "",
    ) -> None:
        """One record, with the span that runs."""
        self._logger.emit(
            LogRecord(
                timestamp=int(at_s * 1e9),
                observed_timestamp=time.time_ns(),
                context=contexts.get_current(),
                severity_text=severity.lower(),
                severity_number=SEVERITIES.get(severity, SeverityNumber.INFO),
                body=body,
                attributes=dict(said),
                event_name=name or None,
            )
        )


class Outlet:
    """
    What goes to the collector, for one process; nothing of it waits for the collector.

    *headers* are those of the settings, resolved. What does not fit into the queues is dropped.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        headers: Mapping[str, str],
        *,
        version: str,
        tls: ssl.SSLContext,
        proxy: str = "",
    ) -> None:
        self._client = httpx2.Client(
            verify=tls, proxy=proxy or None, trust_env=False, timeout=TIMEOUT_S
        )
        self._names_tenant = settings.trace_tenant
        base = settings.otlp_endpoint.rstrip("/")
        self._spans = Delivery(self._client, f"{base}/v1/traces", headers)
        self._events = Delivery(self._client, f"{base}/v1/logs", headers)
        resource = Resource.create(
            {"service.name": settings.service_name, "service.version": version}
        )
        self._tracing = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=resource,
            shutdown_on_exit=False,
            id_generator=Ids(),
        )
        self._logging = LoggerProvider(resource, shutdown_on_exit=False)
        self.tracer: OtelTracer | None = None
        self.events: Events | None = None
        if settings.traces:
            batches = BatchSpanProcessor(SpanDelivery(self._spans), QUEUE, EVERY_MS, BATCH)
            self._tracing.add_span_processor(batches)
            self.tracer = OtelTracer(self._tracing, trusts=settings.trust_parent)
        if settings.logs:
            records = BatchLogRecordProcessor(
                LogDelivery(self._events), EVERY_MS, BATCH, None, QUEUE
            )
            self._logging.add_log_record_processor(records)
            self.events = Events(self._logging)
            logging.getLogger().addHandler(self.events)

    @property
    def dropped(self) -> tuple[int, int]:
        """Spans and log records that the collector did not take."""
        return self._spans.dropped, self._events.dropped

    def recorded(self, tenant: str, rows: Sequence[Row], /) -> None:
        """Audit records of a tenant are durable: send what stands in them, without who it was."""
        if self.events is None:
            return
        for row in rows:
            said = {"audit.kind": row.kind, "audit.number": str(row.number)}
            said |= {"gen_ai.tool.name": row.tool} if row.tool else {}
            if self._names_tenant:
                said["gatepost.tenant"] = tenant
            said["gatepost.outcome"] = row.outcome
            self.events.send("audit record", said, at_s=row.at / 1000, name="gatepost.audit")

    async def aclose(self) -> None:
        """Send what is left, within seconds, and end."""
        if self.events is not None:
            logging.getLogger().removeHandler(self.events)
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._spans.hurry(CLOSING_S)
        self._events.hurry(CLOSING_S)
        self._tracing.shutdown()
        self._logging.shutdown()
        self._client.close()
