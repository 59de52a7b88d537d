"""One server with the pack `gitlab` for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.packs.conftest import HttpServer, PackCaller, PackServer, SecretWriter, open_server
from tests.packs.forge_servers import PERSONAL, ForgeServers, Gitlab, echoed


@pytest.fixture(scope="package")
def forge_servers() -> Iterator[ForgeServers]:
    with HttpServer(echoed) as elsewhere, Gitlab(elsewhere.url) as gitlab:
        yield ForgeServers(gitlab, elsewhere, SecretWriter())


@pytest.fixture(scope="package")
def server(
    forge_servers: ForgeServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PackServer]:
    with open_server(
        tmp_path_factory.mktemp("gitlab"),
        ["gitlab"],
        packs={"gitlab": {"literals": True}},
        network={
            "allow_hosts": [
                forge_servers.gitlab.place,
                forge_servers.elsewhere.place,
                "127.0.0.1:9",
            ]
        },
        prepare=forge_servers.secrets.begin,
    ) as server:
        yield server


@pytest.fixture(params=["mcp", "rest"])
def agent(
    server: PackServer, forge_servers: ForgeServers, request: pytest.FixtureRequest
) -> PackCaller:
    """An agent of a tenant that keeps a token."""
    hosts = (forge_servers.gitlab.place, "127.0.0.1:9")
    return forge_servers.secrets.agent(server, request.param, *hosts, GITLAB_TOKEN=PERSONAL)
