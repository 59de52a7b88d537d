"""One server for all who only look at it."""

from collections.abc import Iterator

import pytest

from tests.dashboard.server import DashboardServer, open_dashboard_server


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardServer]:
    """A server with a dashboard, shared: a test changes nothing that another one sees."""
    with open_dashboard_server(tmp_path_factory.mktemp("dashboard")) as running:
        yield running
