"""Print audit records for security monitoring (SIEM): as OpenTelemetry logs, and as CEF."""

from collections.abc import AsyncIterator, Iterable
from ipaddress import IPv4Address, ip_address
from typing import Any, Literal

import msgspec

from gatepost.audit.export import PAGE
from gatepost.audit.record import AuditRecord, read
from gatepost.runtime.version import version
from gatepost.storage.audit import FIRST_WRITER, AuditStore
from gatepost.telemetry.logs import escaped_line, in_json

FormName = Literal["cef", "otlp"]
RECORDS_PER_REQUEST = 100
"""Records of one OTLP request."""


async def in_format(
    audit_store: AuditStore, tenant: str, form: FormName, since: int
) -> AsyncIterator[bytes]:
    """Yield the records in CEF or OTLP format, writer by writer."""
    tenant_log = audit_store.tenant_log(tenant)
    for writer in await tenant_log.writers():
        after = 0
        while page := await tenant_log.chain(writer).rows(after, PAGE):
            after = page[-1].number
            selected = [read(row) for row in page if row.at >= since]
            if form == "otlp":
                for at in range(0, len(selected), RECORDS_PER_REQUEST):
                    yield as_otlp(tenant, selected[at : at + RECORDS_PER_REQUEST], version())
            else:
                for record in selected:
                    yield f"{as_cef(tenant, record, version())}\n".encode()


# OpenTelemetry logs.

INFO, WARN, ERROR = 9, 13, 17
"""SeverityNumber of the log data model."""
SERIOUS = {
    "refusal": WARN,
    "token": WARN,
    "tenant_mismatch": WARN,
    "revocation": WARN,
    "gap": ERROR,
    "break": ERROR,
}
NAMES = {INFO: "INFO", WARN: "WARN", ERROR: "ERROR"}


def as_otlp(tenant: str, records: Iterable[AuditRecord], version: str) -> bytes:
    """
    Return one line of the OTLP JSON file format: an ExportLogsServiceRequest with these records.

    https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/: bytes and 64-bit numbers are
    strings, names are in lowerCamelCase.
    """
    scope = {"name": "gatepost.audit", "version": version}
    resource = {
        "attributes": _otlp_attributes({"service.name": "gatepost", "service.version": version})
    }
    logs = {"scope": scope, "logRecords": [log_record(tenant, record) for record in records]}
    request = {"resourceLogs": [{"resource": resource, "scopeLogs": [logs]}]}
    return in_json(msgspec.json.encode(request).decode()).encode() + b"\n"


def log_record(tenant: str, record: AuditRecord) -> dict[str, Any]:
    """Return one LogRecord."""
    severity = SERIOUS.get(record.kind, INFO)
    nanoseconds = str(record.at * 1_000_000)
    parts = (record.kind, record.tool, record.outcome)
    return {
        "timeUnixNano": nanoseconds,
        "observedTimeUnixNano": nanoseconds,
        "severityNumber": severity,
        "severityText": NAMES[severity],
        "eventName": f"gatepost.audit.{record.kind}",
        "body": {"stringValue": " ".join(part for part in parts if part)},
        "attributes": _otlp_attributes(attributes_of(tenant, record)),
    }


def attributes_of(tenant: str, record: AuditRecord) -> dict[str, str | int | bool]:
    """Return the attributes of an event; empty ones are left out."""
    caller = record.caller
    attributes: dict[str, str | int | bool] = {
        "gatepost.tenant": tenant,
        "gatepost.audit.number": record.number,
        "gatepost.audit.writer": record.writer if record.writer != FIRST_WRITER else 0,
        "gatepost.audit.hash": record.hash,
        "gatepost.tool": record.tool,
        "gatepost.offer": record.offer if record.kind in {"call", "refusal"} else "",
        "gatepost.outcome": record.outcome,
        "gatepost.duration_ms": round(record.duration_us / 1000),
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
    return {name: value for name, value in attributes.items() if value}


def _otlp_attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _otlp_value(value)} for name, value in attributes.items()]


def _otlp_value(value: str | int | bool) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


# Common Event Format.

SEVERITIES = {
    "call": 3,
    "refusal": 5,
    "token": 5,
    "revocation": 6,
    "tenant_mismatch": 8,
    "gap": 9,
    "break": 10,
}
USUAL_SEVERITY = 4
LONGEST = 1_023
"""Maximum number of characters of a string field."""

_CEF_LABELS = ("tenant", "issuer", "approval", "arguments", "hash", "correlation")


def as_cef(tenant: str, record: AuditRecord, version: str) -> str:
    """
    Return one line of the Common Event Format (ArcSight CEF, version 0).

    The text between the bars and the text after an equals sign have escaping rules of their own: a
    tool's argument must not forge a field or an event.
    """
    kind = record.kind
    head = ("Gatepost", "gatepost", version, kind, f"{kind} {record.outcome}".strip())
    severity = SEVERITIES.get(kind, USUAL_SEVERITY)
    return f"CEF:0|{'|'.join(map(_cef_header, head))}|{severity}|{_cef_extension(tenant, record)}"


def _cef_extension(tenant: str, record: AuditRecord) -> str:
    caller, person = record.caller, record.person
    fields = {
        "rt": str(record.at),
        "externalId": record.id,
        "act": record.tool or record.kind,
        "outcome": record.outcome,
        "reason": record.private.get("reason", ""),
        "request": record.private.get("name", ""),
        "suid": caller.subject if caller else "",
        "suser": caller.name if caller else "",
        "sourceServiceName": caller.client if caller else "",
        **_cef_source(caller.peer if caller else ""),
        "duid": person.subject if person else "",
        "duser": person.name if person else "",
        "cnt": str(record.times),
        "cn1Label": "durationMs",
        "cn1": str(round(record.duration_us / 1000)),
        "requestContext": record.request_id,
    }
    custom = {
        "tenant": tenant,
        "issuer": caller.issuer if caller else "",
        "approval": record.approval,
        "arguments": record.private.get("arguments", ""),
        "hash": record.hash,
        "correlation": record.private.get("correlation", ""),
    }
    for at, label in enumerate(_CEF_LABELS, start=1):
        if custom[label]:
            fields[f"cs{at}Label"], fields[f"cs{at}"] = label, custom[label]
    filled = {name: value for name, value in fields.items() if value}
    return " ".join(f"{name}={_cef_value(value[:LONGEST])}" for name, value in filled.items())


def _cef_source(peer: str) -> dict[str, str]:
    """Return the address: `src` is IPv4 in version 0, and producers use a custom field for IPv6."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return {}
    if isinstance(address, IPv4Address):
        return {"src": str(address)}
    return {"c6a2Label": "Source IPv6 Address", "c6a2": str(address)}


def _cef_header(text: str) -> str:
    lines = map(escaped_line, text.splitlines())
    return " ".join(lines).replace("\\", "\\\\").replace("|", "\\|")


def _cef_value(text: str) -> str:
    # Whatever ends a line somewhere becomes what CEF writes for the end of one.
    lines = map(escaped_line, text.splitlines())
    return "\\n".join(line.replace("\\", "\\\\").replace("=", "\\=") for line in lines)
