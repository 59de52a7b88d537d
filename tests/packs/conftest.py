"""One server with the packs of files for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.packs.servers import Agent, PackServer, open_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackServer]:
    """As many tenants as the tests need, each with little room."""
    folder = tmp_path_factory.mktemp("office")
    room = {
        "root": str(folder / "workspaces"),
        "quota_bytes": 1_000_000,
        "quota_files": 200,
    }
    with open_server(
        folder, ["filesystem", "workspace", "memory", "vault"], workspace=room
    ) as server:
        yield server


@pytest.fixture(params=["mcp", "rest"])
def agent(server: PackServer, request: pytest.FixtureRequest) -> Agent:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return server.agent(request.param)
