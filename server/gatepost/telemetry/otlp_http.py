"""Send spans and log records with the SDK's OTLP/HTTP exporters and the `[network]` settings."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import httpx2
import requests  # noqa: TID251 -- the exporters use it in threads of the SDK
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

BATCH_S = 10.0
"""The time in seconds for all attempts to send one batch, after which it is dropped."""
QUIET_S = 60.0
"""The minimum interval in seconds between two log events about a failing collector."""
SENT_HEADERS = ("content-type", "user-agent")


class NetworkAdapter(requests.adapters.BaseAdapter):
    """
    Sends the requests of an exporter with a client that has the `[network]` settings.

    Proxies, CA bundles and headers in the environment have no effect: a credential in
    `OTEL_EXPORTER_OTLP_HEADERS` may be meant for another collector.
    """

    def __init__(self, client: httpx2.Client, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._client = client
        self._headers = headers

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: object = True,
        cert: object = None,
        proxies: object = None,
    ) -> requests.Response:
        """Send the request; raise `RequestException` without the text of the error."""
        passed_on = {name: str(request.headers[name]) for name in SENT_HEADERS}
        try:
            answer = self._client.post(
                str(request.url),
                content=cast(bytes, request.body),
                headers={**self._headers, **passed_on},
                timeout=timeout,
            )
        except httpx2.HTTPError as error:
            raise requests.ConnectionError(type(error).__name__) from None
        if answer.is_redirect:
            # The exporters treat it as success.
            raise requests.TooManyRedirects("the collector redirects")
        response = requests.Response()
        # The reason is omitted, because a collector could repeat a credential in it, and it is
        # logged.
        response.status_code = answer.status_code
        response.headers.update(answer.headers)
        return response

    def close(self) -> None:
        """Do nothing; the client is closed by its owner."""


def session_of(client: httpx2.Client, headers: Mapping[str, str]) -> requests.Session:
    """Return a session that sends everything with this client and these headers."""
    session = requests.Session()
    session.trust_env = False
    for scheme in ("http://", "https://"):
        session.mount(scheme, NetworkAdapter(client, headers))
    return session


class SpanExporter(OTLPSpanExporter):
    """Sends spans; *dropped* counts those that the collector did not accept."""

    def __init__(self, endpoint: str, session: requests.Session) -> None:
        super().__init__(
            endpoint, timeout=BATCH_S, compression=Compression.NoCompression, session=session
        )
        self.dropped = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the spans."""
        result = super().export(spans)
        if result is not SpanExportResult.SUCCESS:
            self.dropped += len(spans)
        return result


class LogExporter(OTLPLogExporter):
    """Sends log records; *dropped* counts those that the collector did not accept."""

    def __init__(self, endpoint: str, session: requests.Session) -> None:
        super().__init__(
            endpoint, timeout=BATCH_S, compression=Compression.NoCompression, session=session
        )
        self.dropped = 0

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Send the log records."""
        result = super().export(batch)
        if result is not LogRecordExportResult.SUCCESS:
            self.dropped += len(batch)
        return result


class RareErrors(logging.Filter):
    """Passes one error a minute, so that a collector that is down does not fill the log."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged; warnings about retries never are."""
        if record.levelno < logging.ERROR or record.created < self._quiet_until:
            return False
        self._quiet_until = record.created + QUIET_S
        return True


for _exporter in (OTLPSpanExporter, OTLPLogExporter):
    logging.getLogger(_exporter.__module__).addFilter(RareErrors())
