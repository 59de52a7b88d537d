"""Fixtures that every test may use, and the list of requirements that tests name."""

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes single examples slow; the time limit of the whole test is what bounds it.
settings.register_profile("gatepost", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gatepost")

pytest.register_assert_rewrite("tests.attacks.site", "tests.support")

NAMED_REQUIREMENTS = pytest.StashKey[frozenset[str]]()
"""Every id in a `requirement` mark of the collected tests, those that are deselected too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[NAMED_REQUIREMENTS] = frozenset(
        identifier
        for item in items
        for mark in item.iter_markers("requirement")
        for identifier in mark.args
    )


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio, as in production; the tests never run on another loop."""
    return "asyncio"
