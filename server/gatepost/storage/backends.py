"""The storage backends by the scheme of their URL; each is imported when it is used."""

import importlib
from typing import NamedTuple, cast

from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.storage.relay import MemoryRelay, Relay

MEMORY = "memory:"


class Backend(NamedTuple):
    """A storage backend."""

    place: str
    """The module whose ``opened(url)`` opens it."""
    driver: str
    """The package that must be installed."""
    extra: str = ""
    """The extra that installs it; empty if it is always installed."""


# Loaded by name, so that a server that keeps nothing imports no database.
SQL = "gatepost.storage.sql.records"
DATABASES = {
    "sqlite": Backend(SQL, "aiosqlite"),
    "postgresql": Backend(SQL, "asyncpg", "postgres"),
}
RELAYS = {
    "redis": Backend("gatepost.storage.valkey.relay", "redis", "redis"),
    "rediss": Backend("gatepost.storage.valkey.relay", "redis", "redis"),
}


def scheme_of(url: str) -> str:
    """Return the scheme of a URL."""
    return url.partition(":")[0]


async def open_records(url: str) -> Records:
    """Open the records at a URL; raises StoreRefused and StoreUnavailable."""
    if url == MEMORY:
        return MemoryRecords()
    module = importlib.import_module(DATABASES[scheme_of(url)].place)
    return cast("Records", await module.opened(url))


async def open_relay(url: str) -> Relay:
    """Open the relay at a URL, or one in memory; it connects when it is first used."""
    if not url:
        return MemoryRelay()
    module = importlib.import_module(RELAYS[scheme_of(url)].place)
    return cast("Relay", await module.opened(url))
