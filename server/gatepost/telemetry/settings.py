"""The settings of what the server tells about itself."""

from gatepost.table import Table


class TelemetrySettings(Table, frozen=True, kw_only=True):
    """What is told of calls beside the log, and to whom; `listen.metrics` is where it is read."""

    tenant_label: bool = False
    """
    Whether `/metrics` tells calls by tenant: those that the configuration names, all others as
    `other`. Whoever may read `/metrics` then learns who the tenants are and how busy.
    """
    otlp_endpoint: str = ""
    """
    The OpenTelemetry collector (OTLP over HTTP), without `/v1/…`; needs `gatepost[otel]`. Empty:
    nothing is traced, and nobody pays for it.
    """
    otlp_headers: dict[str, str] = {}
    """Header = a reference (`env:NAME`, `file:PATH`) to its value, for the collector alone."""
    service_name: str = "gatepost"
    """The name of this service in traces and logs."""
    traces: bool = True
    """Whether spans are sent to the collector."""
    logs: bool = True
    """Whether log events and audit records are sent to the collector, too."""
    sample_ratio: float = 1.0
    """The share of requests that are traced, from 0 to 1."""
    trust_parent: bool = False
    """
    Whether requests continue their callers' traces, and are sampled where these say so. Otherwise
    each begins a trace of its own that links to its caller's: a caller can neither have more
    sampled than `sample_ratio` nor write into somebody else's trace.
    """
    trace_tenant: bool = False
    """Whether spans and logs that are sent name the tenant."""
    propagate_to: tuple[str, ...] = ()
    """Origins (`https://api.example.com`) whose servers are told our trace context by tools."""
