"""Fixtures of the server's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.server.front import Front


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    front = Front()
    yield front
    await front.log.aclose()
