"""TLS within TLS, as through an https proxy, against peers that misbehave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpcore2
import pytest

from tests.authz.test_tcp_stream import NAME, WITHIN_S, PeerLayer, TlsPeer, anyio_backend

__all__ = ["anyio_backend"]


@asynccontextmanager
async def outer_tls(
    proxy: TlsPeer, serve: Callable[[PeerLayer], object]
) -> AsyncIterator[httpcore2.AsyncNetworkStream]:
    """Yield the outer TLS of a connection, above which the peer calls *serve*."""
    async with proxy.serving(lambda _, outer: serve(outer)) as below:
        outer = await below.start_tls(proxy.trust, NAME, WITHIN_S)
        yield outer
        await outer.aclose()


async def test_closing_ends_the_connection_if_the_peer_has_ended_only_the_inner_tls(
    tmp_path: Path,
) -> None:
    """The outer one may wait half a minute for the peer's part of its end."""
    proxy = TlsPeer(tmp_path)

    def serve(outer: PeerLayer) -> None:
        inner = PeerLayer(outer, proxy.context)
        inner.sendall(b"last")
        inner.notify()

    async with outer_tls(proxy, serve) as outer:
        stream = await outer.start_tls(proxy.trust, NAME, WITHIN_S)
        received = b"".join([part async for part in _parts(stream)])
        await stream.aclose()

        assert await asyncio.to_thread(proxy.has_ended.wait, WITHIN_S / 4)
    assert received == b"last"


async def test_a_handshake_that_fails_within_tls_is_a_connect_error(tmp_path: Path) -> None:
    proxy = TlsPeer(tmp_path)
    # Python 3.11.7 also reports its own error (python/cpython issue 113214).
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def serve(outer: PeerLayer) -> None:
        outer.recv(65_536)
        outer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        outer.notify()

    async with outer_tls(proxy, serve) as outer:
        with pytest.raises(httpcore2.ConnectError):
            await outer.start_tls(proxy.trust, NAME, WITHIN_S)

        assert await asyncio.to_thread(proxy.has_ended.wait, WITHIN_S / 4)


async def _parts(stream: httpcore2.AsyncNetworkStream) -> AsyncIterator[bytes]:
    while part := await stream.read(4096, WITHIN_S):
        yield part
