"""
Export records: as JSON lines, which can be verified, and as OTLP and CEF for security monitoring.

The first JSON line says what the file contains. Then come records and, after the records that each
covers, checkpoints. A body is written byte for byte, because its hash is of these bytes.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from ipaddress import IPv4Address, ip_address
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.audit.checkpoints import PublicKeys, decode, is_before, last_numbers
from gatepost.audit.record import decode_numbered, decode_person, text
from gatepost.audit.search import AuditRecord
from gatepost.audit.verify import Examination, VerificationResult, verdict
from gatepost.audit.verify_chain import BadRecord
from gatepost.storage.audit import (
    CHECKPOINTS,
    FIRST_WRITER,
    AuditRow,
    Checkpoint,
    TenantChain,
)
from gatepost.storage.records import Records
from gatepost.telemetry.logs import in_json, in_line

FORMAT = 1
PAGE = 1_000
"""The number of records that are read at once."""


class Title(msgspec.Struct, frozen=True):
    """The first line of a file: what it contains."""

    tenant: str
    after: int
    """The file begins after the checkpoint that covers this many records; 0: at the beginning."""
    pruned: int
    """The number of records that retention removed; the first remaining checkpoint covers them."""
    format: int = FORMAT


class ExportLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: a title, a record with its details and hash, or a checkpoint."""

    gatepost_audit: Title | None = None
    record: Raw | UnsetType = UNSET
    details: dict[str, tuple[str, str]] | None = None
    """The salt and value of each commitment of the record, by field."""
    hash: str = ""
    checkpoint: str = ""
    """The statement, exactly as it was signed."""
    signature: str = ""


class ExportUnreadable(Exception):
    """Raised if the file is not an export; the message is a sentence."""


_encode = msgspec.json.encode
_line = msgspec.json.Decoder(ExportLine).decode
_side = msgspec.json.Decoder(dict[str, tuple[str, str]]).decode


async def exported(records: Records, tenant: str, *, since: int = 0) -> AsyncIterator[bytes]:
    """
    Yield the lines of a tenant's records since a time, in milliseconds since the epoch.

    They begin after a checkpoint, so that they can be verified. Raises StoreUnavailable.
    """
    trail = records.of(tenant).trail
    signed = await trail.checkpoints()
    heads = await trail.heads()
    removed = {one.writer: one.pruned for one in heads}
    after = pruned = removed.get(CHECKPOINTS, 0)
    ends = dict[int, int]()
    for one in signed:
        if one.number > after and await is_before(trail, one, since, removed):
            after = one.number
    yield line(ExportLine(gatepost_audit=Title(tenant, after, pruned)))
    for one in signed:
        if one.number < after:
            continue
        end = last_numbers(one)
        if one.number > after:
            for writer, number in end.items():
                async for row in _rows(trail.chain(writer), ends.get(writer, 0), number):
                    yield line(of_row(row))
        ends |= end
        yield line(of_checkpoint(one))
    for writer in await trail.writers():
        async for row in _rows(trail.chain(writer), ends.get(writer, 0), None):
            yield line(of_row(row))


async def _rows(chain: TenantChain, after: int, through: int | None) -> AsyncIterator[AuditRow]:
    """Yield the records after a number, up to a number."""
    while through is None or after < through:
        most = PAGE if through is None else min(PAGE, through - after)
        page = await chain.rows(after, most)
        for row in page:
            yield row
        if not page:
            break
        after = page[-1].number


def line(one: ExportLine) -> bytes:
    """Encode a line as JSON, without characters that a terminal or an editor would act on."""
    encoded = _encode(one).decode()
    body = "" if one.record is UNSET else bytes(one.record).decode()
    # A body is written unchanged, because its hash is of its bytes. Callers' values are details.
    return (in_json(encoded) if in_json(body) == body else encoded).encode() + b"\n"


def of_row(row: AuditRow) -> ExportLine:
    """Return the line of a record."""
    details = None if row.side is None else _side(row.side)
    return ExportLine(record=Raw(row.body.encode()), details=details, hash=row.hash.hex())


def of_checkpoint(one: Checkpoint) -> ExportLine:
    """Return the line of a checkpoint."""
    return ExportLine(checkpoint=one.statement, signature=one.signature)


def checkpoints_in(lines: Iterable[bytes]) -> list[tuple[str, Checkpoint]]:
    """Return the checkpoints in the lines of an export or of a server's log, with their tenants."""
    found = []
    for one in lines:
        if b"signature" not in one:
            continue
        try:
            said = msgspec.json.decode(one, type=_Kept)
            statement = said.checkpoint or said.statement
            place = decode(statement)
        except msgspec.DecodeError as problem:
            raise ExportUnreadable(f"a checkpoint cannot be read: {problem}") from None
        found.append((place.tenant, Checkpoint(place.covers(), statement, said.signature)))
    return found


class _Kept(msgspec.Struct):
    signature: str
    checkpoint: str = ""
    statement: str = ""


def read(found: Iterable[bytes]) -> tuple[Title, list[Checkpoint], Iterator[AuditRow]]:
    """Return the title, the checkpoints and an iterator of records; raises ExportUnreadable."""
    lines = [_read(one) for one in found if one.strip()]
    if not lines or (title := lines[0].gatepost_audit) is None or title.format != FORMAT:
        raise ExportUnreadable("it is no export of this version's in JSON lines")
    signed = [
        one for _, one in checkpoints_in(map(line, (each for each in lines if each.signature)))
    ]
    return title, signed, (_row(one) for one in lines if one.record is not UNSET)


def _read(one: bytes) -> ExportLine:
    try:
        return _line(one)
    except msgspec.DecodeError as problem:
        raise ExportUnreadable(f"a line of it cannot be read: {problem}") from None


def _row(one: ExportLine) -> AuditRow:
    body = bytes(one.record) if one.record is not UNSET else b""
    try:
        read = decode_numbered(body)
        found = bytes.fromhex(one.hash)
        caller = (one.details or {}).get("caller")
        subject = None if caller is None else text(decode_person(caller[1]).subject)
    except (msgspec.DecodeError, ValueError) as problem:
        raise ExportUnreadable(f"a record of it cannot be read: {problem}") from None
    side = None if one.details is None else _encode(one.details).decode()
    return AuditRow(
        read.number,
        read.at,
        read.kind,
        read.tool,
        read.outcome,
        subject,
        body.decode(),
        side,
        found,
        read.writer,
    )


def verify_lines(
    lines: Iterable[bytes], keys: PublicKeys, kept: Sequence[tuple[str, Checkpoint]] = ()
) -> VerificationResult:
    """
    Verify an exported file with public keys only; raises ExportUnreadable.

    A file that was cut after a checkpoint is valid by itself. Only checkpoints that were stored
    elsewhere (*kept*) show that records are missing.
    """
    title, signed, rows = read(lines)
    examination = Examination(title.tenant, keys)
    try:
        examination.checkpoints(signed)
        for tenant, one in kept:
            if tenant == title.tenant:
                examination.keep(one)
        examination.begin(title.after)
        for row in rows:
            examination.row(row)
        examination.end()
        for writer, chain in examination.chains.items():
            chain.covered()
            if title.after == title.pruned:
                chain.removed(examination.removed(writer))
    except BadRecord as bad:
        return verdict(title.tenant, examination, bad)
    return verdict(title.tenant, examination)


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
    logs = {"scope": scope, "logRecords": [log_record(tenant, one) for one in records]}
    request = {"resourceLogs": [{"resource": resource, "scopeLogs": [logs]}]}
    return in_json(msgspec.json.encode(request).decode()).encode() + b"\n"


def log_record(tenant: str, record: AuditRecord) -> dict[str, Any]:
    """Return one LogRecord."""
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
        "attributes": _otlp_attributes(attributes_of(tenant, record)),
    }


def attributes_of(tenant: str, record: AuditRecord) -> dict[str, str | int | bool]:
    """Return the attributes of an event; empty ones are left out."""
    caller = record.caller
    said: dict[str, str | int | bool] = {
        "gatepost.tenant": tenant,
        "gatepost.audit.number": record.number,
        "gatepost.audit.writer": record.writer if record.writer != FIRST_WRITER else 0,
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


def _otlp_attributes(said: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _otlp_value(value)} for name, value in said.items()]


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
    caller, about = record.caller, record.about
    fields = {
        "rt": str(round(record.at * 1000)),
        "externalId": record.id,
        "act": record.tool or record.kind,
        "outcome": record.outcome,
        "reason": record.reason,
        "request": record.private.get("name", ""),
        "suid": caller.subject if caller else "",
        "suser": caller.name if caller else "",
        "sourceServiceName": caller.client if caller else "",
        **_cef_source(caller.peer if caller else ""),
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
    for at, label in enumerate(_CEF_LABELS, start=1):
        if custom[label]:
            fields[f"cs{at}Label"], fields[f"cs{at}"] = label, custom[label]
    shown = {name: value for name, value in fields.items() if value}
    return " ".join(f"{name}={_cef_value(value[:LONGEST])}" for name, value in shown.items())


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
    lines = map(in_line, text.splitlines())
    return " ".join(lines).replace("\\", "\\\\").replace("|", "\\|")


def _cef_value(text: str) -> str:
    # Every character that ends a line for some reader becomes CEF's escape for it.
    lines = map(in_line, text.splitlines())
    return "\\n".join(line.replace("\\", "\\\\").replace("=", "\\=") for line in lines)
