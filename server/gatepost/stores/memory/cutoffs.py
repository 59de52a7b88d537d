"""Cut-offs in this process's memory."""

from gatepost.stores.cutoffs import CutOff


class MemoryCutoffs:
    """See `Cutoffs`."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], CutOff] = {}
        self._changes = 0

    async def changes(self) -> int:
        """See `Cutoffs`."""
        return self._changes

    async def all(self) -> list[CutOff]:
        """See `Cutoffs`."""
        return sorted(self.held.values(), key=lambda cut: (cut.made_at, cut.id))

    async def put(self, cut: CutOff) -> bool:
        """See `Cutoffs`."""
        self._changes += 1
        return self.held.setdefault((cut.tenant, cut.id), cut) is cut

    async def delete(self, tenant: str, cut_id: str) -> bool:
        """See `Cutoffs`."""
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
