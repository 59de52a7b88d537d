"""Finds out whether a tenant's records are those that were written, and which one is not."""

from collections.abc import Mapping, Sequence

import msgspec

from gatepost.audit.chain import START, hash_of, is_proven
from gatepost.audit.checkpoint import PublicKeys, Statement, decode, is_signed, seal_of
from gatepost.audit.ranges import inside, numbers_of
from gatepost.audit.record import (
    Body,
    Numbered,
    Side,
    commitment,
    decode_numbered,
    decode_side,
)
from gatepost.keyring import KeyRing
from gatepost.stores.audit import Checkpoint, Head, Row, Segment
from gatepost.stores.segment import Damaged, pieces, row_of, tally


class Bad(Exception):
    """The first record that is not as it was written, and what is wrong with it."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(what)
        self.number = number


class Signed(msgspec.Struct, frozen=True):
    """A checkpoint that was read."""

    checkpoint: Checkpoint
    statement: Statement
    good: bool | None
    """Whether its signature is; None: nobody has its key."""


class Examination:
    """
    Looks at one tenant's records in their order; raises Bad.

    Tell it the checkpoints, then each row, then the end.
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
        """The last record that a checkpoint covers whose signature is good."""
        return self._proven

    @property
    def hash(self) -> bytes:
        """The hash of the last record."""
        return self._hash

    def checkpoints(self, found: Sequence[Checkpoint]) -> None:
        """Those that stand beside the records."""
        before: Checkpoint | None = None
        for checkpoint in found:
            one = self._read(checkpoint)
            if before is not None and one.statement.previous != seal_of(before).hex():
                raise Bad(
                    checkpoint.number,
                    f"its checkpoint does not follow the one of record {before.number}: that one "
                    "was changed, or one between them is gone",
                )
            self._signed[checkpoint.number] = one
            before = checkpoint

    def keep(self, kept: Checkpoint) -> None:
        """A checkpoint that was kept elsewhere."""
        one = self._read(kept)
        if one.good is None:
            key = one.statement.key
            raise Bad(kept.number, f"the key {key} of its checkpoint is not at hand")
        self._kept[one.statement.number] = one.statement

    def begin(self, after: int) -> None:
        """The records up to that number are not here, but a checkpoint of it."""
        first = self._signed[min(self._signed)] if self._signed else None
        if after == 0:
            if first is not None and first.statement.previous:
                raise Bad(first.statement.number, "the checkpoint before its own is gone")
            return
        base = self._signed.get(after)
        if base is None:
            raise Bad(
                after + 1, f"records up to {after} are gone, and no checkpoint is left of them"
            )
        self.last, self._hash = after, bytes.fromhex(base.statement.hash)
        self._proven = after if base.good else 0

    def segment(self, segment: Segment) -> None:
        """The next segment as it is kept, which must be what its records make it."""
        first = self.last + 1
        if segment.first != first:
            raise self._gap(segment.first)
        rows = []
        try:
            for piece in pieces(segment):
                rows.append(row_of(self.last + 1, piece))
                self.row(rows[-1])
        except Damaged:
            raise Bad(self.last + 1, "it is no record, or written in another way") from None
        last: object = segment.last
        if isinstance(last, int) and last > self.last:
            raise Bad(self.last + 1, "it is missing where it was written")
        for name, said, kept in (
            ("last", self.last, last),
            ("since", min(row.at for row in rows), segment.since),
            ("until", max(row.at for row in rows), segment.until),
            ("counts", tally(row.sort for row in rows), segment.counts),
        ):
            if said != kept:
                raise Bad(first, f"the column {name} of it and those written with it was changed")

    def row(self, row: Row) -> None:
        """The next record."""
        number = self.last + 1
        if row.number != number:
            raise self._gap(row.number)
        if row.hash != hash_of(self._hash, row.body.encode()):
            raise Bad(number, "its hash is not that of its body behind the record before it")
        try:
            body = decode_numbered(row.body)
            side = decode_side(row.side) if row.side is not None else {}
            self._body(row, body)
            self._side(row, body, side)
        except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
            raise Bad(number, "it is no record") from None
        self._covered(number, row.hash)
        self.last, self._hash = number, row.hash
        self.records += 1

    def end(self) -> None:
        """There are no more records."""
        covered = max([*self._signed, *self._kept], default=0)
        if covered > self.last:
            where = "kept elsewhere" if covered in self._kept else "beside the records"
            raise Bad(self.last + 1, f"it is missing: a checkpoint {where} covers record {covered}")
        if self._without:
            raise Bad(self._without[0], "its details are gone, and no erasure of them is on record")

    def covered(self) -> None:
        """Nothing but checkpoints proves these records, so one must cover the last of them."""
        if self._proven < self.last:
            raise Bad(self._proven + 1, "no checkpoint by a key that is at hand covers it")

    def pruned(self, through: int) -> None:
        """The records up to that number must have been removed by us."""
        if through != self._pruned:
            raise Bad(
                self._pruned + 1, f"it and others up to {through} are gone, which is not on record"
            )

    def head(self, head: Head, keyring: KeyRing | None) -> None:
        """Where the chain must end, and its proof where the ring is at hand."""
        if head.number > self.last:
            raise Bad(self.last + 1, f"it is missing: the chain ends with record {head.number}")
        if head.number < self.last:
            raise Bad(head.number + 1, "it stands behind the end of the chain")
        if head.hash != self._hash:
            raise Bad(head.number, "it is not the record that the chain ends with")
        latest = self._signed.get(head.checkpoint)
        seal = seal_of(latest.checkpoint) if latest is not None else b""
        if head.checkpoint != max(self._signed, default=0) or head.seal != seal:
            raise Bad(head.checkpoint, "its checkpoint, the last one, is gone or another one")
        if keyring is not None and not is_proven(head, keyring):
            raise Bad(
                self._proven + 1 if self._proven < self.last else self.last,
                "no key of the ring proves the end of the chain: this record or a later one was "
                "changed, or some were cut off",
            )

    def _gap(self, found: object) -> Bad:
        """What is wrong where the next record is not the one of the next number."""
        # SQLite keeps anything in any column.
        if not isinstance(found, int) or found > self.last:
            return Bad(self.last + 1, "is missing")
        if not self.records:
            return Bad(max(found, 1), "it stands before the beginning of the chain")
        return Bad(self.last, f"is followed by record {found}")

    def _read(self, checkpoint: Checkpoint) -> Signed:
        number = checkpoint.number
        try:
            statement = decode(checkpoint.statement)
        except msgspec.DecodeError:
            raise Bad(number, "its checkpoint cannot be read") from None
        if (statement.tenant, statement.number) != (self._tenant, number):
            raise Bad(number, "its checkpoint is that of another record")
        good = is_signed(checkpoint, statement, self._keys)
        if good is False:
            raise Bad(number, "the signature of its checkpoint is wrong")
        return Signed(checkpoint, statement, good)

    def _covered(self, number: int, found: bytes) -> None:
        here = self._signed.get(number)
        wanted = [one for one in (here and here.statement, self._kept.get(number)) if one]
        for statement in wanted:
            if statement.hash != found.hex():
                raise Bad(
                    self._proven + 1,
                    f"the checkpoint of record {number} was made of another chain: this record or "
                    f"one of the next, up to {number}, is another one",
                )
        if number in self._kept or (here is not None and here.good):
            self._proven = number

    def _body(self, row: Row, body: Numbered) -> None:
        if body.tenant != self._tenant:
            raise Bad(row.number, "it is a record of another tenant")
        if body.number != row.number:
            raise Bad(row.number, "its number was changed")
        if body.kind == "break":
            reason = body.details.get("reason", "")
            raise Bad(row.number, f"the server found here that the chain was broken: {reason}")
        if body.kind == "retention":
            self._pruned = int(body.details["through"])
        if body.kind == "erasure":
            gone = numbers_of(body.details["records"])
            self._without = [one for one in self._without if not inside(one, gone)]

    def _side(self, row: Row, body: Body, side: Side) -> None:
        _check_side(row, body.commitments, side)
        if row.side is not None and row.side != msgspec.json.encode(side).decode():
            raise Bad(row.number, "its details are written in another way")
        if body.commitments and not side:
            self.erased += 1
            self._without.append(row.number)
        elif len(side) < len(body.commitments):
            raise Bad(row.number, "a part of its details is gone")


def _check_side(row: Row, commitments: Mapping[str, str], side: Side) -> None:
    for field, (salt, value) in side.items():
        try:
            said = commitment(salt, value)
        except ValueError:
            said = ""
        if commitments.get(field) != said:
            raise Bad(row.number, f"its {field} is not the one that was recorded")
