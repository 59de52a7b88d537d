"""One server with the packs of files for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.packs.office import Office, Worker, open_office


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """As many tenants as the tests need, each with little room."""
    folder = tmp_path_factory.mktemp("office")
    room = {
        "root": str(folder / "workspaces"),
        "quota_bytes": 1_000_000,
        "quota_files": 200,
    }
    with open_office(
        folder, ["filesystem", "workspace", "memory", "vault"], workspace=room
    ) as office:
        yield office


@pytest.fixture(params=["mcp", "rest"])
def worker(office: Office, request: pytest.FixtureRequest) -> Worker:
    """An agent of a tenant of its own, who calls by one of the two protocols."""
    return office.worker(request.param)
