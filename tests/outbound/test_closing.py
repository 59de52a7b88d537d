"""A process that stops leaves no connection of a tool open."""

import asyncio
from contextlib import suppress

import pytest

from gatepost.execution.failure import ToolFailure
from tests.outbound.test_connections import client_of, raw_server, until
from tests.support.internet import Internet

REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "kind"), [("GET", "upstream_unavailable"), ("POST", "internal")]
)
async def test_a_redirect_that_is_followed_during_closing_opens_no_connection(
    internet: Internet, method: str, kind: str
) -> None:
    """Its connection would be kept, and closed by nothing."""
    heads: list[bytes] = []
    opened: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(REDIRECT)
        writer.close()
        opened.remove(writer)

    async with (
        raw_server(serve) as port,
        client_of(internet, allow_hosts=(f"localhost:{port}",)) as outbound_client,
    ):

        async def close_before_the_second(url: str) -> None:
            if url.endswith("/there"):
                await outbound_client.aclose()

        with pytest.raises(ToolFailure) as failure:
            await outbound_client.client_for("acme").send(
                method, f"http://localhost:{port}/", redirects=1, before=close_before_the_second
            )
        await until(lambda: not opened)

    assert failure.value.failure.kind == kind
    assert len(heads) == 1
