"""One petstore and one server in front of it for all tests of a module."""

from collections.abc import Iterator

import pytest

from tests.packs.office import Office, Worker, open_office
from tests.packs.openapi.petstore import Petstore, petstore


class Shop:
    """The petstore: what it was asked, and where it is."""

    def __init__(self, store: Petstore, url: str) -> None:
        self.store, self.url = store, url

    @property
    def host(self) -> str:
        """As `[network] allow_hosts` names it."""
        return self.url.removeprefix("http://")


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """A petstore that no other module's tests touch."""
    with petstore() as (store, url):
        yield Shop(store, url)


@pytest.fixture(scope="module")
def office(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A server whose tools may reach the petstore, at a private address as it is."""
    folder = tmp_path_factory.mktemp("openapi")
    with open_office(folder, ["openapi"], network={"allow_hosts": [shop.host]}) as office:
        yield office


@pytest.fixture(params=["mcp", "rest"])
def worker(office: Office, request: pytest.FixtureRequest) -> Worker:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return office.worker(request.param)
