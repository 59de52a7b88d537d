"""Values that a tenant keeps under a subject and a key."""

from typing import Protocol

import msgspec

MOST_VALUE = 64_000_000
"""Bytes of one entry's value."""

MOST_KEY = 256
"""Characters of one entry's key; a database's index takes no key of any length."""


class EntryRefused(ValueError):
    """An entry too large to keep; the message is a sentence that holds nothing of its value."""


def fits(key: str, value: bytes) -> None:
    """Raise EntryRefused for an entry that no backend keeps."""
    if len(key) > MOST_KEY:
        raise EntryRefused(f"a key has {len(key)} characters and may have {MOST_KEY}")
    if len(value) > MOST_VALUE:
        raise EntryRefused(f"a value has {len(value)} bytes and may have {MOST_VALUE}")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """
    One value that a tenant keeps under a key.

    ``revision`` grows with every change, from 1, and goes on where it was when the entry is deleted
    and made anew: what was read of the one never passes for the other.
    """

    key: str
    value: bytes
    revision: int
    updated_at: float
    expires_at: float | None = None
    """When it may go; None: it stays until somebody deletes it."""


class Entries(Protocol):
    """
    What one tenant keeps of one subject, by key: secrets, approved scripts, loaded APIs.

    Values are opaque here and stay until somebody deletes them, or some time after they expire: by
    a revision nobody may tell an expired one from one made anew. A key of more than `MOST_KEY`
    characters and a value of more than `MOST_VALUE` bytes raise EntryRefused when they are put.
    """

    async def get(self, key: str) -> Entry | None:
        """The entry of that key."""

    async def all(self) -> list[Entry]:
        """Every entry of the subject, by key."""

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
        Keep *value* under *key*, durably; raises EntryRefused.

        With *revision* only in the place of the entry that has it (0: of none); False when
        somebody else changed it meanwhile.
        """

    async def delete(self, key: str) -> bool:
        """Remove an entry, durably; whether there was one."""
