"""Fixtures that every test may use."""

import pytest

pytest.register_assert_rewrite("tests.attacks.site", "tests.support")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio, as in production; the tests never run on another loop."""
    return "asyncio"
