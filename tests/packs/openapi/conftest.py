"""One petstore and one server in front of it for all tests of a module."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.packs.openapi.petstore import PetstoreServer, petstore
from tests.packs.servers import Agent, PackServer, SecretWriter, open_server


@pytest.fixture(scope="module")
def shop() -> Iterator[PetstoreServer]:
    """A petstore that no other module's tests touch."""
    with petstore() as (store, url):
        yield PetstoreServer(store, url)


@pytest.fixture(scope="module")
def secrets() -> SecretWriter:
    return SecretWriter()


@pytest.fixture(scope="module")
def server(
    shop: PetstoreServer, secrets: SecretWriter, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PackServer]:
    """A server whose tools may reach the petstore, at a private address as it is."""
    folder = tmp_path_factory.mktemp("openapi")
    settings: Any = {"network": {"allow_hosts": [shop.host]}}
    settings["packs"] = {"openapi": {"literals": True}}
    with open_server(folder, ["openapi"], prepare=secrets.begin, **settings) as server:
        yield server


@pytest.fixture(params=["mcp", "rest"])
def agent(server: PackServer, request: pytest.FixtureRequest) -> Agent:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return server.agent(request.param)
