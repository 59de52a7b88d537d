"""One desk of tools behind the gate for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.rest.clients import TOOLS, Octopus
from tests.support.issuers import Idp
from tests.support.server import Server, issuer_settings, running_server


@pytest.fixture(scope="session")
def idp() -> Iterator[Idp]:
    with Idp() as idp:
        yield idp


@pytest.fixture(autouse=True, scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers keep their state where they are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("rest"))
        yield


@pytest.fixture(scope="session")
def desk(idp: Idp) -> Iterator[Server]:
    """Two tenants by claim, tools that take and go wrong, results of at most 3000 bytes."""
    tools = {"packs": ["demo"], "load": [TOOLS], "max_result_bytes": 3000, "timeout_s": 5}
    open_to_all = {"create_on_first_use": True}
    with running_server(idp, [issuer_settings(idp)], tools=tools, tenancy=open_to_all) as site:
        yield site


@pytest.fixture
def octopus(desk: Server) -> Octopus:
    """An agent of acme."""
    return Octopus(desk)
