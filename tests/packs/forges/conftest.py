"""One server with the pack `gitlab` for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.packs.forges.front import Forge
from tests.packs.forges.gitlab import PERSONAL, Gitlab, echoed
from tests.packs.forges.shop import Shop
from tests.packs.keeping import Keeping
from tests.packs.office import Office, Worker, open_office


@pytest.fixture(scope="package")
def shop() -> Iterator[Shop]:
    with Forge(echoed) as elsewhere, Gitlab(elsewhere.url) as gitlab:
        yield Shop(gitlab, elsewhere, Keeping())


@pytest.fixture(scope="package")
def office(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with open_office(
        tmp_path_factory.mktemp("gitlab"),
        ["gitlab"],
        network={"allow_hosts": [shop.gitlab.place, shop.elsewhere.place, "127.0.0.1:9"]},
        prepare=shop.keeping.begin,
    ) as office:
        yield office


@pytest.fixture(params=["mcp", "rest"])
def worker(office: Office, shop: Shop, request: pytest.FixtureRequest) -> Worker:
    """An agent of a tenant that keeps a token."""
    hosts = (shop.gitlab.place, "127.0.0.1:9")
    return shop.keeping.worker(office, request.param, *hosts, GITLAB_TOKEN=PERSONAL)
