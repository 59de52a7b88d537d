"""Sign checkpoints and remove old audit records, periodically; lease the number of a writer."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

from gatepost.audit.batches import WriteAttempt
from gatepost.audit.chain import is_proven
from gatepost.audit.checkpoints import (
    Unproven,
    follow,
    log_checkpoint,
    signed,
)
from gatepost.audit.erasure import prune
from gatepost.audit.record_builder import log_record
from gatepost.audit.writer import AuditWriter
from gatepost.background import during
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.audit import (
    CHECKPOINTS,
    ChainHead,
    ChainKey,
    Checkpoint,
)
from gatepost.storage.audit_segments import Damaged
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.leases import Leases
from gatepost.storage.records import Records

CHECK_S = 1.0
"""How often the server checks whether another checkpoint is due."""
PRUNE_S = 3600.0
DAY_S = 86_400.0
AT_ONCE = 50
"""Tenants that are signed in one transaction, which takes about 10 ms."""
SHARE = 0.1
"""Share of the time that signing and removing may take; the rest is for calls."""
LONGEST_PAUSE_S = 1.0
CLOSING_S = 2.0
"""How long a stop signs; the rest is signed after the next start."""
HANGING_S = 3.0
"""How long a stop waits for a database that does not answer."""
LEASE_S = 15.0
"""How long the writer's number of a killed process stays in use."""
RELEASE_S = 1.0
"""How long a stop waits for a database that does not answer, to release the number."""
OF_SERVERS = ""
"""The tenant of leases that belong to no tenant."""
RANDOM = random.SystemRandom()

log = logging.getLogger("gatepost.audit")


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

    async def sign(self, *, within_s: float | None = None) -> bool:
        """
        Sign a checkpoint of every chain that has grown; return whether all are signed.

        It signs a few at a time and pauses between two batches for much longer than a batch takes,
        so that calls get the database and the processor. With *within_s* it does not pause, and
        stops after so many seconds. Raises StoreUnavailable.
        """
        if not self._keyring.lasting:
            return True  # signatures of a temporary ring could not be verified later
        until = None if within_s is None else time.monotonic() + within_s
        after = ""
        while True:
            began = time.monotonic()
            heads = await self._records.audit.heads(
                after, AT_ONCE, unsigned=self._keyring.current.id
            )
            await self._sign(heads)
            if len(heads) < AT_ONCE:
                return True
            after = [*heads][-1]
            if until is None:
                await _pause(time.monotonic() - began)
            elif time.monotonic() >= until:
                return False

    async def _sign(self, heads: Mapping[str, Sequence[ChainHead]]) -> None:
        """Sign a checkpoint of each tenant with these heads."""
        # Otherwise the key that proves the end of an idle chain would leave the ring one day, and
        # the proof would be lost with it.
        current = f"{self._keyring.current.id}."
        rotated = [
            one
            for ends in heads.values()
            for one in ends
            if one.writer != CHECKPOINTS and not one.proof.startswith(current)
        ]
        if renewed := [one.key for one in rotated if is_proven(one, self._keyring)]:
            await self._renew(renewed)
        # Signed in a thread and without a lock; only chains that have grown meanwhile are signed
        # again while the checkpoints are locked.
        made = await asyncio.to_thread(
            lambda: {tuple(ends): self._signed(ends) for ends in heads.values()}
        )

        def sign(
            ends: Sequence[ChainHead], newest: Checkpoint | None
        ) -> tuple[Checkpoint, ChainHead] | None:
            found = made[tuple(ends)] if tuple(ends) in made else self._signed(ends)
            if found is None or follow(ends, newest):
                return found
            log.error("audit_checkpoint_refused", extra={"tenant": ends[0].tenant})
            return None

        checkpoints = await self._records.audit.sign([*heads], sign)
        for tenant, checkpoint in checkpoints.items():
            log_checkpoint(tenant, checkpoint)

    def _signed(self, heads: Sequence[ChainHead]) -> tuple[Checkpoint, ChainHead] | None:
        """Return the checkpoint and its head; None if a head is unproven (see `Sign`)."""
        try:
            return signed(heads, self._keyring, at=int(self._clock() * 1000))
        except Unproven:
            log.error("audit_checkpoint_refused", extra={"tenant": heads[0].tenant})
            return None

    async def _renew(self, chains: Sequence[ChainKey]) -> None:
        at, key_id = int(self._clock() * 1000), self._keyring.current.id
        new_records = {
            chain: [log_record("key", chain[0], "renewed", at, key=key_id)] for chain in chains
        }
        attempt = WriteAttempt(self._keyring)
        await self._records.audit.write(new_records, attempt.link)
        attempt.report()

    async def prune(self) -> None:
        """Remove records older than `audit.retention_days`; raises StoreUnavailable."""
        days, after = self._writer.settings.retention_days, ""
        while days and (heads := await self._records.audit.heads(after, AT_ONCE)):
            for tenant in heads:
                began = time.monotonic()
                before = self._clock() - days * DAY_S
                try:
                    await prune(self._records, self._keyring, tenant, before, self._clock)
                except Damaged:  # records of other tenants are removed all the same
                    log.error("audit_prune_refused", extra={"tenant": tenant})
                await _pause(time.monotonic() - began)
                after = tenant

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """
        Run during a block; at its end write and sign the remaining records, within limits.

        Meanwhile the writer has a number of its own.
        """
        async with WriterLease(self._records, self._writer, clock=self._clock).running():
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
                if not await self.sign(within_s=CLOSING_S):
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
                    await self.sign()
                if now >= pruned + PRUNE_S:
                    pruned = now
                    await self.prune()
            except StoreUnavailable as outage:
                written = -1  # the rest is due, even if there are no new records
                log.warning("audit_not_signed", extra={"reason": str(outage)})


async def _pause(took_s: float) -> None:
    """Pause to leave calls their share of the time."""
    await asyncio.sleep(min(took_s * (1 / SHARE - 1), LONGEST_PAUSE_S))


class WriterLease:
    """
    Hold the lowest free number for a writer, so that each process has chains of its own.

    A process moves to a lower number when it becomes free, so there are as many numbers as there
    were processes at one time. If two processes use one number, because a lease has expired too
    early, they write to the same chains in turn; no chain can fork.
    """

    def __init__(
        self, records: Records, writer: AuditWriter, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._leases, self._writer = Leases(records, clock=clock), writer

    async def take(self) -> None:
        """Take the lowest free number, or renew it; raises StoreUnavailable."""
        taken = await self._leases.taken(OF_SERVERS)
        number = next(number for number in count(1) if _name(number) not in taken)
        while not await self._leases.take(OF_SERVERS, _name(number), LEASE_S):
            number += 1
        before, self._writer.number = self._writer.number, number
        if before != number:
            await self._leases.release(OF_SERVERS, _name(before))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold a number during a block."""
        with suppress(StoreUnavailable):  # the lease is tried again
            await self.take()
        try:
            async with during("audit_writer", self._renew):
                yield
        finally:
            with suppress(TimeoutError):  # the lease expires by itself
                async with asyncio.timeout(RELEASE_S):
                    await self._leases.release(OF_SERVERS, _name(self._writer.number))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3 * RANDOM.uniform(0.7, 1.0))
            with suppress(StoreUnavailable):
                await self.take()


def _name(number: int) -> str:
    return f"audit_writer_{number}"
