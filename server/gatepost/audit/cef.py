"""
Records in the Common Event Format (ArcSight CEF, version 0), for security monitoring.

What stands between the bars and what stands behind an equals sign are escaped by rules of their
own: a tool's argument must not forge a field, nor an event.
"""

from ipaddress import IPv4Address, ip_address

from gatepost.audit.trail import Record

SEVERITIES = {"call": 3, "refusal": 5, "cutoff": 6, "tenant_mismatch": 8, "gap": 9, "break": 10}
USUAL = 4
LONGEST = 1_023
"""Characters of a string field that receivers take."""

_LABELS = ("tenant", "issuer", "approval", "arguments", "hash", "correlation")


def as_cef(tenant: str, record: Record, version: str) -> str:
    """One event, on one line."""
    kind = record.kind
    head = ("Gatepost", "gatepost", version, kind, f"{kind} {record.outcome}".strip())
    severity = SEVERITIES.get(kind, USUAL)
    return f"CEF:0|{'|'.join(map(_header, head))}|{severity}|{_extension(tenant, record)}"


def _extension(tenant: str, record: Record) -> str:
    caller, about = record.caller, record.about
    fields = {
        "rt": str(round(record.at * 1000)),
        "externalId": str(record.number),
        "act": record.tool or record.kind,
        "outcome": record.outcome,
        "reason": record.reason,
        "request": record.private.get("name", ""),
        "suid": caller.subject if caller else "",
        "suser": caller.name if caller else "",
        "sourceServiceName": caller.client if caller else "",
        **_source(caller.peer if caller else ""),
        "duid": about.subject if about else "",
        "duser": about.name if about else "",
        "cnt": str(record.times),
        "cn1Label": "durationMs",
        "cn1": str(round(record.duration_ms)),
        "requestContext": record.request_id,
    }
    custom = {
        "tenant": tenant,
        "issuer": caller.issuer if caller else "",
        "approval": record.approval,
        "arguments": record.arguments,
        "hash": record.hash,
        "correlation": record.correlation,
    }
    for at, label in enumerate(_LABELS, start=1):
        if custom[label]:
            fields[f"cs{at}Label"], fields[f"cs{at}"] = label, custom[label]
    shown = {name: value for name, value in fields.items() if value}
    return " ".join(f"{name}={_value(value[:LONGEST])}" for name, value in shown.items())


def _source(peer: str) -> dict[str, str]:
    """Version 0 knows IPv4 only as a source; IPv6 has a custom field, which producers name so."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return {}
    if isinstance(address, IPv4Address):
        return {"src": str(address)}
    return {"c6a2Label": "Source IPv6 Address", "c6a2": str(address)}


def _header(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").splitlines())


def _value(text: str) -> str:
    # Whatever ends a line somewhere becomes what CEF writes for the end of one.
    return "\\n".join(text.replace("\\", "\\\\").replace("=", "\\=").splitlines())
