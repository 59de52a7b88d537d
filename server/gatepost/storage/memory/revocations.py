"""Cut-offs in this process's memory."""

from gatepost.storage.revocations import RevocationRecord


class MemoryRevocations:
    """See `RevocationStore`."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], RevocationRecord] = {}
        self._changes = 0

    async def changes(self) -> int:
        """Return a number that grows with every change; a cheap query."""
        return self._changes

    async def all(self) -> list[RevocationRecord]:
        """Return all revocations, the oldest first, including expired ones."""
        return sorted(self.held.values(), key=lambda cut: (cut.created_at, cut.id))

    async def put(self, cut: RevocationRecord) -> bool:
        """Store a revocation durably; return False if its tenant has one with this id already."""
        self._changes += 1
        return self.held.setdefault((cut.tenant, cut.id), cut) is cut

    async def delete(self, tenant: str, cut_id: str) -> bool:
        """Delete a revocation durably; return whether there was one."""
        self._changes += 1
        return self.held.pop((tenant, cut_id), None) is not None

    def sweep(self, now: float) -> int:
        """Remove what reaches nobody any more."""
        over = [
            key
            for key, cut in self.held.items()
            if cut.expires_at is not None and cut.expires_at <= now
        ]
        for key in over:
            del self.held[key]
        return len(over)
