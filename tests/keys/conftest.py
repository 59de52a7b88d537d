"""Fixtures for the tests of the development issuer."""

import pytest

from tests.keys.client import Walk


@pytest.fixture
def walk() -> Walk:
    """An issuer with nobody signed in and no client registered."""
    return Walk()
