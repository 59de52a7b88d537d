"""Fixtures of the server's tests."""

from collections.abc import AsyncIterator

import pytest

from gatepost.wire.fast import FastProtocol
from gatepost.wire.plain import PlainProtocol
from tests.server.front import Front
from tests.server.wire import Wire, connected, serving


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    front = Front()
    yield front
    await front.log.aclose()


@pytest.fixture(scope="module", params=[FastProtocol, PlainProtocol], ids=["httptools", "h11"])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Where the `app` of the test's own module is served, with each parser."""
    async with serving(request.module.app, request.param) as port:
        yield port


@pytest.fixture
async def wire(port: int) -> AsyncIterator[Wire]:
    """A connection to it."""
    async with connected(port) as wire:
        yield wire
