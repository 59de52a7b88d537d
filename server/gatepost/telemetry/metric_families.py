"""The metric families of `/metrics` as data: name, kind, labels and help text."""

from math import prod
from typing import Literal, get_args

import msgspec

from gatepost_authz.reasons import LABELS

UNKNOWN, OTHER = "unknown", "other"

MAX_TOOLS = 500
MAX_TENANTS = 200
MAX_UPSTREAMS = 100

MetricKind = Literal["counter", "gauge", "histogram"]
Aggregation = Literal["sum", "max", "min"]
"""How the gauges of several processes are combined."""


class FixedLabel(msgspec.Struct, frozen=True):
    """A label with a fixed set of values."""

    name: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """Return the number of values that the label can have."""
        return len(self.values)


class ConfiguredLabel(msgspec.Struct, frozen=True):
    """
    A label whose values come from the configuration, at most *max_values* of them.

    The values `unknown` and `other` come first; `other` counts names beyond *max_values*.
    """

    name: str
    max_values: int

    @property
    def size(self) -> int:
        """Return the number of values that the label can have."""
        return self.max_values + 2


MetricLabel = FixedLabel | ConfiguredLabel


class MetricFamily(msgspec.Struct, frozen=True):
    """A metric family; it is stored in integers, in nanoseconds if the metric is in seconds."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[MetricLabel, ...] = ()
    """Only the first may be a `ConfiguredLabel`."""
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets, in seconds; the last one, +Inf, is implied."""
    aggregation: Aggregation = "sum"

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return the names of the labels."""
        return tuple(label.name for label in self.labels)

    @property
    def width(self) -> int:
        """Return the number of integers for one combination of label values."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1

    @property
    def size(self) -> int:
        """Return the number of integers of the family."""
        return self.width * prod(label.size for label in self.labels)

    @property
    def in_seconds(self) -> bool:
        """Return whether the family is stored in nanoseconds."""
        return self.name.removesuffix("_total").endswith("_seconds")


CallKind = Literal["document", "prompt", "skill"]

OUTCOMES = (
    "success",
    "validation",
    "not_found",
    "denied",
    "conflict",
    "rate_limit",
    "upstream_unavailable",
    "tool_error",
    "approval_pending",
    "timeout",
    "internal",
    "unknown",
    "insufficient_scope",
    "insufficient_authentication",
    "missing_capability",
    "protocol_error",
    "input_required",
    "store_unavailable",
    "cancelled",
    "refused",
    OTHER,
)
"""The outcomes of a call: success, a kind of failure, or a response that the protocol defines."""
ROUTES = ("mcp", "rest", "dashboard", "metadata", "issuer", "probe", "page", OTHER)
STATUSES = ("2xx", "3xx", "4xx", "5xx", "none")
GATE_REASONS = {
    "MissingToken": "no_credentials",
    "MalformedCredentials": "malformed_credentials",
    "InvalidToken": "invalid_token",
    "ExpiredToken": "expired_token",
    "NotYetValidToken": "not_yet_valid_token",
    "WrongAudience": "wrong_audience",
    "RevokedToken": "revoked_token",
    "InsufficientScope": "insufficient_scope",
    "InsufficientAuthentication": "insufficient_authentication",
    "IssuerUnavailable": "issuer_unavailable",
}
"""The label for each error class of the gate (`gatepost_authz.errors`)."""
EDGE_REASONS = (
    *("method_not_allowed", "too_many_headers", "unknown_coding", "ambiguous_length"),
    *("bad_length", "body_too_large", "headers_too_large", "bad_host", "foreign_host"),
    *("forbidden_origin", "https_required", "too_many_failures", "unavailable", "internal_error"),
)
"""The codes of the refusals by the edge."""
REASONS = (*GATE_REASONS.values(), *EDGE_REASONS, OTHER)
LIMITS = (
    *("caller", "tenant", "tool", "server", "hold"),
    *("caller_audit", "tenant_audit", OTHER),
)
DECISIONS = ("approved", "rejected", "expired", "withdrawn", "granted")
MESSAGES = ("taken", "given_up", "dropped")
STORES = ("database", "shared")

CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
COMMIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

TOOL = ConfiguredLabel("tool", MAX_TOOLS)
TENANT = ConfiguredLabel("tenant", MAX_TENANTS)
UPSTREAM = ConfiguredLabel("upstream", MAX_UPSTREAMS)
OUTCOME = FixedLabel("outcome", OUTCOMES)
ROUTE = FixedLabel("route", ROUTES)
STORE = FixedLabel("store", STORES)

TOOL_CALLS = MetricFamily(
    "gatepost_tool_calls_total",
    "counter",
    "Tool calls by outcome; a tool name that does not exist counts as `unknown`.",
    (TOOL, OUTCOME),
)
TOOL_SECONDS = MetricFamily(
    "gatepost_tool_call_seconds",
    "histogram",
    "Seconds from a call's arrival at the runner to its outcome, including the wait for approval.",
    (TOOL,),
    CALL_BUCKETS,
)
OFFER_CALLS = MetricFamily(
    "gatepost_offer_calls_total",
    "counter",
    "Uses of resources (`document`), prompts and skills by outcome.",
    (FixedLabel("kind", get_args(CallKind)), OUTCOME),
)
TENANT_CALLS = MetricFamily(
    "gatepost_tenant_calls_total",
    "counter",
    "Tool calls by tenant, only with `telemetry.tenant_label`; tenants that the configuration does "
    "not name count as `other`.",
    (TENANT, OUTCOME),
)
REQUESTS = MetricFamily(
    "gatepost_http_requests_total",
    "counter",
    "HTTP requests by route and status class; `none`: the client disconnected before the response.",
    (ROUTE, FixedLabel("status", STATUSES)),
)
REQUEST_SECONDS = MetricFamily(
    "gatepost_http_request_seconds",
    "histogram",
    "Seconds from a request's head to the end of its response; a stream counts when it ends.",
    (ROUTE,),
    REQUEST_BUCKETS,
)
REFUSALS = MetricFamily(
    "gatepost_refusals_total",
    "counter",
    "Requests that the gate or the edge refused and calls that lack scopes, by reason.",
    (FixedLabel("reason", REASONS),),
)
TOKENS_REFUSED = MetricFamily(
    "gatepost_tokens_refused_total",
    "counter",
    "Tokens that the gate or the dashboard's sign-in refused, by the reason in the log.",
    (FixedLabel("reason", (*LABELS, OTHER)),),
)
LIMITED = MetricFamily(
    "gatepost_rate_limited_total",
    "counter",
    "Calls and other requests that a limit refused, by limit.",
    (FixedLabel("limit", LIMITS),),
)
APPROVALS_WAITING = MetricFamily(
    "gatepost_approvals_waiting", "gauge", "Calls in this server that wait for an approval."
)
APPROVALS_DECIDED = MetricFamily(
    "gatepost_approvals_total",
    "counter",
    "Approval requests that were closed at this server, by result.",
    (FixedLabel("result", DECISIONS),),
)
WEBHOOK_MESSAGES = MetricFamily(
    "gatepost_webhook_messages_total",
    "counter",
    "Messages of the approvals' webhook that this server delivered or gave up, by result.",
    (FixedLabel("result", MESSAGES),),
)
TASKS = MetricFamily("gatepost_tasks_running", "gauge", "Tasks that are running in this server.")
STREAMS = MetricFamily("gatepost_streams_open", "gauge", "Open streams of change notifications.")
AUDIT_QUEUE = MetricFamily(
    "gatepost_audit_queue_length", "gauge", "Audit records that wait to be committed."
)
AUDIT_SECONDS = MetricFamily(
    "gatepost_audit_commit_seconds",
    "histogram",
    "Seconds per commit of audit records.",
    buckets=COMMIT_BUCKETS,
)
REDACTIONS = MetricFamily(
    "gatepost_redactions_total",
    "counter",
    "Results and failures of tools in which a secret was redacted.",
)
KEY_FETCHES = MetricFamily(
    "gatepost_key_fetches_total",
    "counter",
    "Fetches of issuers' key sets by result.",
    (FixedLabel("result", ("fetched", "failed")),),
)
KEY_AGE = MetricFamily(
    "gatepost_key_age_seconds",
    "gauge",
    "Seconds since the keys in use were fetched, for the issuer with the oldest keys.",
    aggregation="max",
)
ISSUERS = MetricFamily(
    "gatepost_issuers",
    "gauge",
    "Configured issuers whose tokens can be checked now (`ready`) or not (`waiting`); the highest "
    "number that any worker reports.",
    (FixedLabel("state", ("ready", "waiting")),),
    aggregation="max",
)
STORE_UP = MetricFamily(
    "gatepost_store_up",
    "gauge",
    "1 if the store answers and, for the database, accepts audit records; otherwise 0.",
    (STORE,),
    aggregation="min",
)
OUTAGES = MetricFamily(
    "gatepost_store_outages_total",
    "counter",
    "Outages of a store that had answered before.",
    (STORE,),
)
LAG = MetricFamily(
    "gatepost_loop_lag_seconds",
    "histogram",
    "Seconds by which the event loop was late for a timer that fires twice a second.",
    buckets=LAG_BUCKETS,
)
LINES_DROPPED = MetricFamily(
    "gatepost_access_lines_dropped_total",
    "counter",
    "Access log lines that were dropped because the log was read too slowly.",
)
EXPORT_DROPPED = MetricFamily(
    "gatepost_telemetry_dropped_total",
    "counter",
    "Spans and log records that were dropped because the OpenTelemetry collector was too slow.",
    (FixedLabel("signal", ("traces", "logs")),),
)
UPSTREAM_CALLS = MetricFamily(
    "gatepost_upstream_calls_total",
    "counter",
    "Calls of upstream MCP servers, also of their prompts and resources: the server answered, it "
    "failed, or the call was not made because its circuit was open.",
    (UPSTREAM, FixedLabel("result", ("answered", "failed", "not_made"))),
)
UPSTREAM_CIRCUITS = MetricFamily(
    "gatepost_upstream_circuits_open",
    "gauge",
    "Open or half-open circuits, one for each tenant of a server and each worker.",
    (UPSTREAM,),
)
UPSTREAM_FAILING = MetricFamily(
    "gatepost_upstream_failing_seconds",
    "gauge",
    "Seconds since calls of the server began to fail; 0 if the last one did not.",
    (UPSTREAM,),
    aggregation="max",
)
WORKERS = MetricFamily("gatepost_workers", "gauge", "Serving processes.")
PROCESS_SECONDS = MetricFamily(
    "process_cpu_seconds_total", "counter", "CPU time of all workers, including system time."
)
RESIDENT = MetricFamily(
    "process_resident_memory_bytes",
    "gauge",
    "Resident memory of all workers; shared memory counts once per worker.",
)
OPEN_FILES = MetricFamily("process_open_fds", "gauge", "Open file descriptors of all workers.")
STARTED = MetricFamily(
    "process_start_time_seconds",
    "gauge",
    "Start time of the oldest worker, in seconds since the epoch.",
    aggregation="min",
)

BUILD = MetricFamily(
    "gatepost_build_info",
    "gauge",
    "Always 1; the labels contain the release and the Python version.",
    (FixedLabel("version", ("",)), FixedLabel("python", ("",))),
    aggregation="max",
)

FAMILIES = (
    *(TOOL_CALLS, TOOL_SECONDS, OFFER_CALLS, TENANT_CALLS, REQUESTS, REQUEST_SECONDS, REFUSALS),
    *(
        TOKENS_REFUSED,
        LIMITED,
        APPROVALS_WAITING,
        APPROVALS_DECIDED,
        WEBHOOK_MESSAGES,
        TASKS,
        STREAMS,
    ),
    *(AUDIT_QUEUE, AUDIT_SECONDS, REDACTIONS),
    *(KEY_FETCHES, KEY_AGE, ISSUERS, STORE_UP, OUTAGES, LAG, LINES_DROPPED, EXPORT_DROPPED),
    *(UPSTREAM_CALLS, UPSTREAM_CIRCUITS, UPSTREAM_FAILING),
    *(WORKERS, PROCESS_SECONDS, RESIDENT, OPEN_FILES, STARTED),
)
"""The families that processes count; `BUILD` is the same in every process."""
