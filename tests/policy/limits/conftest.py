"""A Valkey that a test may stop."""

from collections.abc import Iterator

import pytest

from tests.support.stores import Valkey


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    with Valkey.running() as server:
        yield server
