"""Values that a tenant stores under a subject and a key."""

from typing import Protocol

import msgspec

MAX_VALUE = 64_000_000
"""Maximum number of bytes of an entry's value."""

NO_TENANT = ""
"""The tenant of entries that belong to no tenant; no real tenant has this id."""
CHANGE_COUNTER = "changes"
"""The key of a subject's change counter, which belongs to no tenant; its revision is the count."""

MAX_KEY = 256
"""Maximum number of characters of an entry's key, because a database index limits its keys."""


class EntryRefused(ValueError):
    """Raised for an entry that is too large; the message contains nothing of its value."""


def fits(key: str, value: bytes) -> None:
    """Raise EntryRefused for an entry that is too large."""
    if len(key) > MAX_KEY:
        raise EntryRefused(f"a key has {len(key)} characters and may have {MAX_KEY}")
    if len(value) > MAX_VALUE:
        raise EntryRefused(f"a value has {len(value)} bytes and may have {MAX_VALUE}")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """
    One value that a tenant stores under a key.

    ``revision`` begins at 1 and grows with every change, also when the entry is deleted and added
    again. So a revision never means two different values.
    """

    key: str
    value: bytes
    revision: int
    updated_at: float
    expires_at: float | None = None
    """When it may be removed; None: it stays until it is deleted."""


EntryValue = tuple[bytes, int]
"""A new value, and the revision of the entry that it replaces (0: a new entry)."""


class Entries(Protocol):
    """
    The entries of one tenant and one subject by key: secrets, approved scripts, loaded APIs.

    A value stays until it is deleted, or some time after it expires. Its revision must not be used
    again while a reader may remember it. A key of more than `MAX_KEY` characters or a value of
    more than `MAX_VALUE` bytes raises EntryRefused.
    """

    async def get(self, key: str) -> Entry | None:
        """Return the entry with a key."""

    async def all(self) -> list[Entry]:
        """Return all entries of the subject, sorted by key."""

    async def count(self) -> int:
        """Return how many entries the subject has."""

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        now: float,
        revision: int | None = None,
        expires_at: float | None = None,
    ) -> bool:
        """
        Store *value* under *key* durably; raises EntryRefused.

        With *revision*, only the entry with this revision is replaced (0: there is none). Return
        False if it was changed in the meantime.
        """

    async def delete(self, key: str) -> bool:
        """Delete an entry durably; return whether there was one."""
