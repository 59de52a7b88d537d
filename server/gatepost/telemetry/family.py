"""What `/metrics` tells, as data: each family's name, kind, labels and meaning."""

from typing import Literal, get_args

import msgspec

UNKNOWN, OTHER = "unknown", "other"

MOST_TOOLS = 500
MOST_TENANTS = 200

Kind = Literal["counter", "gauge", "histogram"]
Joined = Literal["sum", "max", "min"]
"""What a gauge of several processes is together."""


class Closed(msgspec.Struct, frozen=True):
    """A label whose values are all known beforehand."""

    label: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many values there are room for."""
        return len(self.values)


class Open(msgspec.Struct, frozen=True):
    """
    A label whose values are names of the configuration's, at most *most* of them.

    Two values stand before the names: `unknown`, and `other` for those there is no room for.
    """

    label: str
    most: int

    @property
    def size(self) -> int:
        """How many values there are room for."""
        return self.most + 2


Axis = Closed | Open


class Family(msgspec.Struct, frozen=True):
    """One family of samples; cells that count seconds hold nanoseconds."""

    name: str
    kind: Kind
    meaning: str
    axes: tuple[Axis, ...] = ()
    """Its labels; only the first may be Open."""
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets, in seconds; the last one, +Inf, is implied."""
    joined: Joined = "sum"

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""
        return tuple(axis.label for axis in self.axes)

    @property
    def width(self) -> int:
        """Cells per combination of labels: a histogram's buckets and their sum."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1

    @property
    def combinations(self) -> int:
        """How many combinations of labels there are room for."""
        found = 1
        for axis in self.axes:
            found *= axis.size
        return found

    @property
    def size(self) -> int:
        """Its cells."""
        return self.combinations * self.width

    @property
    def in_seconds(self) -> bool:
        """Whether its cells hold nanoseconds."""
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
"""How a call can end: well, with a failure of that kind, or as the protocol has to answer it."""
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
"""What the gate refuses by its classes (`gatepost_authz.errors`), as a label."""
EDGE_REASONS = (
    *("method_not_allowed", "too_many_headers", "unknown_coding", "ambiguous_length"),
    *("bad_length", "body_too_large", "headers_too_large", "bad_host", "foreign_host"),
    *("forbidden_origin", "https_required", "too_many_failures", "unavailable", "internal_error"),
)
"""What the edge refuses, by the codes of its refusals."""
REASONS = (*GATE_REASONS.values(), *EDGE_REASONS, OTHER)
LIMITS = ("caller", "tenant", "tool", "server", OTHER)
DECISIONS = ("approved", "rejected", "expired", "withdrawn", "granted")
MESSAGES = ("taken", "given_up", "dropped")
STORES = ("database", "shared")

CALL_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
REQUEST_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
COMMIT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
LAG_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

TOOLS = Open("tool", MOST_TOOLS)
OUTCOME = Closed("outcome", OUTCOMES)
ROUTE = Closed("route", ROUTES)
STORE = Closed("store", STORES)

TOOL_CALLS = Family(
    "gatepost_tool_calls_total",
    "counter",
    "Calls of tools by how they ended; a name that no tool has counts as `unknown`.",
    (TOOLS, OUTCOME),
)
TOOL_SECONDS = Family(
    "gatepost_tool_call_seconds",
    "histogram",
    "Seconds from a call's arrival at the runner to its outcome, waiting for people included.",
    (TOOLS,),
    CALL_BOUNDS,
)
OTHER_CALLS = Family(
    "gatepost_offer_calls_total",
    "counter",
    "Uses of resources (`document`), prompts and skills by how they ended.",
    (Closed("kind", get_args(CallKind)), OUTCOME),
)
TENANT_CALLS = Family(
    "gatepost_tenant_calls_total",
    "counter",
    "Calls of tools by tenant, only with `telemetry.tenant_label`: configured tenants by their "
    "id, all others as `other`.",
    (Open("tenant", MOST_TENANTS), OUTCOME),
)
REQUESTS = Family(
    "gatepost_http_requests_total",
    "counter",
    "HTTP requests by route and class of status; `none` is a client that left before its answer.",
    (ROUTE, Closed("status", STATUSES)),
)
REQUEST_SECONDS = Family(
    "gatepost_http_request_seconds",
    "histogram",
    "Seconds from a request's head to the end of its answer; a stream counts when it ends.",
    (ROUTE,),
    REQUEST_BOUNDS,
)
REFUSALS = Family(
    "gatepost_refusals_total",
    "counter",
    "Requests that the gate or the edge refused, by reason; and calls that lack scopes.",
    (Closed("reason", REASONS),),
)
LIMITED = Family(
    "gatepost_rate_limited_total",
    "counter",
    "Calls that a limit refused, by which limit it was.",
    (Closed("limit", LIMITS),),
)
WAITING = Family(
    "gatepost_approvals_waiting", "gauge", "Calls that wait in this server for a person's decision."
)
DECIDED = Family(
    "gatepost_approvals_total",
    "counter",
    "Approval requests that came to an end at this server, by how.",
    (Closed("result", DECISIONS),),
)
TOLD = Family(
    "gatepost_webhook_messages_total",
    "counter",
    "Messages of the approvals' webhook that this server has done with, by how.",
    (Closed("result", MESSAGES),),
)
TASKS = Family("gatepost_tasks_running", "gauge", "Tasks that run in this server.")
STREAMS = Family("gatepost_streams_open", "gauge", "Streams of changes that are held open.")
AUDIT_QUEUE = Family(
    "gatepost_audit_queue_length", "gauge", "Audit records that wait for their commit."
)
AUDIT_SECONDS = Family(
    "gatepost_audit_commit_seconds",
    "histogram",
    "Seconds that one commit of audit records took.",
    bounds=COMMIT_BOUNDS,
)
REDACTIONS = Family(
    "gatepost_redactions_total",
    "counter",
    "Answers and failures of tools in which a secret was found and replaced.",
)
KEY_FETCHES = Family(
    "gatepost_key_fetches_total",
    "counter",
    "Fetches of issuers' keys by result.",
    (Closed("result", ("fetched", "failed")),),
)
KEY_AGE = Family(
    "gatepost_key_age_seconds",
    "gauge",
    "Seconds since the keys in use were fetched: those of the issuer where that is longest ago.",
    joined="max",
)
ISSUERS = Family(
    "gatepost_issuers",
    "gauge",
    "Issuers of the configuration whose tokens can be checked now (`ready`) or not (`waiting`), "
    "as the worker says that has the most of them.",
    (Closed("state", ("ready", "waiting")),),
    joined="max",
)
STORE_UP = Family(
    "gatepost_store_up",
    "gauge",
    "1 where the store answers, and as the database takes what is put on record; else 0.",
    (STORE,),
    joined="min",
)
OUTAGES = Family(
    "gatepost_store_outages_total",
    "counter",
    "How often a store that had answered was found not to.",
    (STORE,),
)
LAG = Family(
    "gatepost_loop_lag_seconds",
    "histogram",
    "Seconds by which the event loop was late for a timer that runs twice a second.",
    bounds=LAG_BOUNDS,
)
LINES_DROPPED = Family(
    "gatepost_access_lines_dropped_total",
    "counter",
    "Access lines that were dropped because whoever reads the log was too slow.",
)
EXPORT_DROPPED = Family(
    "gatepost_telemetry_dropped_total",
    "counter",
    "Spans and log records that the OpenTelemetry collector did not take in time.",
    (Closed("signal", ("traces", "logs")),),
)
WORKERS = Family("gatepost_workers", "gauge", "Processes that serve.")
PROCESS_SECONDS = Family(
    "process_cpu_seconds_total", "counter", "CPU time of all workers, system time included."
)
RESIDENT = Family(
    "process_resident_memory_bytes", "gauge", "Memory of all workers; what they share counts twice."
)
OPEN_FILES = Family("process_open_fds", "gauge", "Open file descriptors of all workers.")
STARTED = Family(
    "process_start_time_seconds",
    "gauge",
    "When the oldest worker began to serve, in seconds since the epoch.",
    joined="min",
)

BUILD = Family(
    "gatepost_build_info",
    "gauge",
    "Always 1; the labels say which release runs on which Python.",
    (Closed("version", ("",)), Closed("python", ("",))),
    joined="max",
)

FAMILIES = (
    *(TOOL_CALLS, TOOL_SECONDS, OTHER_CALLS, TENANT_CALLS, REQUESTS, REQUEST_SECONDS, REFUSALS),
    *(LIMITED, WAITING, DECIDED, TOLD, TASKS, STREAMS, AUDIT_QUEUE, AUDIT_SECONDS, REDACTIONS),
    *(KEY_FETCHES, KEY_AGE, ISSUERS, STORE_UP, OUTAGES, LAG, LINES_DROPPED, EXPORT_DROPPED),
    *(WORKERS, PROCESS_SECONDS, RESIDENT, OPEN_FILES, STARTED),
)
"""All that is counted in cells; `BUILD` is the same for every process."""
