"""One identity provider for each test module."""

from collections.abc import Iterator

import pytest

from tests.support.issuers import Idp


@pytest.fixture(scope="module")
def idp() -> Iterator[Idp]:
    with Idp() as idp:
        yield idp
