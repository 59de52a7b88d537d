"""One server with scripts for each module."""

from collections.abc import Iterator

import pytest

from tests.packs.office import Worker
from tests.packs.scripts.shop import Shop, open_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """As many tenants as the tests need."""
    with open_shop(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture(params=["mcp", "rest"])
def worker(shop: Shop, request: pytest.FixtureRequest) -> Worker:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return shop.office.worker(request.param)
