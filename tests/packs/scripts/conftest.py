"""One server with scripts for each module."""

from collections.abc import Iterator

import pytest

from tests.packs.scripts.script_server import ScriptServer, open_script_server
from tests.packs.servers import Agent


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptServer]:
    """As many tenants as the tests need."""
    with open_script_server(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture(params=["mcp", "rest"])
def agent(shop: ScriptServer, request: pytest.FixtureRequest) -> Agent:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return shop.server.agent(request.param)
