"""One small internet for all tests of this folder, and a client of it for each."""

from collections.abc import AsyncIterator, Iterator

import pytest

from gatepost.outbound.client import OutboundClient
from gatepost_authz.config import Network
from gatepost_authz.fetch import Fetcher
from tests.outbound.internet import Internet, small_internet


@pytest.fixture(scope="session")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    """Running as long as the tests do."""
    with small_internet(tmp_path_factory.mktemp("internet")) as world:
        yield world


@pytest.fixture
def world(internet: Internet) -> Internet:
    """The same, with nothing remembered."""
    return internet.reset()


@pytest.fixture
async def client(world: Internet) -> AsyncIterator[OutboundClient]:
    """A server's client, whose only way out is the world's proxy."""
    network = Network(
        ca_bundle=str(world.company.bundle),
        proxy=world.proxy.url,
        allow_hosts=(f"localhost:{world.plain}",),
    )
    made = OutboundClient(
        network, tls=Fetcher(development=True, network=network).tls, resolver=world.names
    )
    yield made
    await made.aclose()
