"""One server with the packs of files for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packs.office import Office, Worker
from tests.support.idp import Idp
from tests.tenancy.house import house, issuer


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """Two tenants by claim, each as large as the tests need."""
    root: Path = tmp_path_factory.mktemp("office") / "workspaces"
    with (
        Idp() as idp,
        house(
            idp,
            [issuer(idp)],
            tools={"packs": ["filesystem", "workspace", "memory"]},
            tenancy={"create_on_first_use": True},
            workspace={"root": str(root), "quota_bytes": 1_000_000, "quota_files": 200},
        ) as site,
    ):
        yield Office(site, root)


@pytest.fixture(params=["mcp", "rest"])
def worker(office: Office, request: pytest.FixtureRequest) -> Worker:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return office.worker(request.param)
