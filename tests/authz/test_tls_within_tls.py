"""TLS within TLS, as through an https proxy, against peers that misbehave."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpcore2
import pytest

from gatepost_authz.tcp_stream import TcpStream, connect_tcp
from tests.authz.test_tcp_stream import WITHIN_S, anyio_backend
from tests.support.proxies import CertificateAuthority

__all__ = ["anyio_backend"]
NAME = "good.example"


class PeerLayer:
    """The peer's side of TLS above a socket or another layer."""

    def __init__(self, below: Any, context: ssl.SSLContext) -> None:
        self._below = below
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=True)
        self._until_done(self._tls.do_handshake)

    def recv(self, size: int) -> bytes:
        return bytes(self._until_done(lambda: self._tls.read(size)))

    def sendall(self, data: bytes) -> None:
        self._tls.write(data)
        self._send()

    def notify(self) -> None:
        """Send close_notify, and do not wait for the answer."""
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self._send()

    def _until_done(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._send()
                self._arrived.write(self._below.recv(65_536))
            finally:
                self._send()

    def _send(self) -> None:
        if data := self._leaving.read():
            self._below.sendall(data)


class TunnelPeer:
    """Serves one connection in a thread: the outer TLS, and then what *serve* does above it."""

    def __init__(self, folder: Path) -> None:
        authority = CertificateAuthority(folder)
        self.trust = ssl.create_default_context(cafile=str(authority.bundle))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*authority.certify(NAME))
        self.has_ended = threading.Event()
        """Set when the client has closed the connection."""

    @asynccontextmanager
    async def serving(self, serve: Callable[[PeerLayer], None]) -> AsyncIterator[TcpStream]:
        def run() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(WITHIN_S)
                serve(PeerLayer(peer, self.context))
                with suppress(ConnectionError):
                    while peer.recv(65_536):
                        pass
                self.has_ended.set()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=run)
            thread.start()
            below = await connect_tcp("127.0.0.1", listener.getsockname()[1], WITHIN_S)
            outer = await below.start_tls(self.trust, NAME, WITHIN_S)
            assert isinstance(outer, TcpStream)
            yield outer
            await outer.aclose()
            await asyncio.to_thread(thread.join, WITHIN_S)


async def test_closing_ends_the_connection_if_the_peer_has_ended_only_the_inner_tls(
    tmp_path: Path,
) -> None:
    """The outer one may wait half a minute for the peer's part of its end."""
    proxy = TunnelPeer(tmp_path)

    def serve(outer: PeerLayer) -> None:
        inner = PeerLayer(outer, proxy.context)
        inner.sendall(b"last")
        inner.notify()

    async with proxy.serving(serve) as outer:
        stream = await outer.start_tls(proxy.trust, NAME, WITHIN_S)
        received = b"".join([part async for part in _parts(stream)])
        await stream.aclose()

        assert await asyncio.to_thread(proxy.has_ended.wait, WITHIN_S / 4)
    assert received == b"last"


async def test_a_handshake_that_fails_within_tls_is_a_connect_error(tmp_path: Path) -> None:
    proxy = TunnelPeer(tmp_path)
    # Python 3.11.7 also reports its own error (python/cpython issue 113214).
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def serve(outer: PeerLayer) -> None:
        outer.recv(65_536)
        outer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        outer.notify()

    async with proxy.serving(serve) as outer:
        with pytest.raises(httpcore2.ConnectError):
            await outer.start_tls(proxy.trust, NAME, WITHIN_S)

        assert await asyncio.to_thread(proxy.has_ended.wait, WITHIN_S / 4)


async def _parts(stream: httpcore2.AsyncNetworkStream) -> AsyncIterator[bytes]:
    while part := await stream.read(4096, WITHIN_S):
        yield part
