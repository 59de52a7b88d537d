"""Lease a task in the store, so that one replica at a time performs it."""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from typing import Any, Protocol, TypeVar

from gatepost.background import during
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records

T = TypeVar("T")

SUBJECT = "leases"
NUMBER_LEASE_S = 15.0
"""How long the number of a killed process stays in use."""
RELEASE_S = 1.0
"""How long a stop waits for a database that does not answer, to release the number."""
OF_SERVERS = ""
"""The tenant of leases that belong to no tenant."""
AUDIT_WRITER = "audit_writer"
"""The name of the numbers that each server process has one of."""
RANDOM = random.SystemRandom()


class LeaseLost(Exception):
    """Another replica has the lease now, or the store did not answer until the lease expired."""


class Leases:
    """The leases of this process, under a name that is unique to it."""

    def __init__(self, records: Records, *, clock: Callable[[], float] = time.time) -> None:
        self._records, self._clock = records, clock
        self._holder = secrets.token_hex(12).encode()

    async def take(self, tenant: str, name: str, ttl_s: float) -> bool:
        """Take or renew a lease; return False if another holder has it. Raises StoreUnavailable."""
        now = self._clock()
        entries = self._records.for_tenant(tenant).entries(SUBJECT)
        entry = await entries.get(name)
        is_leased = entry is not None and (entry.expires_at or 0.0) > now
        if entry is not None and is_leased and entry.value != self._holder:
            return False
        revision = 0 if entry is None else entry.revision
        return await entries.put(
            name, self._holder, now=now, revision=revision, expires_at=now + ttl_s
        )

    async def held_by_others(self, tenant: str) -> set[str]:
        """Return the names that other holders have; raises StoreUnavailable."""
        now, entries = self._clock(), self._records.for_tenant(tenant).entries(SUBJECT)
        return {
            entry.key
            for entry in await entries.all()
            if (entry.expires_at or 0.0) > now and entry.value != self._holder
        }

    async def release(self, tenant: str, name: str) -> None:
        """Give a lease back, if it is still ours."""
        entries = self._records.for_tenant(tenant).entries(SUBJECT)
        with contextlib.suppress(StoreUnavailable):  # the lease expires by itself
            entry = await entries.get(name)
            if entry is not None and entry.value == self._holder:
                # Not deleted, because another holder may take the lease between the reading and the
                # deletion.
                now = self._clock()
                await entries.put(name, b"", now=now, revision=entry.revision, expires_at=now)

    async def during(self, tenant: str, name: str, ttl_s: float, work: Coroutine[Any, Any, T]) -> T:
        """Do *work* while a lease that was taken is renewed; raises LeaseLost when it is gone."""
        tasks = asyncio.create_task(work), asyncio.create_task(self._renew(tenant, name, ttl_s))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                return tasks[0].result()
            raise LeaseLost
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.release(tenant, name)

    async def _renew(self, tenant: str, name: str, ttl_s: float) -> None:
        until = self._clock() + ttl_s
        while True:
            await asyncio.sleep(ttl_s / 3)
            try:
                if not await self.take(tenant, name, ttl_s):
                    return
                until = self._clock() + ttl_s
            except StoreUnavailable:
                if self._clock() >= until:
                    return


async def number_holders(
    records: Records, *, clock: Callable[[], float] = time.time
) -> frozenset[bytes]:
    """Return the server processes that hold a number now; raises StoreUnavailable."""
    entries = await records.for_tenant(OF_SERVERS).entries(SUBJECT).all()
    return frozenset(
        entry.value
        for entry in entries
        if entry.key.startswith(f"{AUDIT_WRITER}_") and (entry.expires_at or 0.0) > clock()
    )


class NumberHolder(Protocol):
    """What has the number that a `NumberLease` holds for it."""

    number: int


class NumberLease:
    """
    Hold the lowest free number for *holder*, so that each process has one of its own.

    A process moves to a lower number when it becomes free, so there are as many numbers as there
    were processes at one time. Two processes may use one number if a lease expires too early.
    """

    def __init__(
        self,
        records: Records,
        name: str,
        holder: NumberHolder,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._leases = Leases(records, clock=clock)
        self._name, self._holder = name, holder

    async def take(self) -> None:
        """Take the lowest free number, or renew it; raises StoreUnavailable."""
        taken_names = await self._leases.held_by_others(OF_SERVERS)
        number = next(number for number in count(1) if self._named(number) not in taken_names)
        while not await self._leases.take(OF_SERVERS, self._named(number), NUMBER_LEASE_S):
            number += 1
        before, self._holder.number = self._holder.number, number
        if before != number:
            await self._leases.release(OF_SERVERS, self._named(before))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold a number during a block."""
        with contextlib.suppress(StoreUnavailable):  # the lease is tried again
            await self.take()
        try:
            async with during(self._name, self._renew):
                yield
        finally:
            with contextlib.suppress(TimeoutError):  # the lease expires by itself
                async with asyncio.timeout(RELEASE_S):
                    await self._leases.release(OF_SERVERS, self._named(self._holder.number))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(NUMBER_LEASE_S / 3 * RANDOM.uniform(0.7, 1.0))
            with contextlib.suppress(StoreUnavailable):
                await self.take()

    def _named(self, number: int) -> str:
        return f"{self._name}_{number}"
