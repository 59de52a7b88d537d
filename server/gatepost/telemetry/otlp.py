"""Create spans and log records for an OpenTelemetry collector; loaded only if configured."""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from threading import Thread
from types import TracebackType
from typing import Literal, Protocol, runtime_checkable

import httpx2
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

from gatepost.config.telemetry import TelemetrySettings
from gatepost.storage.audit import AuditRow
from gatepost.telemetry.logs import details, frames, printable, scrub
from gatepost.telemetry.otlp_http import LogExporter, SpanExporter, session_of
from gatepost.telemetry.trace import CURRENT_SPAN, CurrentSpan, Span, SpanAttributes, TraceContext

QUEUE, BATCH, EVERY_MS = 4096, 512, 1000
CLOSING_S = 3.0
EXPORTER_LOGGERS = ("opentelemetry", "httpx2", "httpcore2")
"""Loggers of the exporter, whose events are not exported."""
MAX_CHARACTERS = 1000

SPAN_KINDS: Mapping[str, SpanKind] = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
SEVERITIES = {
    "DEBUG": SeverityNumber.DEBUG,
    "INFO": SeverityNumber.INFO,
    "WARNING": SeverityNumber.WARN,
    "ERROR": SeverityNumber.ERROR,
    "CRITICAL": SeverityNumber.FATAL,
}
RANDOM = random.SystemRandom()
"""A separate random generator, so that ids cannot be predicted."""


class RandomIds(IdGenerator):
    """Generates unpredictable ids."""

    def generate_span_id(self) -> int:
        """Return a new id."""
        return RANDOM.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        """Return a new id."""
        return RANDOM.getrandbits(128) or 1


@runtime_checkable
class CodedError(Protocol):
    """An error with a code of its protocol: JSON-RPC, OAuth or Gatepost's REST."""

    code: int | str | None


class OtelSpan:
    """A span of the OpenTelemetry SDK, and the block of one task that it measures."""

    def __init__(self, span: SdkSpan, *, shared: bool) -> None:
        self._span = span
        self._shared = shared

    def set_attribute(self, name: str, value: str | int) -> None:
        """Set an attribute of the span."""
        if self._span.is_recording():
            self._span.set_attribute(name, value)

    def set_error(self, kind: str) -> None:
        """Mark the span as failed."""
        if self._span.is_recording():
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR))

    def __enter__(self) -> Span:
        outer = CURRENT_SPAN.get()
        shared = self._shared or (outer is not None and outer.shared)
        span_context = self._span.get_span_context()
        trace_id, span_id = f"{span_context.trace_id:032x}", f"{span_context.span_id:016x}"
        current = CurrentSpan(trace_id, span_id, span_context.trace_flags.sampled, self, shared)
        self._outer = CURRENT_SPAN.set(current)
        self._token = contexts.attach(set_span_in_context(self._span))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            # Only its code or class: its message may contain text of a caller.
            code = error.code if isinstance(error, CodedError) else None
            self.set_error(str(code or type(error).__name__))
        contexts.detach(self._token)
        CURRENT_SPAN.reset(self._outer)
        self._span.end()


class OtelTracer:
    """Creates spans with the OpenTelemetry SDK."""

    def __init__(self, provider: TracerProvider, *, trusts_parent: bool) -> None:
        self._tracer = provider.get_tracer("gatepost")
        self._trusts_parent = trusts_parent

    def span(
        self,
        name: str,
        kind: Literal["server", "internal"],
        *,
        callers: Sequence[TraceContext | None] = (),
        attributes: SpanAttributes | None = None,
    ) -> OtelSpan:
        """Return a span that begins now; implements `Tracer`."""
        links = [
            remote(caller, trusted=self._trusts_parent) for caller in callers if caller is not None
        ]
        parent = contexts.Context() if kind == "server" else None
        shared = bool(links)
        if self._trusts_parent and links:
            parent = set_span_in_context(NonRecordingSpan(links.pop(0)), contexts.Context())
        span = self._tracer.start_span(
            name,
            context=parent,
            kind=SPAN_KINDS[kind],
            attributes=dict(attributes or {}),
            links=[Link(link) for link in links],
            record_exception=False,
            set_status_on_exception=False,
        )
        return OtelSpan(span, shared=shared)


def remote(caller: TraceContext, *, trusted: bool) -> SpanContext:
    """Return a caller's context for the SDK, without its vendor members."""
    return SpanContext(
        caller.trace_id,
        caller.span_id,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if caller.sampled else TraceFlags.DEFAULT),
        trace_state=TraceState(caller.state) if trusted else None,
    )


class OtelLogHandler(logging.Handler):
    """Sends log events, redacted like the log."""

    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._logger = provider.get_logger("gatepost")

    def emit(self, record: logging.LogRecord) -> None:
        """Put the record into the queue."""
        if record.name.startswith(EXPORTER_LOGGERS):
            return
        attributes: dict[str, str] = {
            name: printable(scrub(str(value)), limit=MAX_CHARACTERS)
            for name, value in details(record).items()
        }
        if record.exc_info:
            attributes["exception.type"] = getattr(record.exc_info[0], "__name__", "")
            attributes["exception.stacktrace"] = frames(record.exc_info)[-MAX_CHARACTERS * 8 :]
        self.send(
            scrub(record.getMessage())[:MAX_CHARACTERS],
            attributes | {"logger.name": record.name},
            at_s=record.created,
            severity=record.levelname,
        )

    def send(
        self,
        body: str,
        attributes: Mapping[str, str],
        *,
        at_s: float,
        severity: str = "INFO",
        name: str = "",
    ) -> None:
        """Send one record with the current span."""
        self._logger.emit(
            LogRecord(
                timestamp=int(at_s * 1e9),
                observed_timestamp=time.time_ns(),
                context=contexts.get_current(),
                severity_text=severity.lower(),
                severity_number=SEVERITIES.get(severity, SeverityNumber.INFO),
                body=body,
                attributes=dict(attributes),
                event_name=name or None,
            )
        )


class OtlpExporter:
    """
    The OpenTelemetry exporter of one process.

    *headers* are the resolved headers of the settings. Events that do not fit into the queues are
    dropped.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        headers: Mapping[str, str],
        *,
        version: str,
        tls: ssl.SSLContext,
        proxy: str,
    ) -> None:
        self._client = httpx2.Client(verify=tls, proxy=proxy or None, trust_env=False)
        self._names_tenant = settings.trace_tenant
        base = settings.otlp_endpoint.rstrip("/")
        session = session_of(self._client, headers)
        self._spans = SpanExporter(f"{base}/v1/traces", session)
        self._records = LogExporter(f"{base}/v1/logs", session)
        resource = Resource.create(
            {"service.name": settings.service_name, "service.version": version}
        )
        self._tracing = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=resource,
            shutdown_on_exit=False,
            id_generator=RandomIds(),
        )
        self._logging = LoggerProvider(resource, shutdown_on_exit=False)
        self.tracer: OtelTracer | None = None
        self.log_handler: OtelLogHandler | None = None
        if settings.traces:
            batches = BatchSpanProcessor(self._spans, QUEUE, EVERY_MS, BATCH)
            self._tracing.add_span_processor(batches)
            self.tracer = OtelTracer(self._tracing, trusts_parent=settings.trust_parent)
        if settings.logs:
            records = BatchLogRecordProcessor(self._records, EVERY_MS, BATCH, None, QUEUE)
            self._logging.add_log_record_processor(records)
            self.log_handler = OtelLogHandler(self._logging)
            logging.getLogger().addHandler(self.log_handler)

    @property
    def dropped(self) -> tuple[int, int]:
        """Return the number of spans and log records that were dropped."""
        return self._spans.dropped, self._records.dropped

    def recorded(self, tenant: str, rows: Sequence[AuditRow], /) -> None:
        """Send committed audit records of a tenant, without the caller."""
        if self.log_handler is None:
            return
        for row in rows:
            attributes = {"audit.kind": row.kind, "audit.number": str(row.number)}
            attributes |= {"gen_ai.tool.name": row.tool} if row.tool else {}
            if self._names_tenant:
                attributes["gatepost.tenant"] = tenant
            attributes["gatepost.outcome"] = row.outcome
            self.log_handler.send(
                "audit record", attributes, at_s=row.at / 1000, name="gatepost.audit"
            )

    async def aclose(self) -> None:
        """Send the remaining data within seconds, and stop."""
        if self.log_handler is not None:
            logging.getLogger().removeHandler(self.log_handler)
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        # In separate threads, because the SDK alone would wait for half a minute.
        until = time.monotonic() + CLOSING_S
        providers = self._tracing, self._logging
        closing = [Thread(target=provider.shutdown, daemon=True) for provider in providers]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(max(until - time.monotonic(), 0))
        # This ends a wait for the next attempt, and drops the rest.
        for exporter in (self._spans, self._records):
            exporter.shutdown()  # type: ignore[no-untyped-call]
        self._client.close()
