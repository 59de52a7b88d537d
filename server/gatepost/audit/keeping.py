"""What one process does for the record now and then: sign checkpoints, and let the old go."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from gatepost.audit.chain import Linker, is_proven
from gatepost.audit.checkpoint import Unproven
from gatepost.audit.erasure import Erasure, sign
from gatepost.audit.journal import Journal
from gatepost.audit.record import Body, draft
from gatepost.chore import during
from gatepost.keyring import KeyRing
from gatepost.stores.api import Records, StoreUnavailable
from gatepost.stores.audit import Head

LOOK_S = 1.0
"""How often it is seen whether there are enough records for another checkpoint."""
PRUNE_S = 3600.0
DAY_S = 86_400.0
DICE = random.SystemRandom()

log = structlog.get_logger("gatepost.audit")


class Keeping:
    """
    Signs the chains that have grown, of all tenants, and removes what is too old.

    Every replica does; who comes second finds nothing left to do.
    """

    def __init__(
        self,
        records: Records,
        keyring: KeyRing,
        journal: Journal,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records, self._keyring, self._journal = records, keyring, journal
        self._clock = clock
        self._erasure = Erasure(records, keyring, clock=clock)

    async def sign(self) -> None:
        """A checkpoint of every chain that has grown; raises StoreUnavailable."""
        if not self._keyring.lasting:
            return  # nobody could check what a ring of one run has signed
        for head in await self._records.scribe.heads():
            if not head.proof.startswith(f"{self._keyring.current.id}.") and self._ours(head):
                # A key that no record follows would fall out of the ring one day, and with it the
                # proof of this chain's end.
                await self._renew(head)
            elif head.number == head.checkpoint:
                continue
            try:
                await sign(self._records, self._keyring, head.tenant, self._clock)
            except Unproven:
                log.error("audit_checkpoint_refused", tenant=head.tenant, number=head.number)

    def _ours(self, head: Head) -> bool:
        return is_proven(head, self._keyring)

    async def _renew(self, head: Head) -> None:
        at, key_id = int(self._clock() * 1000), self._keyring.current.id
        body = Body(
            at=at, kind="key", tenant=head.tenant, outcome="renewed", details={"key": key_id}
        )
        drafts = {head.tenant: [draft(body, {})]}
        await self._records.scribe.write(lambda: drafts, Linker(self._keyring).link)

    async def prune(self) -> None:
        """Remove what is older than `audit.retention_days`; raises StoreUnavailable."""
        days = self._journal.settings.retention_days
        if days:
            for head in await self._records.scribe.heads():
                await self._erasure.prune(head.tenant, self._clock() - days * DAY_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do so for the time of a block, and sign what has gathered at its end."""
        try:
            async with during("audit", self._always):
                yield
        finally:
            await self._journal.aclose()
            if self._journal.written:
                try:
                    await self.sign()
                except StoreUnavailable as outage:
                    log.warning("audit_not_signed", reason=str(outage))

    async def _always(self) -> None:
        loop = asyncio.get_running_loop()
        written = 0
        signed = loop.time()
        pruned = loop.time() - PRUNE_S * DICE.random()
        while True:
            # Replicas that started together must not all sign the same.
            await asyncio.sleep(LOOK_S * DICE.uniform(0.7, 1.3))
            settings, now = self._journal.settings, loop.time()
            due = settings.checkpoint_s and now >= signed + settings.checkpoint_s
            grown = self._journal.written - written
            try:
                if grown >= settings.checkpoint_records or (due and grown):
                    written, signed = self._journal.written, now
                    await self.sign()
                if now >= pruned + PRUNE_S:
                    pruned = now
                    await self.prune()
            except StoreUnavailable as outage:
                log.warning("audit_not_signed", reason=str(outage))
