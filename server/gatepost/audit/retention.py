"""Remove old audit records and erase details; sign checkpoints meanwhile."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from gatepost.audit.batches import WriteAttempt
from gatepost.audit.chain import is_proven, proven, ranges_of
from gatepost.audit.checkpoints import AT_ONCE, CheckpointSigner, Unproven, last_numbers, pause
from gatepost.audit.record import SaltedDetails, decode_side, person_in
from gatepost.audit.record_builder import log_record
from gatepost.audit.writer import AuditWriter
from gatepost.background import during
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import (
    CHECKPOINTS,
    AuditStore,
    ChainHead,
    ChainKey,
    Checkpoint,
    NewAuditRecord,
    Segment,
    TenantAuditLog,
    TenantChain,
)
from gatepost.storage.audit_segments import Damaged
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.leases import AUDIT_WRITER, NumberLease
from gatepost.storage.records import Records

CHECK_S = 1.0
"""How often the server checks whether another checkpoint is due."""
PRUNE_S = 3600.0
DAY_S = 86_400.0
CLOSING_S = 2.0
"""How long a stop signs; the rest is signed after the next start."""
HANGING_S = 3.0
"""How long a stop waits for a database that does not answer."""
RANDOM = random.SystemRandom()
PAGE = 1_000
"""Records that are read at once."""
PRUNED_AT_ONCE = 20_000
"""Approximate number of records that are removed in one transaction."""
PEOPLE = ("caller", "about")
"""The details that identify a person."""

log = logging.getLogger(__name__)


class Retention:
    """
    Sign checkpoints of all chains that have grown, and remove records that are too old.

    Every replica does this; a second replica finds nothing left to do.
    """

    def __init__(
        self,
        records: Records,
        keyring: KeyRing,
        writer: AuditWriter,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records, self._keyring, self._writer = records, keyring, writer
        self._clock = clock
        self.signer = CheckpointSigner(writer.store, keyring, clock=clock)

    async def prune(self) -> None:
        """Remove records older than `audit.retention_days`; raises StoreUnavailable."""
        days, after = self._writer.settings.retention_days, ""
        while days and (heads := await self._writer.store.heads(after, AT_ONCE)):
            for tenant in heads:
                began = time.monotonic()
                before = self._clock() - days * DAY_S
                try:
                    await prune(self._writer.store, self._keyring, tenant, before, self._clock)
                except Damaged:  # records of other tenants are removed all the same
                    log.error("audit_prune_refused", extra={"tenant": tenant})
                await pause(time.monotonic() - began)
                after = tenant

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """
        Run during a block; at its end write and sign the remaining records, within limits.

        Meanwhile the writer has a number of its own.
        """
        lease = NumberLease(self._records, AUDIT_WRITER, self._writer, clock=self._clock)
        async with lease.running():
            try:
                async with during("audit", self._always):
                    yield
            finally:
                await self._writer.aclose()
                if self._writer.written:
                    await self._sign_last()

    async def _sign_last(self) -> None:
        try:
            async with asyncio.timeout(CLOSING_S + HANGING_S):
                if not await self.signer.sign(within_s=CLOSING_S):
                    log.info("audit_left_unsigned")
        except (StoreUnavailable, TimeoutError) as outage:
            log.warning("audit_not_signed", extra={"reason": str(outage) or type(outage).__name__})

    async def _always(self) -> None:
        loop = asyncio.get_running_loop()
        written = -1  # a stop may have left some unsigned
        signed = loop.time()
        pruned = loop.time() - PRUNE_S * RANDOM.random()
        while True:
            # Random, so that replicas do not sign at the same time.
            await asyncio.sleep(CHECK_S * RANDOM.uniform(0.7, 1.3))
            settings, now = self._writer.settings, loop.time()
            due = settings.checkpoint_s and now >= signed + settings.checkpoint_s
            grown = self._writer.written - written
            try:
                if grown >= settings.checkpoint_records or (due and grown):
                    written, signed = self._writer.written, now
                    await self.signer.sign()
                if now >= pruned + PRUNE_S:
                    pruned = now
                    await self.prune()
            except StoreUnavailable as outage:
                written = -1  # the rest is due, even if there are no new records
                log.warning("audit_not_signed", extra={"reason": str(outage)})


class DetailErasure:
    """
    Erase details of records.

    The chain covers only commitments, so it stays valid. An erasure record names the records;
    `verify` reports details that are missing without one.
    """

    def __init__(
        self, audit_store: AuditStore, keyring: KeyRing, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._audit_store, self._keyring, self._clock = audit_store, keyring, clock

    async def erase_subject(self, tenant: str, issuer: str, subject: str) -> int:
        """
        Erase the details of every record by or about a person; return the number.

        Revocations without an issuer and records in which the person acted for another are
        included. Raises StoreUnavailable; you can then call it again.
        """

        def concerns(side: SaltedDetails) -> bool:
            people = [person_in(side[field][1]) for field in PEOPLE if field in side]
            # A detail that was changed may still name the person.
            return any(
                person is None
                or (subject in (person.subject, person.actor) and person.issuer in (issuer, ""))
                for person in people
            )

        return await self._erase(tenant, concerns, "subject")

    async def erase_tenant(self, tenant: str) -> int:
        """Erase the details of all of a tenant's records, and its sums; return how many records."""
        erased = await self._erase(tenant, lambda side: True, "tenant")
        await self._audit_store.tenant_log(tenant).forget_counts()
        return erased

    async def _erase(self, tenant: str, concerns: Callable[[SaltedDetails], bool], why: str) -> int:
        tenant_log = self._audit_store.tenant_log(tenant)
        return sum(
            [
                await self._erase_in(tenant_log.chain(writer), tenant, concerns, why)
                for writer in await tenant_log.writers()
            ]
        )

    async def _erase_in(
        self, chain: TenantChain, tenant: str, concerns: Callable[[SaltedDetails], bool], why: str
    ) -> int:
        """Erase details in one chain, which gets the erasure record."""
        after, erased = 0, 0
        while page := await chain.rows(after, PAGE):
            after = page[-1].number
            numbers = [row.number for row in page if row.side and concerns(decode_side(row.side))]
            if numbers:
                at, named = int(self._clock() * 1000), ranges_of(numbers)
                record = log_record("erasure", tenant, "erased", at, records=named, of=why)
                attempt = WriteAttempt(self._keyring)
                await chain.erase(numbers, [record], attempt.link)
                attempt.report()
                erased += len(numbers)
        return erased


async def prune(
    audit_store: AuditStore,
    keyring: KeyRing,
    tenant: str,
    before: float,
    clock: Callable[[], float] = time.time,
) -> int:
    """
    Remove the records from before a time (seconds since the epoch).

    Return how many records the tenant's removed part has in all, or 0 if nothing was removed. Only
    records up to the last checkpoint before that time are removed, because the remaining chains
    must start at a checkpoint.
    """
    tenant_log, removed = audit_store.tenant_log(tenant), 0
    pruned = {head.writer: head.pruned for head in await tenant_log.heads()}
    while checkpoint := await _next_cut(tenant_log, pruned, int(before * 1000)):
        # A chain that has not grown since the last removal has nothing to remove.
        through = {
            writer: number
            for writer, number in last_numbers(checkpoint).items()
            if number > pruned.get(writer, 0)
        }
        at = int(clock() * 1000)
        new_records = {
            writer: [log_record("retention", tenant, "removed", at, through=str(number))]
            for writer, number in through.items()
        }
        through[CHECKPOINTS] = checkpoint.number
        attempt = PruningAttempt(keyring, through=through)
        try:
            is_pruned = await tenant_log.prune(
                through, {**new_records, CHECKPOINTS: []}, attempt.link
            )
        except Unproven:
            log.error("audit_prune_refused", extra={"tenant": tenant})
            break
        if not is_pruned:
            break  # another replica removes them
        attempt.report()
        pruned |= through
        log.info("audit_pruned", extra={"tenant": tenant, "through": checkpoint.number})
        removed = checkpoint.number
    return removed


async def _next_cut(
    tenant_log: TenantAuditLog, pruned: Mapping[int, int], limit: int
) -> Checkpoint | None:
    """Return the checkpoint for the next cut, not too far from the last one."""
    cut, last = None, pruned.get(CHECKPOINTS, 0)
    for checkpoint in await tenant_log.checkpoints():
        if checkpoint.number <= last:
            continue
        if cut and checkpoint.number > last + PRUNED_AT_ONCE:
            break
        if not await is_before(tenant_log, checkpoint, limit, pruned):
            break
        cut = checkpoint
    return cut


async def is_before(
    tenant_log: TenantAuditLog, checkpoint: Checkpoint, limit: int, removed: Mapping[int, int]
) -> bool:
    """
    Return whether the last records that it covers are from before *limit* (milliseconds).

    *removed* has the last record of each writer that retention has removed.
    """
    ends = last_numbers(checkpoint)
    for writer, number in ends.items():
        if number <= removed.get(writer, 0):
            continue  # an earlier removal has taken it, and the writer has written nothing since
        last = await tenant_log.chain(writer).rows(number - 1, 1)
        if not last or last[0].number != number or last[0].at >= limit:
            return False
    return bool(ends)


class PruningAttempt(WriteAttempt, eq=False):
    """An attempt whose heads note the removed records."""

    through: Mapping[int, int] = {}
    """The last removed record of each writer, and the checkpoint."""

    def link(
        self, chain: ChainKey, stored_head: ChainHead | None, new_records: Sequence[NewAuditRecord]
    ) -> tuple[list[Segment], ChainHead]:
        """Return the next segments and the new head; implements `Link`. Raises Unproven."""
        new_segments, head = list[Segment](), stored_head
        if chain[1] != CHECKPOINTS:
            new_segments, head = super().link(chain, stored_head, new_records)
        if head is None or not is_proven(head, self.keyring):
            raise Unproven(chain[0])
        pruned = max(head.pruned, self.through[chain[1]])
        return new_segments, proven(
            msgspec.structs.replace(head, pruned=pruned, proof=""), self.keyring
        )
