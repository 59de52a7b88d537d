"""One petstore and one server in front of it for all tests of a module."""

import asyncio
from collections.abc import Iterator

import pytest

from gatepost.services import Services
from tests.packs.office import Office, Worker, open_office
from tests.packs.openapi.petstore import Petstore, petstore

WITHIN_S = 10


class Shop:
    """The petstore: what it was asked, and where it is."""

    def __init__(self, store: Petstore, url: str) -> None:
        self.store, self.url = store, url

    @property
    def host(self) -> str:
        """As `[network] allow_hosts` names it."""
        return self.url.removeprefix("http://")


class Desk:
    """Where the operator of a running server sets secrets of its tenants."""

    def take(self, services: Services) -> None:
        """The server's, as it starts."""
        self.services, self.loop = services, asyncio.get_running_loop()

    def set(self, tenant: str, name: str, value: str, *hosts: str) -> None:
        """As `gatepost secrets set` does with these hosts."""
        putting = self.services.secrets.put(tenant, name, value, hosts)
        asyncio.run_coroutine_threadsafe(putting, self.loop).result(WITHIN_S)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """A petstore that no other module's tests touch."""
    with petstore() as (store, url):
        yield Shop(store, url)


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk()


@pytest.fixture(scope="module")
def office(shop: Shop, desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A server whose tools may reach the petstore, at a private address as it is."""
    folder = tmp_path_factory.mktemp("openapi")
    network = {"allow_hosts": [shop.host]}
    with open_office(folder, ["openapi"], network=network, prepare=desk.take) as office:
        yield office


@pytest.fixture(params=["mcp", "rest"])
def worker(office: Office, request: pytest.FixtureRequest) -> Worker:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return office.worker(request.param)
