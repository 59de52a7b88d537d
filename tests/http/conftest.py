"""Fixtures of the server's tests."""

from collections.abc import AsyncIterator

import pytest

from gatepost.http.h11_protocol import StrictH11Protocol
from gatepost.http.httptools_protocol import HttptoolsProtocol
from tests.http.wire import Front, Wire, connected, serving


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    front = Front()
    yield front
    await front.log.aclose()


@pytest.fixture(
    scope="module", params=[HttptoolsProtocol, StrictH11Protocol], ids=["httptools", "h11"]
)
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Where the `app` of the test's own module is served, with each parser."""
    async with serving(request.module.app, request.param) as port:
        yield port


@pytest.fixture
async def wire(port: int) -> AsyncIterator[Wire]:
    """A connection to it."""
    async with connected(port) as wire:
        yield wire
