"""One small internet for all tests of this folder, and a client of it for each."""

from collections.abc import AsyncIterator, Iterator

import pytest

from gatepost.outbound.client import Client
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.outbound.world import World, small_internet


@pytest.fixture(scope="session")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Running as long as the tests do."""
    with small_internet(tmp_path_factory.mktemp("internet")) as world:
        yield world


@pytest.fixture
def world(internet: World) -> World:
    """The same, with nothing remembered."""
    return internet.reset()


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    """A server's client, whose only way out is the world's proxy."""
    network = Network(
        ca_bundle=str(world.company.bundle),
        proxy=world.proxy.url,
        allow_hosts=(f"localhost:{world.plain}",),
    )
    made = Client(network, tls=Fetcher(development=True, network=network).tls, resolver=world.names)
    yield made
    await made.aclose()
