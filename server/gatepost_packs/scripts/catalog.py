"""The scripts that a tenant had at its last reload, stored for all replicas."""

import time
from collections.abc import Callable, Iterable

import msgspec

from gatepost import Entries, Script

KEY = "seen"
ATTEMPTS = 3


class CatalogChange(msgspec.Struct, frozen=True):
    """The differences, by name."""

    new: list[str]
    changed: list[str]
    gone: list[str]


class ScriptCatalog:
    """The names and digests of a tenant's scripts."""

    SUBJECT = "scripts_seen"

    def __init__(self, entries: Entries, *, clock: Callable[[], float] = time.time) -> None:
        self._entries = entries
        self._clock = clock

    async def take(self, scripts: Iterable[Script]) -> CatalogChange:
        """Store these as the current scripts; return the differences from the previous ones."""
        now = {script.name: script.digest for script in scripts}
        for _ in range(ATTEMPTS):
            entry = await self._entries.get(KEY)
            before = {} if entry is None else msgspec.json.decode(entry.value, type=dict[str, str])
            revision = 0 if entry is None else entry.revision
            value = msgspec.json.encode(now)
            if await self._entries.put(KEY, value, now=self._clock(), revision=revision):
                break
        return CatalogChange(
            new=sorted(now.keys() - before.keys()),
            changed=sorted(n for n in now.keys() & before.keys() if now[n] != before[n]),
            gone=sorted(before.keys() - now.keys()),
        )
