"""
Records as JSON lines: the form that can be verified, by `gatepost audit verify` or by hand.

The first line says what the file holds; then come records and, behind the record that each covers,
checkpoints. A body stands there byte for byte, as its hash is of these bytes.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.audit.checkpoint import PublicKeys
from gatepost.audit.examine import Bad, Examination
from gatepost.audit.record import decode_numbered, decode_person, text
from gatepost.audit.verify import Verdict, verdict
from gatepost.stores.api import Records
from gatepost.stores.audit import Checkpoint, Row

FORMAT = 1
PAGE = 1_000
"""Records that are read at once."""


class Title(msgspec.Struct, frozen=True):
    """What a file holds."""

    tenant: str
    after: int
    """The records up to this number are not in the file."""
    pruned: int
    """The records up to this number are gone."""
    format: int = FORMAT


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: a title, or a record with its details and hash, or a checkpoint."""

    gatepost_audit: Title | None = None
    record: Raw | UnsetType = UNSET
    details: dict[str, tuple[str, str]] | None = None
    """Salt and value of what the record commits to."""
    hash: str = ""
    checkpoint: str = ""
    """The statement, exactly as it was signed."""
    signature: str = ""


class Unreadable(Exception):
    """The file is no export; the message is a sentence."""


_encode = msgspec.json.encode
_line = msgspec.json.Decoder(Line).decode
_side = msgspec.json.Decoder(dict[str, tuple[str, str]]).decode


async def exported(records: Records, tenant: str, *, since: int = 0) -> AsyncIterator[bytes]:
    """
    The lines of a tenant's records from that time on (milliseconds since the epoch), beginning
    behind a checkpoint so that they can be verified. Raises StoreUnavailable.
    """
    trail = records.of(tenant).trail
    signed = await trail.checkpoints()
    head = await trail.head()
    pruned = head.pruned if head is not None else 0
    after = pruned
    for one in signed:
        rows = await trail.rows(one.number, 1)
        if rows and rows[0].at < since and one.number > after:
            after = one.number
    yield line(Line(gatepost_audit=Title(tenant, after, pruned)))
    left = [one for one in signed if one.number >= after]
    while left and left[0].number == after:
        yield line(of_checkpoint(left.pop(0)))
    while page := await trail.rows(after, PAGE):
        for row in page:
            yield line(of_row(row))
            while left and left[0].number <= row.number:
                yield line(of_checkpoint(left.pop(0)))
        after = page[-1].number


def line(one: Line) -> bytes:
    """It as JSON on one line."""
    return _encode(one) + b"\n"


def of_row(row: Row) -> Line:
    """A record as a line."""
    details = None if row.side is None else _side(row.side)
    return Line(record=Raw(row.body.encode()), details=details, hash=row.hash.hex())


def of_checkpoint(one: Checkpoint) -> Line:
    """A checkpoint as a line."""
    return Line(checkpoint=one.statement, signature=one.signature)


def checkpoints_in(lines: Iterable[bytes]) -> list[tuple[str, Checkpoint]]:
    """The checkpoints of such lines, or of a server's log, each with its tenant."""
    found = []
    for one in lines:
        if b"signature" not in one:
            continue
        try:
            said = msgspec.json.decode(one, type=_Kept)
            statement = said.checkpoint or said.statement
            place = msgspec.json.decode(statement, type=_Place)
        except msgspec.DecodeError as problem:
            raise Unreadable(f"a checkpoint cannot be read: {problem}") from None
        found.append((place.tenant, Checkpoint(place.number, statement, said.signature)))
    return found


class _Kept(msgspec.Struct):
    signature: str
    checkpoint: str = ""
    statement: str = ""


class _Place(msgspec.Struct):
    tenant: str
    number: int


def read(found: Iterable[bytes]) -> tuple[Title, list[Checkpoint], Iterator[Row]]:
    """What a file holds, its rows one by one as they are asked for; raises Unreadable."""
    lines = [_read(one) for one in found if one.strip()]
    if not lines or (title := lines[0].gatepost_audit) is None or title.format != FORMAT:
        raise Unreadable("it is no export of this version's in JSON lines")
    signed = [
        one for _, one in checkpoints_in(map(line, (each for each in lines if each.signature)))
    ]
    return title, signed, (_row(one) for one in lines if one.record is not UNSET)


def _read(one: bytes) -> Line:
    try:
        return _line(one)
    except msgspec.DecodeError as problem:
        raise Unreadable(f"a line of it cannot be read: {problem}") from None


def _row(one: Line) -> Row:
    body = bytes(one.record) if one.record is not UNSET else b""
    try:
        read = decode_numbered(body)
        found = bytes.fromhex(one.hash)
        caller = (one.details or {}).get("caller")
        subject = None if caller is None else text(decode_person(caller[1]).subject)
    except (msgspec.DecodeError, ValueError) as problem:
        raise Unreadable(f"a record of it cannot be read: {problem}") from None
    side = None if one.details is None else _encode(one.details).decode()
    return Row(
        read.number,
        read.at,
        read.kind,
        read.tool,
        read.outcome,
        subject,
        body.decode(),
        side,
        found,
    )


def verify_lines(
    lines: Iterable[bytes], keys: PublicKeys, kept: Sequence[tuple[str, Checkpoint]] = ()
) -> Verdict:
    """
    Examine a file with nothing but public keys; raises Unreadable.

    A file that was cut behind a checkpoint is whole for whoever knows nothing else: *kept* ones
    tell it.
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
        examination.covered()
        if title.after == title.pruned:
            examination.pruned(title.pruned)
    except Bad as bad:
        return verdict(title.tenant, examination, bad)
    return verdict(title.tenant, examination)
