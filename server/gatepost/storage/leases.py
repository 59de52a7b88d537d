"""Lease a task in the store, so that one replica at a time performs it."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records

T = TypeVar("T")

SUBJECT = "leases"


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
        entries = self._records.of(tenant).entries(SUBJECT)
        entry = await entries.get(name)
        is_leased = entry is not None and (entry.expires_at or 0.0) > now
        if entry is not None and is_leased and entry.value != self._holder:
            return False
        revision = 0 if entry is None else entry.revision
        return await entries.put(
            name, self._holder, now=now, revision=revision, expires_at=now + ttl_s
        )

    async def taken(self, tenant: str) -> set[str]:
        """Return the names that other holders have; raises StoreUnavailable."""
        now, entries = self._clock(), self._records.of(tenant).entries(SUBJECT)
        return {
            one.key
            for one in await entries.all()
            if (one.expires_at or 0.0) > now and one.value != self._holder
        }

    async def release(self, tenant: str, name: str) -> None:
        """Give a lease back, if it is still ours."""
        entries = self._records.of(tenant).entries(SUBJECT)
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
