"""
Export records as JSON lines, which can be verified with a file of public keys.

The first JSON line says what the file contains. Then come records and, after the records that each
covers, checkpoints. A body is written byte for byte, because its hash is of these bytes.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from msgspec import UNSET, Raw, UnsetType

from gatepost.audit.chain_examination import BadRecord
from gatepost.audit.checkpoints import PublicKeys, decode, last_numbers
from gatepost.audit.record import decode_numbered, decode_side
from gatepost.audit.retention import is_before
from gatepost.audit.verify import Examination, VerificationResult, verdict
from gatepost.storage.audit import (
    CHECKPOINTS,
    AuditRow,
    AuditStore,
    Checkpoint,
    TenantChain,
)
from gatepost.telemetry.logs import in_json

FORMAT = 1
PAGE = 1_000
"""The number of records that are read at once."""
_NAMED = "# key "


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


async def exported(audit_store: AuditStore, tenant: str, *, since: int = 0) -> AsyncIterator[bytes]:
    """
    Yield the lines of a tenant's records since a time, in milliseconds since the epoch.

    They begin after a checkpoint, so that they can be verified. Raises StoreUnavailable.
    """
    tenant_log = audit_store.tenant_log(tenant)
    signed = await tenant_log.checkpoints()
    heads = await tenant_log.heads()
    removed = {head.writer: head.pruned for head in heads}
    after = pruned = removed.get(CHECKPOINTS, 0)
    ends = dict[int, int]()
    for checkpoint in signed:
        if checkpoint.number > after and await is_before(tenant_log, checkpoint, since, removed):
            after = checkpoint.number
    yield line(ExportLine(gatepost_audit=Title(tenant, after, pruned)))
    for checkpoint in signed:
        if checkpoint.number < after:
            continue
        end = last_numbers(checkpoint)
        if checkpoint.number > after:
            for writer, number in end.items():
                async for row in _rows(tenant_log.chain(writer), ends.get(writer, 0), number):
                    yield line(of_row(row))
        ends |= end
        yield line(of_checkpoint(checkpoint))
    for writer in await tenant_log.writers():
        async for row in _rows(tenant_log.chain(writer), ends.get(writer, 0), None):
            yield line(of_row(row))


async def _rows(chain: TenantChain, after: int, through: int | None) -> AsyncIterator[AuditRow]:
    """Yield the records after a number, up to a number."""
    while through is None or after < through:
        max_rows = PAGE if through is None else min(PAGE, through - after)
        page = await chain.rows(after, max_rows)
        for row in page:
            yield row
        if not page:
            break
        after = page[-1].number


def line(entry: ExportLine) -> bytes:
    """Encode a line as JSON, without characters that a terminal or an editor would act on."""
    encoded = _encode(entry).decode()
    body = "" if entry.record is UNSET else bytes(entry.record).decode()
    # A body is written unchanged, because its hash is of its bytes. Callers' values are details.
    return (in_json(encoded) if in_json(body) == body else encoded).encode() + b"\n"


def of_row(row: AuditRow) -> ExportLine:
    """Return the line of a record."""
    details = None if row.side is None else decode_side(row.side)
    return ExportLine(record=Raw(row.body.encode()), details=details, hash=row.hash.hex())


def of_checkpoint(checkpoint: Checkpoint) -> ExportLine:
    """Return the line of a checkpoint."""
    return ExportLine(checkpoint=checkpoint.statement, signature=checkpoint.signature)


def checkpoints_in(lines: Iterable[bytes]) -> list[tuple[str, Checkpoint]]:
    """Return the checkpoints in the lines of an export or of a server's log, with their tenants."""
    checkpoints = []
    for encoded_line in lines:
        if b"signature" not in encoded_line:
            continue
        try:
            decoded = msgspec.json.decode(encoded_line, type=_Kept)
            statement = decoded.checkpoint or decoded.statement
            covered = decode(statement)
        except msgspec.DecodeError as problem:
            raise ExportUnreadable(f"a checkpoint cannot be read: {problem}") from None
        checkpoints.append(
            (covered.tenant, Checkpoint(covered.covers(), statement, decoded.signature))
        )
    return checkpoints


class _Kept(msgspec.Struct):
    signature: str
    checkpoint: str = ""
    statement: str = ""


def read(encoded_lines: Iterable[bytes]) -> tuple[Title, list[Checkpoint], Iterator[AuditRow]]:
    """Return the title, the checkpoints and an iterator of records; raises ExportUnreadable."""
    lines = [_read(encoded) for encoded in encoded_lines if encoded.strip()]
    if not lines or (title := lines[0].gatepost_audit) is None or title.format != FORMAT:
        raise ExportUnreadable("it is no export of this version's in JSON lines")
    signed = [
        checkpoint
        for _, checkpoint in checkpoints_in(
            map(line, (entry for entry in lines if entry.signature))
        )
    ]
    return (
        title,
        signed,
        (_row(entry) for entry in lines if entry.record is not UNSET),
    )


def _read(encoded_line: bytes) -> ExportLine:
    try:
        return _line(encoded_line)
    except msgspec.DecodeError as problem:
        raise ExportUnreadable(f"a line of it cannot be read: {problem}") from None


def _row(entry: ExportLine) -> AuditRow:
    body = bytes(entry.record) if entry.record is not UNSET else b""
    try:
        decoded, digest = decode_numbered(body), bytes.fromhex(entry.hash)
    except (msgspec.DecodeError, ValueError) as problem:
        raise ExportUnreadable(f"a record of it cannot be read: {problem}") from None
    side = None if entry.details is None else _encode(entry.details).decode()
    usual = decoded.number, decoded.at, decoded.kind, decoded.tool, decoded.outcome
    # Verification compares each detail with its commitment; it needs no column for queries.
    return AuditRow(*usual, None, body.decode(), side, digest, decoded.writer)


def verify_lines(
    lines: Iterable[bytes],
    keys: PublicKeys,
    kept_checkpoints: Sequence[tuple[str, Checkpoint]] = (),
) -> VerificationResult:
    """
    Verify an exported file with public keys only; raises ExportUnreadable.

    A file that was cut after a checkpoint is valid by itself. Only checkpoints that were stored
    elsewhere (*kept_checkpoints*) show that records are missing.
    """
    title, signed, rows = read(lines)
    examination = Examination(title.tenant, keys)
    try:
        anchors = [checkpoint for tenant, checkpoint in kept_checkpoints if tenant == title.tenant]
        examination.begin(signed, anchors, title.after)
        for row in rows:
            examination.row(row)
        examination.end()
        for writer, chain in examination.chains.items():
            chain.covered()
            if title.after == title.pruned:
                chain.removed(examination.removed(writer))
    except BadRecord as error:
        return verdict(title.tenant, examination, error)
    return verdict(title.tenant, examination)


def as_pem(keys: PublicKeys) -> str:
    """Return the text of a key file: each key in PEM, after a line with its id."""
    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return "".join(
        f"{_NAMED}{name}\n{key.public_bytes(*form).decode()}" for name, key in keys.items()
    )


def from_pem(text: str) -> dict[str, Ed25519PublicKey]:
    """Read the text of a key file; raises ValueError."""
    keys = {}
    for part in text.split(_NAMED)[1:]:
        name, _, pem = part.partition("\n")
        key = load_pem_public_key(pem.encode())
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError(f"the key {name.strip()} is not of Ed25519")
        keys[name.strip()] = key
    if not keys:
        raise ValueError("there is no key in it; `gatepost audit key` writes such a file")
    return keys
