"""The OpenTelemetry exporter, or a stand-in without a collector."""

import ssl
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol

from gatepost.config.references import resolve
from gatepost.config.settings import Config
from gatepost.runtime.version import version
from gatepost.storage.audit import AuditRow
from gatepost.telemetry.trace import Tracer


class Exporter(Protocol):
    """The exporter of one process."""

    @property
    def tracer(self) -> Tracer | None:
        """Return the tracer, or None if tracing is off."""

    @property
    def dropped(self) -> tuple[int, int]:
        """Return the numbers of spans and log records that the collector did not accept."""

    @property
    def recorded(self) -> Callable[[str, Sequence[AuditRow]], None] | None:
        """Return what exports durable audit records of a tenant; None if nothing does."""

    async def aclose(self) -> None:
        """Send the rest, within seconds, and close."""


class NoExporter:
    """An `Exporter` without a collector."""

    tracer: Tracer | None = None
    recorded: Callable[[str, Sequence[AuditRow]], None] | None = None
    dropped = (0, 0)

    async def aclose(self) -> None:
        """Do nothing."""


def exporter_of(config: Config, tls: Callable[[], ssl.SSLContext]) -> Exporter:
    """Return the exporter of the configuration; nothing is sent yet."""
    settings = config.telemetry
    if not settings.otlp_endpoint:
        return NoExporter()
    # Imported by name, because its dependencies are an extra.
    exporter: Exporter = import_module("gatepost.telemetry.otlp").OtlpExporter(
        settings,
        {name: resolve(reference) for name, reference in settings.otlp_headers.items()},
        version=version(),
        tls=tls(),
        proxy=config.network.proxy,
    )
    return exporter
