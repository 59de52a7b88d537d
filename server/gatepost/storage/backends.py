"""The storage backends by the scheme of their URL; each is imported when it is used."""

import importlib
from typing import NamedTuple, cast

from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.records import Records
from gatepost.storage.shared_store import MemorySharedStore, SharedStore

MEMORY = "memory:"


class Backend(NamedTuple):
    """A storage backend."""

    module: str
    """The module whose ``opened(url)`` opens it."""
    driver: str
    """The package that must be installed."""
    extra: str = ""
    """The extra that installs it; empty if it is always installed."""


# Loaded by name, so that a server that keeps nothing imports no database.
SQL = "gatepost.storage.sql.records"
DATABASES = {
    "sqlite": Backend(SQL, "sqlalchemy"),
    "postgresql": Backend(SQL, "asyncpg", "postgres"),
}
SHARED_STORES = {
    "redis": Backend("gatepost.storage.valkey.shared_store", "redis", "redis"),
    "rediss": Backend("gatepost.storage.valkey.shared_store", "redis", "redis"),
}


def scheme_of(url: str) -> str:
    """Return the scheme of a URL."""
    return url.partition(":")[0]


async def open_records(url: str) -> Records:
    """Open the records at a URL; raises StoreRefused and StoreUnavailable."""
    if url == MEMORY:
        return MemoryRecords()
    module = importlib.import_module(DATABASES[scheme_of(url)].module)
    return cast("Records", await module.opened(url))


async def open_shared_store(url: str) -> SharedStore:
    """Open the shared store at a URL, or one in memory; it connects when it is first used."""
    if not url:
        return MemorySharedStore()
    module = importlib.import_module(SHARED_STORES[scheme_of(url)].module)
    return cast("SharedStore", await module.opened(url))
