"""The settings of telemetry."""

from typing import Literal

from gatepost.config.settings_table import SettingsTable

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]


class TelemetrySettings(SettingsTable, frozen=True, kw_only=True):
    """Metrics, traces and exported logs; `listen.metrics` is the address of the metrics."""

    tenant_label: bool = False
    """
    Whether `/metrics` has a tenant label: tenants that the configuration names by their id, all
    others as `other`. Readers of `/metrics` then see which tenants exist and how busy they are.
    """
    otlp_endpoint: str = ""
    """
    The URL of the OpenTelemetry collector (OTLP over HTTP), without `/v1/…`; needs
    `gatepost[otel]`. Empty: nothing is exported, at no cost.
    """
    otlp_headers: dict[str, str] = {}
    """Header = a reference (`env:NAME`, `file:PATH`) to its value; only the collector gets it."""
    service_name: str = "gatepost"
    """The name of this service in traces and logs."""
    traces: bool = True
    """Whether spans are sent to the collector."""
    logs: bool = True
    """Whether log events and audit records are sent to the collector."""
    sample_ratio: float = 1.0
    """The share of requests that are traced, from 0 to 1."""
    trust_parent: bool = False
    """
    Whether requests continue their callers' traces and follow their sampling decision. Otherwise
    each request begins its own trace with a link to its caller's, so a caller can neither exceed
    `sample_ratio` nor write into another system's trace.
    """
    trace_tenant: bool = False
    """Whether exported spans and logs name the tenant."""
    propagate_to: tuple[str, ...] = ()
    """Origins (`https://api.example.com`) to which tools send the trace context."""
