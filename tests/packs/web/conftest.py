"""A server with the web pack, and the small internet that is all it can reach."""

from collections.abc import Iterator

import pytest

from tests.outbound.world import World, small_internet
from tests.packs.office import Office, Worker, open_office


@pytest.fixture(scope="package")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Running as long as the tests do."""
    with small_internet(tmp_path_factory.mktemp("internet")) as world:
        yield world


@pytest.fixture
def world(internet: World) -> World:
    """The same, with nothing remembered."""
    return internet.reset()


@pytest.fixture(scope="package")
def office(internet: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """With a few rules of its operator."""
    settings = {"max_bytes": 200_000, "deny_domains": ["denied.web.test"], "timeout_s": 5}
    with open_office(
        tmp_path_factory.mktemp("office"),
        ["web"],
        network=internet.network(),
        packs={"web": settings},
        prepare=internet.resolves_for,
    ) as office:
        yield office


@pytest.fixture(params=["mcp", "rest"])
def worker(office: Office, request: pytest.FixtureRequest) -> Worker:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return office.worker(request.param)
