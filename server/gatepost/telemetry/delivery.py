"""Brings spans and log records to a collector (OTLP over HTTP), from a thread of the SDK's."""

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence

import httpx2
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

TIMEOUT_S = 5.0
WAITS_S = (0.5, 2.0)
"""Between tries of one batch; then it is dropped, as others wait."""
AGAIN = frozenset({408, 429, 502, 503, 504})
"""What is worth another try (OTLP, section "Failures")."""
QUIET_S = 60.0
"""A collector that is down is told of this seldom."""

_log = logging.getLogger("gatepost.otlp")


class Delivery:
    """
    One kind of message to one address, by the network's rules and no environment's.

    *dropped* counts what never arrived; a failure is logged now and then, never raised.
    """

    def __init__(self, client: httpx2.Client, url: str, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        self._headers = {**headers, "content-type": "application/x-protobuf"}
        self._closing = threading.Event()
        self._told_at = 0.0
        self._until = math.inf
        self.dropped = 0

    def bring(self, message: bytes, items: int) -> bool:
        """Whether the collector took it."""
        problem, again = self._post(message)
        for wait_s in WAITS_S:
            if not again or self._closing.wait(wait_s):
                break
            problem, again = self._post(message)
        if not problem:
            return True
        self.dropped += items
        now = time.monotonic()
        if now - self._told_at >= QUIET_S or not self._told_at:
            self._told_at = now
            _log.warning("the collector takes nothing: %s", problem)
        return False

    def _post(self, message: bytes) -> tuple[str, bool]:
        """What went wrong, if anything, and whether another try may help."""
        left = min(self._until - time.monotonic(), TIMEOUT_S)
        if left <= 0:
            return "the server stops", False
        try:
            answer = self._client.post(
                self._url, content=message, headers=self._headers, timeout=left
            )
        except httpx2.HTTPError as error:
            return type(error).__name__, True
        if answer.is_success:
            return "", False
        return f"status {answer.status_code}", answer.status_code in AGAIN

    def hurry(self, within_s: float) -> None:
        """Try nothing a second time, and nothing at all after so many seconds."""
        self._until = time.monotonic() + within_s
        self._closing.set()


class SpanDelivery(SpanExporter):
    """Spans."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        taken = self._delivery.bring(encode_spans(spans).SerializeToString(), len(spans))
        return SpanExportResult.SUCCESS if taken else SpanExportResult.FAILURE


class LogDelivery(LogRecordExporter):
    """Log records."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """See `LogRecordExporter`."""
        taken = self._delivery.bring(encode_logs(batch).SerializeToString(), len(batch))
        return LogRecordExportResult.SUCCESS if taken else LogRecordExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 0) -> bool:
        """See `LogRecordExporter`; nothing is kept here."""
        return True

    def shutdown(self) -> None:
        """See `LogRecordExporter`; the address has a closing of its own."""
