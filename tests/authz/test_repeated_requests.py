"""A request is repeated only over a connection that its pool still closes."""

import asyncio

import httpx2
import pytest

from tests.authz.test_connection_pool import (
    KeepAliveServer,
    anyio_backend,
    fetch,
    pooled,
    request_to,
    served,
)

__all__ = ["anyio_backend"]


async def test_no_request_is_repeated_over_a_connection_that_opens_after_closing() -> None:
    """That connection would stay open, although all were to be closed."""
    server = KeepAliveServer()
    async with served(server) as url, pooled() as transport:
        await fetch(transport, url)
        server.answers.clear()
        running = asyncio.create_task(transport.send_repeatable(request_to(url)))
        await server.reaches(lambda: len(server.requests) == 2)
        await transport.aclose()
        with pytest.raises(httpx2.RemoteProtocolError):
            await running

        assert transport.open_connections == 0
