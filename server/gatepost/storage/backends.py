"""The kinds of stores there are, by the scheme of their URL; each is loaded when it is chosen."""

import importlib
from typing import NamedTuple, cast

from gatepost.storage.memory.records import MemoryRecords
from gatepost.storage.memory.relay import MemoryRelay
from gatepost.storage.records import Records
from gatepost.storage.relay import Relay

MEMORY = "memory:"


class Backend(NamedTuple):
    """A kind of store."""

    place: str
    """The module whose ``opened(url)`` opens it."""
    driver: str
    """What must be installed."""
    extra: str = ""
    """The extra that brings it; empty: it always is."""


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
    """What a URL begins with."""
    return url.partition(":")[0]


async def open_records(url: str) -> Records:
    """The durable stores behind a URL; raises StoreRefused and StoreUnavailable."""
    if url == MEMORY:
        return MemoryRecords()
    module = importlib.import_module(DATABASES[scheme_of(url)].place)
    return cast("Records", await module.opened(url))


async def open_relay(url: str) -> Relay:
    """The relay behind a URL, or one within this process; connects when it is first used."""
    if not url:
        return MemoryRelay()
    module = importlib.import_module(RELAYS[scheme_of(url)].place)
    return cast("Relay", await module.opened(url))
