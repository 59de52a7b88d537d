"""Verify the audit records of a tenant; `export` uses this for the records of a file."""

import contextlib
from collections.abc import Sequence

import msgspec

from gatepost.audit.chain import is_proven
from gatepost.audit.chain_examination import BadRecord, ChainExamination, CoveredEnd
from gatepost.audit.checkpoints import PublicKeys, Statement, decode, digest_of, is_signed
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import (
    CHECKPOINTS,
    FIRST_WRITER,
    AuditRow,
    AuditStore,
    ChainHead,
    Checkpoint,
    TenantAuditLog,
    TenantChain,
)

PAGE = 100
"""The number of segments that are read at once."""
MAX_READINGS = 10
"""How often records are read until two readings agree on a problem."""
LOWEST = -(1 << 63)
"""The lowest number of a column: an attacker may have written any number to the database."""


class SignedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint with its decoded statement."""

    checkpoint: Checkpoint
    statement: Statement
    is_valid: bool | None
    """Whether the signature is valid; None if the public key is unknown."""
    is_kept: bool
    """Whether it was stored elsewhere."""

    def end(self, writer: int) -> CoveredEnd | None:
        """Return what it says of a writer's chain, if it covers any of its records."""
        end = self.statement.ends().get(writer)
        return None if end is None else CoveredEnd(*end, bool(self.is_valid), self.is_kept)


class Examination:
    """
    Verifies one tenant's records; its methods raise BadRecord.

    Call `begin`, then `chain` for each writer or `row` for each record, in the order of the chains,
    then `end`.
    """

    def __init__(self, tenant: str, keys: PublicKeys) -> None:
        self._tenant, self._keys = tenant, keys
        self._signed: list[SignedCheckpoint] = []
        self._anchors: list[SignedCheckpoint] = []
        self._base: SignedCheckpoint | None = None
        self.chains: dict[int, ChainExamination] = {}

    def begin(
        self, signed: Sequence[Checkpoint], anchors: Sequence[Checkpoint], after: int
    ) -> None:
        """
        Verify the checkpoints, and begin after a removed part of *after* records.

        *signed* are stored beside the records, *anchors* elsewhere.
        """
        for checkpoint in signed:
            examined = self._read(checkpoint)
            if self._signed:
                before = self._signed[-1].checkpoint
                if examined.statement.previous != digest_of(before).hex():
                    raise _error_of(
                        checkpoint,
                        f"its checkpoint does not follow the one of record {before.number}: that "
                        "one was changed, or one between them is gone",
                    )
            self._signed.append(examined)
        for checkpoint in anchors:
            examined = self._read(checkpoint, is_kept=True)
            if examined.is_valid is None:
                key = examined.statement.key
                raise _error_of(checkpoint, f"the key {key} of its checkpoint is not at hand")
            self._anchors.append(examined)
        if after:
            bases = (base for base in self._signed if base.checkpoint.number == after)
            self._base = next(bases, None)
            if self._base is None:
                raise BadRecord(
                    FIRST_WRITER,
                    after + 1,
                    f"records up to {after} are gone, and no checkpoint is left of them",
                )
        elif self._signed and self._signed[0].statement.previous:
            raise _error_of(self._signed[0].checkpoint, "the checkpoint before its own is gone")

    def chain(self, writer: int) -> ChainExamination:
        """Return the examination of a writer's chain, which begins after the removed part."""
        if (examination := self.chains.get(writer)) is None:
            ends = [checkpoint.end(writer) for checkpoint in (*self._signed, *self._anchors)]
            after = None if self._base is None else self._base.end(writer)
            covered = [end for end in ends if end is not None]
            examination = ChainExamination(self._tenant, writer, covered, after)
            self.chains[writer] = examination
        return examination

    def row(self, row: AuditRow) -> None:
        """Verify the next record of its chain."""
        self.chain(row.writer).row(row)

    def end(self) -> None:
        """Verify that no chain and no record at the end of a chain is missing."""
        for writer in sorted(self.named()):
            self.chain(writer).end()

    def named(self) -> set[int]:
        """Return every writer whose chain was examined or is covered by a checkpoint."""
        named = (signed.statement.ends() for signed in (*self._signed, *self._anchors))
        return {*self.chains, *(writer for ends in named for writer in ends)}

    def removed(self, writer: int) -> int:
        """Return the last record of a writer that was removed, as the first checkpoint says."""
        end = self._base.end(writer) if self._base else None
        return 0 if end is None else end.number

    def head(self, head: ChainHead | None, keyring: KeyRing | None) -> None:
        """Verify the end of the chain of checkpoints, and its proof if the key ring is given."""
        latest = self._signed[-1].checkpoint if self._signed else None
        number, digest = (latest.number, digest_of(latest)) if latest else (0, b"")
        if head is None:
            if latest is not None:
                raise _error_of(latest, "the end of the chain of checkpoints is gone")
        elif (head.number, head.hash) != (number, digest):
            raise BadRecord(
                FIRST_WRITER, head.number, "its checkpoint, the last one, is gone or another one"
            )
        elif keyring is not None and not is_proven(head, keyring):
            raise BadRecord(
                FIRST_WRITER,
                head.number,
                "no key of the ring proves that its checkpoint is the last",
            )

    def _read(self, checkpoint: Checkpoint, *, is_kept: bool = False) -> SignedCheckpoint:
        try:
            statement = decode(checkpoint.statement)
        except msgspec.DecodeError:
            raise _error_of(checkpoint, "its checkpoint cannot be read") from None
        if (statement.tenant, statement.covers()) != (self._tenant, checkpoint.number):
            raise _error_of(checkpoint, "its checkpoint is that of another record")
        is_valid = is_signed(checkpoint, statement, self._keys)
        if is_valid is False:
            raise _error_of(checkpoint, "the signature of its checkpoint is wrong")
        return SignedCheckpoint(checkpoint, statement, is_valid, is_kept)


def _error_of(checkpoint: Checkpoint, problem: str) -> BadRecord:
    """Return the error for a checkpoint, which is named by a record that it covers."""
    writer, number = FIRST_WRITER, checkpoint.number
    with contextlib.suppress(msgspec.DecodeError):
        if (statement := decode(checkpoint.statement)).others:
            writer, (number, _) = min(statement.ends().items())
    return BadRecord(writer, number, problem)


class VerificationResult(msgspec.Struct, frozen=True):
    """The result of verifying one tenant's records."""

    tenant: str
    chains: tuple[ChainExamination, ...]
    """Every chain with records, by writer."""
    bad_number: int | None = None
    """The first record that was changed, in the order of the chains."""
    writer: int = FIRST_WRITER
    """The writer of that record."""
    problem: str = ""

    @property
    def records(self) -> int:
        """Return the number of records of all chains."""
        return sum(chain.records for chain in self.chains)

    @property
    def erased(self) -> int:
        """Return the number of records whose details were erased, as erasure records say."""
        return sum(chain.erased for chain in self.chains)


async def verify(
    audit_store: AuditStore,
    tenant: str,
    keys: PublicKeys,
    keyring: KeyRing | None,
    anchors: Sequence[Checkpoint] = (),
) -> VerificationResult:
    """
    Verify a tenant's records in a database; nothing is changed.

    Without the key ring, only the hash chain of records after the last checkpoint is verified.
    Servers may erase and remove records between two reads, so a problem counts if it is found twice
    in succession.
    """
    before = None
    for _ in range(MAX_READINGS):
        examination = Examination(tenant, keys)
        try:
            await _examine(examination, audit_store.tenant_log(tenant), keyring, anchors)
        except BadRecord as error:
            result = verdict(tenant, examination, error)
        else:
            return verdict(tenant, examination)
        finding = (result.writer, result.bad_number, result.problem)
        if finding == before:
            break
        before = finding
    return result


def verdict(
    tenant: str, examination: Examination, error: BadRecord | None = None
) -> VerificationResult:
    """Return the result of an examination."""
    chains = tuple(chain for _, chain in sorted(examination.chains.items()) if chain.records)
    if error is None:
        return VerificationResult(tenant, chains)
    return VerificationResult(tenant, chains, error.number, error.writer, str(error))


async def _examine(
    examination: Examination,
    tenant_log: TenantAuditLog,
    keyring: KeyRing | None,
    anchors: Sequence[Checkpoint],
) -> None:
    last, signed = await _checkpoints(tenant_log)
    examination.begin(signed, anchors, last.pruned if last is not None else 0)
    # Chains are read after the checkpoints, so that they have what those cover.
    for writer in sorted({*await tenant_log.writers(), *examination.named()}):
        await _examine_chain(examination, tenant_log, writer, keyring)
    examination.end()
    examination.head(last, keyring)


async def _checkpoints(tenant_log: TenantAuditLog) -> tuple[ChainHead | None, list[Checkpoint]]:
    """Return the checkpoints and the head of their chain, which fit unless they were changed."""
    last = _head_of(CHECKPOINTS, await tenant_log.heads())
    while True:
        signed = await tenant_log.checkpoints()
        # A server may have signed another checkpoint meanwhile.
        before, last = last, _head_of(CHECKPOINTS, await tenant_log.heads())
        if last == before:
            return last, signed


def _head_of(writer: int, heads: Sequence[ChainHead]) -> ChainHead | None:
    return next((head for head in heads if head.writer == writer), None)


async def _examine_chain(
    examination: Examination, tenant_log: TenantAuditLog, writer: int, keyring: KeyRing | None
) -> None:
    if writer < FIRST_WRITER:
        raise BadRecord(writer, 1, "no server writes with this number, so it was added")
    head, chain = _head_of(writer, await tenant_log.heads()), examination.chain(writer)
    has_records = await _segments(chain, tenant_log.chain(writer), head)
    chain.end()
    chain.removed(through := examination.removed(writer))
    if head is None:
        if has_records:
            raise BadRecord(writer, 1, "the end of the chain is gone")
        return
    if head.pruned != through:
        raise BadRecord(writer, through + 1, "the end of the chain says that it was removed")
    chain.head(head, keyring)
    later_segments = await tenant_log.chain(writer).segments(head.number + 1, 1)
    # The chain may have grown meanwhile.
    now = _head_of(writer, await tenant_log.heads()) if later_segments else None
    if later_segments and (now is None or now.number < later_segments[0].first):
        raise BadRecord(writer, head.number + 1, "it comes after the end of the chain")


async def _segments(
    examination: ChainExamination, chain: TenantChain, head: ChainHead | None
) -> bool:
    """Examine the segments up to the head; return whether there was any."""
    start = LOWEST
    while page := await chain.segments(start, PAGE):
        for segment in page:
            first: object = segment.first  # SQLite accepts any value in any column
            if head is not None and isinstance(first, int) and first > head.number:
                return True
            examination.segment(segment)
        start = page[-1].first + 1
    return start != LOWEST
