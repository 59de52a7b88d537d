"""One identity provider for each test module, and a folder of its own for what servers write."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.issuers import Idp


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    with Idp() as idp:
        yield idp


@pytest.fixture(autouse=True, scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Servers keep their state where they are started."""
    folder = tmp_path_factory.mktemp("gatepost")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder
