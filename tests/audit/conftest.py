"""Where the records of these tests are kept."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of this test's own, once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    found: str = request.getfixturevalue("migrated_postgres")
    return found
