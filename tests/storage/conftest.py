"""Every backend of each protocol, by the name that a failing test shows."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gatepost.storage.backends import open_records, open_relay
from gatepost.storage.records import Records
from gatepost.storage.relay import Relay
from tests.support.stores import Postgres, Valkey


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where records are kept, once for each backend."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    url: str = request.getfixturevalue("emptied_postgres")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where records are kept that several processes share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    url: str = request.getfixturevalue("emptied_postgres")
    return url


@pytest.fixture
async def records(database_url: str) -> AsyncIterator[Records]:
    opened = await open_records(database_url)
    yield opened
    await opened.aclose()


@pytest.fixture(params=["memory", "valkey"])
def relay_url(request: pytest.FixtureRequest) -> str:
    """What connects processes, once for each backend."""
    if request.param == "memory":
        return ""
    url: str = request.getfixturevalue("valkey")
    return url


@pytest.fixture
async def relay(relay_url: str) -> AsyncIterator[Relay]:
    opened = await open_relay(relay_url)
    yield opened
    await opened.aclose()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that this test may stop."""
    with Postgres.running() as server:
        yield server


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A server that this test may stop."""
    with Valkey.running() as server:
        yield server
