"""Revocations in this process's memory."""

import time

from gatepost.storage.entries import CHANGE_COUNTER, Entries
from gatepost.storage.revocations import RevocationRecord


class MemoryRevocations:
    """The `RevocationStore` in memory."""

    def __init__(self, changes: Entries) -> None:
        """Make an empty store; *changes* has its change counter."""
        self.records: dict[tuple[str, str], RevocationRecord] = {}
        self._changes = changes

    async def all(self) -> list[RevocationRecord]:
        """Return all revocations, the oldest first, including expired ones."""
        return sorted(self.records.values(), key=lambda record: (record.created_at, record.id))

    async def put(self, record: RevocationRecord) -> bool:
        """Store a revocation durably; return False if its tenant has one with this id already."""
        await self._count()
        return self.records.setdefault((record.tenant, record.id), record) is record

    async def delete(self, tenant: str, revocation_id: str) -> bool:
        """Delete a revocation durably; return whether there was one."""
        await self._count()
        return self.records.pop((tenant, revocation_id), None) is not None

    async def _count(self) -> None:
        await self._changes.put(CHANGE_COUNTER, b"", now=time.time())

    def sweep(self, now: float) -> int:
        """Remove the revocations that no longer apply to any caller."""
        expired = [
            key
            for key, record in self.records.items()
            if record.expires_at is not None and record.expires_at <= now
        ]
        for key in expired:
            del self.records[key]
        return len(expired)
