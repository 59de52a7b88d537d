"""Lease the number of a process's audit writer: the lowest one that no other process has."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from itertools import count

from gatepost.audit.writer import AuditWriter
from gatepost.background import during
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.leases import Leases
from gatepost.storage.records import Records

TTL_S = 15.0
"""How long the number of a killed process stays in use."""
CLOSING_S = 1.0
"""How long a stop waits for a database that does not answer."""
OF_SERVERS = ""
"""The tenant of leases that belong to no tenant."""
DICE = random.SystemRandom()


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
        while not await self._leases.take(OF_SERVERS, _name(number), TTL_S):
            number += 1
        before, self._writer.number = self._writer.number, number
        if before != number:
            await self._leases.release(OF_SERVERS, _name(before))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold a number during a block."""
        with contextlib.suppress(StoreUnavailable):  # the lease is tried again
            await self.take()
        try:
            async with during("audit_writer", self._renew):
                yield
        finally:
            with contextlib.suppress(TimeoutError):  # the lease expires by itself
                async with asyncio.timeout(CLOSING_S):
                    await self._leases.release(OF_SERVERS, _name(self._writer.number))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(TTL_S / 3 * DICE.uniform(0.7, 1.0))
            with contextlib.suppress(StoreUnavailable):
                await self.take()


def _name(number: int) -> str:
    return f"audit_writer_{number}"
