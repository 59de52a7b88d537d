"""One server for all who only look at it."""

from collections.abc import Iterator

import pytest

from tests.dashboard.site import Site, site


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with a dashboard, shared: a test changes nothing that another one sees."""
    with site(tmp_path_factory.mktemp("dashboard")) as running:
        yield running
