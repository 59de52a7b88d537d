"""Which scripts a tenant had at its last reload, kept for all replicas."""

import time
from collections.abc import Callable, Iterable

import msgspec

from gatepost.packs.scripts.script import Script
from gatepost.stores.api import Entries

KEY = "seen"
ATTEMPTS = 3


class Turned(msgspec.Struct, frozen=True):
    """What is different, by name."""

    new: list[str]
    changed: list[str]
    gone: list[str]


class Catalog:
    """The names and digests of a tenant's scripts."""

    SUBJECT = "scripts_seen"

    def __init__(self, entries: Entries, *, clock: Callable[[], float] = time.time) -> None:
        self._entries = entries
        self._clock = clock

    async def take(self, scripts: Iterable[Script]) -> Turned:
        """Keep these as the ones there are; what is different from those before."""
        now = {script.name: script.digest for script in scripts}
        for _ in range(ATTEMPTS):
            entry = await self._entries.get(KEY)
            before = {} if entry is None else msgspec.json.decode(entry.value, type=dict[str, str])
            revision = 0 if entry is None else entry.revision
            value = msgspec.json.encode(now)
            if await self._entries.put(KEY, value, now=self._clock(), revision=revision):
                break
        return Turned(
            new=sorted(now.keys() - before.keys()),
            changed=sorted(n for n in now.keys() & before.keys() if now[n] != before[n]),
            gone=sorted(before.keys() - now.keys()),
        )
