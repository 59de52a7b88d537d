"""After its connections are closed, a transport opens no others."""

import asyncio
from collections.abc import Sequence

import httpx2
import pytest

from gatepost_authz.address_policy import IssuerAddressPolicy
from gatepost_authz.pinning import PinningTransport
from tests.authz.test_connection_pool import (
    WITHIN_S,
    KeepAliveServer,
    anyio_backend,
    fetch,
    fetching,
    pooled,
    served,
)

__all__ = ["anyio_backend"]


async def test_a_request_after_closing_opens_no_connection() -> None:
    """It would be kept, and closed by nothing."""
    server = KeepAliveServer()
    async with served(server) as url, pooled() as transport:
        await fetch(transport, url)
        await transport.aclose()
        with pytest.raises(httpx2.ConnectError):
            await fetch(transport, url)

        assert (server.connections, transport.open_connections) == (1, 0)


async def test_a_connection_that_is_opened_during_closing_sends_no_request() -> None:
    """It would stay open until the server has answered, which may take as long as it likes."""
    server, asked, resolves = KeepAliveServer(), asyncio.Event(), asyncio.Event()

    async def resolved(host: str, port: int) -> Sequence[str]:
        asked.set()
        await resolves.wait()
        return ["127.0.0.1"]

    transport = PinningTransport(
        address_policy=IssuerAddressPolicy(development=True), resolver=resolved
    )
    async with served(server) as url:
        running = fetching(transport, url.replace("127.0.0.1", "localhost"))
        await asked.wait()
        await transport.aclose()
        resolves.set()
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(httpx2.ConnectError):
                await running
        await server.reaches(lambda: server.open == 0)

    assert server.requests == []
