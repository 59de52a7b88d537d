"""The size of stored records, for quotas."""

import msgspec

ROW_BYTES = 1_000
"""The size of a record without its content: its other columns and its index entries."""


class StoredUsage(msgspec.Struct, frozen=True):
    """The size of the records that have not expired."""

    bytes: int = 0
    until: float | None = None
    """When the first of them expires, in seconds since the epoch; None: there are none."""


def weight(*parts: bytes | None) -> int:
    """Return the approximate size in bytes of a record with these parts."""
    return ROW_BYTES + sum(len(part) for part in parts if part is not None)
