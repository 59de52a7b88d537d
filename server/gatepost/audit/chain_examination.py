"""Verify the hash chain of one writer in one tenant, record by record."""

from collections.abc import Sequence

import msgspec

from gatepost.audit.chain import START, commitment, hash_of, inside, is_proven, numbers_of
from gatepost.audit.record import (
    Numbered,
    RecordBody,
    SaltedDetails,
    decode_numbered,
    decode_side,
)
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import AuditRow, ChainHead, Segment, record_id
from gatepost.storage.audit_counts import counts_of
from gatepost.storage.audit_segments import Damaged, pieces, row_of


class BadRecord(Exception):
    """Raised for the first record that was changed; the message says what is wrong with it."""

    def __init__(self, writer: int, number: int, problem: str) -> None:
        super().__init__(problem)
        self.writer, self.number = writer, number


class CoveredEnd(msgspec.Struct, frozen=True):
    """A checkpoint's statement about one chain: its end."""

    number: int
    hash: str
    """The hash in hexadecimal."""
    is_valid: bool
    """Whether the signature of the checkpoint is valid; False if its key is unknown."""
    is_kept: bool
    """Whether it was stored elsewhere."""


class ChainExamination:
    """
    Verifies one chain in the order of its records; its methods raise BadRecord.

    *covered_ends* are the checkpoints' statements about it. *after* is the last statement about a
    removed part, if records were removed. Call `segment` or `row` for each record, then `end`.
    """

    def __init__(
        self,
        tenant: str,
        writer: int,
        covered_ends: Sequence[CoveredEnd],
        after: CoveredEnd | None = None,
    ) -> None:
        self.writer = writer
        self._tenant = tenant
        self._covered_ends: dict[int, list[CoveredEnd]] = {}
        for covered_end in covered_ends:
            self._covered_ends.setdefault(covered_end.number, []).append(covered_end)
        self.hash, self.last = START, 0
        self.proven = 0
        """The number of the last record that a checkpoint with a valid signature covers."""
        if after is not None:
            self.hash, self.last = bytes.fromhex(after.hash), after.number
            self.proven = after.number if after.is_valid else 0
        self._without_details: list[int] = []
        self.pruned = 0
        """The last record that was removed, as a retention record says."""
        self.records = 0
        """The number of records that were verified."""
        self.erased = 0
        """How many of them have had their details erased, as erasure records say."""

    @property
    def first(self) -> int:
        """Return the first record's number."""
        return self.last - self.records + 1

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
            raise self._bad_record(
                self.last + 1, "it is no record, or written in another way"
            ) from None
        last: object = segment.last
        if isinstance(last, int) and last > self.last:
            raise self._bad_record(self.last + 1, "it is missing where it was written")
        for name, computed, stored in (
            ("last", self.last, last),
            ("since", min(row.at for row in rows), segment.since),
            ("until", max(row.at for row in rows), segment.until),
            ("counts", counts_of([row.sort for row in rows]), segment.counts),
        ):
            if computed != stored:
                raise self._bad_record(
                    first, f"the column {name} of it and those written with it was changed"
                )

    def row(self, row: AuditRow) -> None:
        """Verify the next record."""
        number = self.last + 1
        if row.number != number:
            raise self._gap(row.number)
        if row.hash != hash_of(self.hash, row.body.encode()):
            raise self._bad_record(
                number, "its hash is not that of its body behind the record before it"
            )
        try:
            body = decode_numbered(row.body)
            side = decode_side(row.side) if row.side is not None else {}
            self._body(row, body)
            self._side(row, body, side)
        except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
            raise self._bad_record(number, "it is not a record") from None
        self._covered(number, row.hash)
        self.last, self.hash = number, row.hash
        self.records += 1

    def end(self) -> None:
        """Verify that no record is missing at the end."""
        covered = max(self._covered_ends, default=0)
        if covered > self.last:
            is_kept = any(covered_end.is_kept for covered_end in self._covered_ends[covered])
            where = "kept elsewhere" if is_kept else "beside the records"
            raise self._bad_record(
                self.last + 1,
                f"it is missing: a checkpoint {where} covers record {self._id(covered)}",
            )
        if self._without_details:
            raise self._bad_record(
                self._without_details[0],
                "its details are gone, and no erasure of them is on record",
            )

    def covered(self) -> None:
        """Verify that a checkpoint covers the last record, because nothing else proves it."""
        if self.proven < self.last:
            raise self._bad_record(
                self.proven + 1, "no checkpoint by a key that is at hand covers it"
            )

    def removed(self, through: int) -> None:
        """Verify that a retention record says that the records up to *through* were removed."""
        if through != self.pruned:
            raise self._bad_record(
                self.pruned + 1,
                f"it and others up to {self._id(through)} are gone, which is not on record",
            )

    def head(self, head: ChainHead, keyring: KeyRing | None) -> None:
        """Verify that the chain ends at *head*, and its proof if the key ring is given."""
        if head.number > self.last:
            end = self._id(head.number)
            raise self._bad_record(
                self.last + 1, f"it is missing: the chain ends with record {end}"
            )
        if head.number < self.last:
            raise self._bad_record(head.number + 1, "it comes after the end of the chain")
        if head.hash != self.hash:
            raise self._bad_record(head.number, "it is not the record that the chain ends with")
        if keyring is not None and not is_proven(head, keyring):
            raise self._bad_record(
                self.proven + 1 if self.proven < self.last else self.last,
                "no key of the ring proves the end of the chain: this record or a later one was "
                "changed, or some were removed",
            )

    def _id(self, number: int) -> str:
        return record_id(self.writer, number)

    def _bad_record(self, number: int, problem: str) -> BadRecord:
        return BadRecord(self.writer, number, problem)

    def _gap(self, number: object) -> BadRecord:
        """Return the error for a next record that does not have the next number."""
        # SQLite accepts any value in any column.
        if not isinstance(number, int) or number > self.last:
            return self._bad_record(self.last + 1, "is missing")
        if not self.records:
            return self._bad_record(max(number, 1), "it stands before the beginning of the chain")
        return self._bad_record(self.last, f"is followed by record {self._id(number)}")

    def _covered(self, number: int, digest: bytes) -> None:
        covered_ends = self._covered_ends.get(number, ())
        if any(covered_end.hash != digest.hex() for covered_end in covered_ends):
            raise self._bad_record(
                self.proven + 1,
                f"the checkpoint of record {self._id(number)} was made of another chain: this "
                f"record or one of the next, up to {self._id(number)}, is another one",
            )
        if any(covered_end.is_valid for covered_end in covered_ends):
            self.proven = number

    def _body(self, row: AuditRow, body: Numbered) -> None:
        if body.tenant != self._tenant:
            raise self._bad_record(row.number, "it is a record of another tenant")
        if (body.writer, body.number) != (self.writer, row.number):
            raise self._bad_record(row.number, "its number was changed")
        if body.kind == "break":
            reason = body.details.get("reason", "")
            raise self._bad_record(
                row.number, f"the server found here that the chain was broken: {reason}"
            )
        if body.kind == "retention":
            self.pruned = int(body.details["through"])
        if body.kind == "erasure":
            erased_numbers = numbers_of(body.details["records"])
            self._without_details = [
                number for number in self._without_details if not inside(number, erased_numbers)
            ]

    def _side(self, row: AuditRow, body: RecordBody, side: SaltedDetails) -> None:
        for field, (salt, value) in side.items():
            try:
                computed = commitment(salt, value)
            except ValueError:
                computed = ""
            if body.commitments.get(field) != computed:
                raise self._bad_record(row.number, f"its {field} is not the one that was recorded")
        if row.side is not None and row.side != msgspec.json.encode(side).decode():
            raise self._bad_record(row.number, "its details are written in another way")
        if body.commitments and not side:
            self.erased += 1
            self._without_details.append(row.number)
        elif len(side) < len(body.commitments):
            raise self._bad_record(row.number, "a part of its details is gone")
