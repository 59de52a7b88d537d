"""One identity provider and one working directory for each test module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.issuers import Idp


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    with Idp() as idp:
        yield idp


@pytest.fixture(autouse=True, scope="module")
def working_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run the module's servers in a temporary directory, where they keep their state."""
    folder = tmp_path_factory.mktemp("gatepost")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder
