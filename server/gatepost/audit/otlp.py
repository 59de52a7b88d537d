"""
Records as OpenTelemetry logs: the OTLP JSON file form, one ExportLogsServiceRequest on each line.

https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/: bytes and 64-bit numbers are
strings, names are in lowerCamelCase.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from gatepost.audit.trail import Record

INFO, WARN, ERROR = 9, 13, 17
"""SeverityNumber of the log data model."""
SERIOUS = {"refusal": WARN, "tenant_mismatch": WARN, "cutoff": WARN, "gap": ERROR, "break": ERROR}
NAMES = {INFO: "INFO", WARN: "WARN", ERROR: "ERROR"}


def as_otlp(tenant: str, records: Iterable[Record], version: str) -> bytes:
    """The records as one line."""
    scope = {"name": "gatepost.audit", "version": version}
    resource = {"attributes": _attributes({"service.name": "gatepost", "service.version": version})}
    logs = {"scope": scope, "logRecords": [log_record(tenant, one) for one in records]}
    request = {"resourceLogs": [{"resource": resource, "scopeLogs": [logs]}]}
    return msgspec.json.encode(request) + b"\n"


def log_record(tenant: str, record: Record) -> dict[str, Any]:
    """One LogRecord, as JSON has it."""
    severity = SERIOUS.get(record.kind, INFO)
    nanoseconds = str(round(record.at * 1000) * 1_000_000)
    words = (record.kind, record.tool, record.outcome)
    return {
        "timeUnixNano": nanoseconds,
        "observedTimeUnixNano": nanoseconds,
        "severityNumber": severity,
        "severityText": NAMES[severity],
        "eventName": f"gatepost.audit.{record.kind}",
        "body": {"stringValue": " ".join(word for word in words if word)},
        "attributes": _attributes(attributes_of(tenant, record)),
    }


def attributes_of(tenant: str, record: Record) -> dict[str, str | int | bool]:
    """What an event says; what is empty is left out."""
    caller = record.caller
    said: dict[str, str | int | bool] = {
        "gatepost.tenant": tenant,
        "gatepost.audit.number": record.number,
        "gatepost.audit.hash": record.hash,
        "gatepost.tool": record.tool,
        "gatepost.offer": record.offer if record.kind in {"call", "refusal"} else "",
        "gatepost.outcome": record.outcome,
        "gatepost.duration_ms": round(record.duration_ms),
        "gatepost.request_id": record.request_id,
        "gatepost.retry": record.retry,
        "gatepost.replayed": record.replayed,
        "gatepost.approval": record.approval,
        "gatepost.times": record.times if record.times > 1 else 0,
        "gatepost.limit": record.limit,
        "gatepost.shared_audience": record.shared_audience,
        "enduser.id": caller.subject if caller else "",
        "gatepost.issuer": caller.issuer if caller else "",
        "gatepost.client": caller.client if caller else "",
        "client.address": caller.peer if caller else "",
        "gatepost.subject_kind": record.subject_kind,
        **{f"gatepost.details.{name}": value for name, value in record.details.items()},
        **{
            f"gatepost.private.{name}": value
            for name, value in record.private.items()
            if name != "caller"
        },
    }
    return {name: value for name, value in said.items() if value}


def _attributes(said: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in said.items()]


def _value(value: str | int | bool) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
