"""A server with the web pack, and the small internet that is all it can reach."""

from collections.abc import Iterator

import pytest

from tests.outbound.conftest import Internet, small_internet
from tests.packs.conftest import PackCaller, PackServer, open_server


@pytest.fixture(scope="package")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    """Running as long as the tests do."""
    with small_internet(tmp_path_factory.mktemp("internet")) as world:
        yield world


@pytest.fixture
def world(internet: Internet) -> Internet:
    """The same, with nothing remembered."""
    return internet.reset()


@pytest.fixture(scope="package")
def server(internet: Internet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """With a few rules of its operator."""
    settings = {"max_bytes": 200_000, "deny_domains": ["denied.web.test"], "timeout_s": 5}
    with open_server(
        tmp_path_factory.mktemp("office"),
        ["web"],
        network=internet.network(),
        packs={"web": settings},
        prepare=internet.resolves_for,
    ) as server:
        yield server


@pytest.fixture(params=["mcp", "rest"])
def agent(server: PackServer, request: pytest.FixtureRequest) -> PackCaller:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return server.agent(request.param)
