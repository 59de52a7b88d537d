"""Verify the audit records of a tenant; `export` uses this for the records of a file."""

from collections.abc import Mapping, Sequence

import msgspec

from gatepost.audit.chain import START, hash_of, is_proven
from gatepost.audit.checkpoints import PublicKeys, Statement, decode, is_signed, seal_of
from gatepost.audit.erasure import inside, numbers_of
from gatepost.audit.record import (
    Numbered,
    RecordBody,
    Side,
    commitment,
    decode_numbered,
    decode_side,
)
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditRow, ChainHead, Checkpoint, Segment, TenantTrail
from gatepost.storage.audit_segments import Damaged, counts_of, pieces, row_of
from gatepost.storage.records import Records

PAGE = 100
"""The number of segments that are read at once."""
LOWEST = -(1 << 63)
"""The lowest number of a column: an attacker may have written any number to the database."""


class BadRecord(Exception):
    """Raised for the first record that was changed; the message says what is wrong with it."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(what)
        self.number = number


class Signed(msgspec.Struct, frozen=True):
    """A checkpoint with its decoded statement."""

    checkpoint: Checkpoint
    statement: Statement
    good: bool | None
    """Whether the signature is valid; None if the public key is unknown."""


class Examination:
    """
    Verifies one tenant's records in their order; its methods raise BadRecord.

    Call `checkpoints`, `begin`, then `segment` or `row` for each record, then `end`.
    """

    def __init__(self, tenant: str, keys: PublicKeys) -> None:
        self._tenant, self._keys = tenant, keys
        self._hash, self.last = START, 0
        self._signed: dict[int, Signed] = {}
        self._kept: dict[int, Statement] = {}
        self._proven = 0
        self._without: list[int] = []
        self._pruned = 0
        self.records = 0
        self.erased = 0

    @property
    def proven(self) -> int:
        """The number of the last record that a checkpoint with a valid signature covers."""
        return self._proven

    @property
    def hash(self) -> bytes:
        """The hash of the last record."""
        return self._hash

    def checkpoints(self, found: Sequence[Checkpoint]) -> None:
        """Verify the checkpoints that are stored beside the records."""
        before: Checkpoint | None = None
        for checkpoint in found:
            one = self._read(checkpoint)
            if before is not None and one.statement.previous != seal_of(before).hex():
                raise BadRecord(
                    checkpoint.number,
                    f"its checkpoint does not follow the one of record {before.number}: that one "
                    "was changed, or one between them is gone",
                )
            self._signed[checkpoint.number] = one
            before = checkpoint

    def keep(self, kept: Checkpoint) -> None:
        """Add a checkpoint that was stored elsewhere."""
        one = self._read(kept)
        if one.good is None:
            key = one.statement.key
            raise BadRecord(kept.number, f"the key {key} of its checkpoint is not at hand")
        self._kept[one.statement.number] = one.statement

    def begin(self, after: int) -> None:
        """Begin after a pruned part, whose last record has the number *after* and a checkpoint."""
        first = self._signed[min(self._signed)] if self._signed else None
        if after == 0:
            if first is not None and first.statement.previous:
                raise BadRecord(first.statement.number, "the checkpoint before its own is gone")
            return
        base = self._signed.get(after)
        if base is None:
            raise BadRecord(
                after + 1, f"records up to {after} are gone, and no checkpoint is left of them"
            )
        self.last, self._hash = after, bytes.fromhex(base.statement.hash)
        self._proven = after if base.good else 0

    def segment(self, segment: Segment) -> None:
        """Verify the next stored segment: its records, and the columns computed from them."""
        first = self.last + 1
        if segment.first != first:
            raise self._gap(segment.first)
        rows = []
        try:
            for piece in pieces(segment):
                rows.append(row_of(self.last + 1, piece))
                self.row(rows[-1])
        except Damaged:
            raise BadRecord(self.last + 1, "it is no record, or written in another way") from None
        last: object = segment.last
        if isinstance(last, int) and last > self.last:
            raise BadRecord(self.last + 1, "it is missing where it was written")
        for name, said, kept in (
            ("last", self.last, last),
            ("since", min(row.at for row in rows), segment.since),
            ("until", max(row.at for row in rows), segment.until),
            ("counts", counts_of(row.sort for row in rows), segment.counts),
        ):
            if said != kept:
                raise BadRecord(
                    first, f"the column {name} of it and those written with it was changed"
                )

    def row(self, row: AuditRow) -> None:
        """Verify the next record."""
        number = self.last + 1
        if row.number != number:
            raise self._gap(row.number)
        if row.hash != hash_of(self._hash, row.body.encode()):
            raise BadRecord(number, "its hash is not that of its body behind the record before it")
        try:
            body = decode_numbered(row.body)
            side = decode_side(row.side) if row.side is not None else {}
            self._body(row, body)
            self._side(row, body, side)
        except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
            raise BadRecord(number, "it is not a record") from None
        self._covered(number, row.hash)
        self.last, self._hash = number, row.hash
        self.records += 1

    def end(self) -> None:
        """Verify that no record is missing at the end."""
        covered = max([*self._signed, *self._kept], default=0)
        if covered > self.last:
            where = "kept elsewhere" if covered in self._kept else "beside the records"
            raise BadRecord(
                self.last + 1, f"it is missing: a checkpoint {where} covers record {covered}"
            )
        if self._without:
            raise BadRecord(
                self._without[0], "its details are gone, and no erasure of them is on record"
            )

    def covered(self) -> None:
        """Verify that a checkpoint covers the last record, because nothing else proves it."""
        if self._proven < self.last:
            raise BadRecord(self._proven + 1, "no checkpoint by a key that is at hand covers it")

    def pruned(self, through: int) -> None:
        """Verify that a retention record says that the records up to *through* were removed."""
        if through != self._pruned:
            raise BadRecord(
                self._pruned + 1, f"it and others up to {through} are gone, which is not on record"
            )

    def head(self, head: ChainHead, keyring: KeyRing | None) -> None:
        """Verify that the chain ends at *head*, and its proof if the key ring is given."""
        if head.number > self.last:
            raise BadRecord(
                self.last + 1, f"it is missing: the chain ends with record {head.number}"
            )
        if head.number < self.last:
            raise BadRecord(head.number + 1, "it comes after the end of the chain")
        if head.hash != self._hash:
            raise BadRecord(head.number, "it is not the record that the chain ends with")
        latest = self._signed.get(head.checkpoint)
        seal = seal_of(latest.checkpoint) if latest is not None else b""
        if head.checkpoint != max(self._signed, default=0) or head.seal != seal:
            raise BadRecord(head.checkpoint, "its checkpoint, the last one, is gone or another one")
        if keyring is not None and not is_proven(head, keyring):
            raise BadRecord(
                self._proven + 1 if self._proven < self.last else self.last,
                "no key of the ring proves the end of the chain: this record or a later one was "
                "changed, or some were cut off",
            )

    def _gap(self, found: object) -> BadRecord:
        """Return the error for a next record that does not have the next number."""
        # SQLite keeps anything in any column.
        if not isinstance(found, int) or found > self.last:
            return BadRecord(self.last + 1, "is missing")
        if not self.records:
            return BadRecord(max(found, 1), "it stands before the beginning of the chain")
        return BadRecord(self.last, f"is followed by record {found}")

    def _read(self, checkpoint: Checkpoint) -> Signed:
        number = checkpoint.number
        try:
            statement = decode(checkpoint.statement)
        except msgspec.DecodeError:
            raise BadRecord(number, "its checkpoint cannot be read") from None
        if (statement.tenant, statement.number) != (self._tenant, number):
            raise BadRecord(number, "its checkpoint is that of another record")
        good = is_signed(checkpoint, statement, self._keys)
        if good is False:
            raise BadRecord(number, "the signature of its checkpoint is wrong")
        return Signed(checkpoint, statement, good)

    def _covered(self, number: int, found: bytes) -> None:
        here = self._signed.get(number)
        wanted = [one for one in (here and here.statement, self._kept.get(number)) if one]
        for statement in wanted:
            if statement.hash != found.hex():
                raise BadRecord(
                    self._proven + 1,
                    f"the checkpoint of record {number} was made of another chain: this record or "
                    f"one of the next, up to {number}, is another one",
                )
        if number in self._kept or (here is not None and here.good):
            self._proven = number

    def _body(self, row: AuditRow, body: Numbered) -> None:
        if body.tenant != self._tenant:
            raise BadRecord(row.number, "it is a record of another tenant")
        if body.number != row.number:
            raise BadRecord(row.number, "its number was changed")
        if body.kind == "break":
            reason = body.details.get("reason", "")
            raise BadRecord(
                row.number, f"the server found here that the chain was broken: {reason}"
            )
        if body.kind == "retention":
            self._pruned = int(body.details["through"])
        if body.kind == "erasure":
            gone = numbers_of(body.details["records"])
            self._without = [one for one in self._without if not inside(one, gone)]

    def _side(self, row: AuditRow, body: RecordBody, side: Side) -> None:
        _check_side(row, body.commitments, side)
        if row.side is not None and row.side != msgspec.json.encode(side).decode():
            raise BadRecord(row.number, "its details are written in another way")
        if body.commitments and not side:
            self.erased += 1
            self._without.append(row.number)
        elif len(side) < len(body.commitments):
            raise BadRecord(row.number, "a part of its details is gone")


def _check_side(row: AuditRow, commitments: Mapping[str, str], side: Side) -> None:
    for field, (salt, value) in side.items():
        try:
            said = commitment(salt, value)
        except ValueError:
            said = ""
        if commitments.get(field) != said:
            raise BadRecord(row.number, f"its {field} is not the one that was recorded")


class VerificationResult(msgspec.Struct, frozen=True):
    """The result of verifying one tenant's records."""

    tenant: str
    records: int
    last: int
    """The last record's number."""
    proven: int
    """The last record that a checkpoint proves; the key ring proves the later ones."""
    erased: int
    """Records whose details were erased, as an erasure record says."""
    bad: int | None = None
    """The first record that was changed."""
    problem: str = ""


async def verify(
    records: Records,
    tenant: str,
    keys: PublicKeys,
    keyring: KeyRing | None,
    kept: Sequence[Checkpoint] = (),
) -> VerificationResult:
    """
    Verify a tenant's records in a database; nothing is changed.

    Without the key ring, only the hash chain of records after the last checkpoint is verified.
    """
    examination = Examination(tenant, keys)
    try:
        await _examine(examination, records.of(tenant).trail, keyring, kept)
    except BadRecord as bad:
        return verdict(tenant, examination, bad)
    return verdict(tenant, examination)


def verdict(tenant: str, found: Examination, bad: BadRecord | None = None) -> VerificationResult:
    """Return the result of an examination."""
    seen = (tenant, found.records, found.last, found.proven, found.erased)
    return (
        VerificationResult(*seen)
        if bad is None
        else VerificationResult(*seen, bad.number, str(bad))
    )


async def _examine(
    examination: Examination,
    trail: TenantTrail,
    keyring: KeyRing | None,
    kept: Sequence[Checkpoint],
) -> None:
    head = await trail.head()
    pruned = head.pruned if head is not None else 0
    signed = await trail.checkpoints()
    if head is not None:
        # A server may sign another checkpoint meanwhile.
        signed = [one for one in signed if one.number <= head.number] or signed
    examination.checkpoints(signed)
    for one in kept:
        examination.keep(one)
    examination.begin(pruned)
    found = await _segments(examination, trail, head)
    examination.end()
    examination.pruned(pruned)
    if head is None:
        if found or signed:
            raise BadRecord(1, "the end of the chain is gone")
        return
    examination.head(head, keyring)
    if (more := await trail.segments(head.number + 1, 1)) and await _is_behind(trail, more[0]):
        raise BadRecord(head.number + 1, "it comes after the end of the chain")


async def _segments(examination: Examination, trail: TenantTrail, head: ChainHead | None) -> bool:
    """Examine the segments up to the head; return whether there was any."""
    start = LOWEST
    while page := await trail.segments(start, PAGE):
        for segment in page:
            if head is not None and segment.first > head.number:
                return True
            examination.segment(segment)
        start = page[-1].first + 1
    return start != LOWEST


async def _is_behind(trail: TenantTrail, segment: Segment) -> bool:
    """Return whether the segment is after the end; the chain may have grown meanwhile."""
    head = await trail.head()
    return head is None or head.number < segment.first
