"""One running `gatepost dev` for all clients."""

from collections.abc import Iterator

import pytest

from tests.support import gatepost
from tests.support.gatepost import Gatepost


@pytest.fixture(scope="package")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatepost]:
    with gatepost.dev(tmp_path_factory.mktemp("dev")) as running:
        yield running
