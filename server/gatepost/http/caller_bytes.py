"""Count the bytes that a process keeps for its callers and their tenants."""

from collections import Counter

OwnerKey = tuple[str, ...]
"""A caller (`TenantContext.principal_key`); the first element is its tenant."""


class CallerBytes:
    """Counts bytes for callers and for their tenants."""

    def __init__(self) -> None:
        self._bytes: Counter[OwnerKey | str] = Counter()

    def bytes_of(self, owner: OwnerKey) -> tuple[int, int]:
        """Return the bytes of a caller, and of all callers of its tenant."""
        return self._bytes[owner], self._bytes[owner[0]]

    def add(self, owner: OwnerKey, size: int) -> None:
        """Add *size* bytes to a caller and its tenant."""
        for key in (owner, owner[0]):
            self._bytes[key] += size
            if not self._bytes[key]:
                del self._bytes[key]
