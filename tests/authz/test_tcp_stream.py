"""TCP connections of the event loop, against sockets that misbehave."""

import asyncio
import select
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpcore2
import pytest
import uvloop

from gatepost_authz.tcp_stream import TcpStream, connect_tcp
from tests.support.proxies import CertificateAuthority

WITHIN_S = 10
NAME = "good.example"
MANY_BYTES = 64_000_000
"""More than the buffers of any system hold."""

Ends = tuple[TcpStream, socket.socket]


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run on uvloop, as servers do, and on asyncio's own loop, as other users of the package do."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def both_ends() -> AsyncIterator[Ends]:
    """Yield a connection, and the peer's socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = await connect_tcp("127.0.0.1", listener.getsockname()[1], WITHIN_S)
        peer, _ = listener.accept()
    with peer:
        yield stream, peer
        await stream.aclose()


async def test_received_data_is_read_in_parts_until_the_end(both_ends: Ends) -> None:
    stream, peer = both_ends
    peer.sendall(b"abcdef")
    first = await stream.read(4, WITHIN_S)
    second = await stream.read(4, WITHIN_S)
    peer.close()

    assert first + second == b"abcdef"
    assert await stream.read(4, WITHIN_S) == b""


async def test_reading_from_a_silent_peer_times_out(both_ends: Ends) -> None:
    """The connection stays usable after the timeout."""
    stream, peer = both_ends
    with pytest.raises(httpcore2.ReadTimeout):
        await stream.read(4, 0.01)
    peer.sendall(b"late")

    assert await stream.read(4, WITHIN_S) == b"late"


async def test_unread_data_is_held_back_at_the_sender(both_ends: Ends) -> None:
    """The stream buffers a bounded amount, and no data is lost."""
    stream, peer = both_ends
    peer.setblocking(False)
    sent, stalls = 0, 0
    while stalls < 100 and sent < MANY_BYTES:
        try:
            sent += peer.send(b"x" * 100_000)
            stalls = 0
        except BlockingIOError:
            stalls += 1
        await asyncio.sleep(0)
    assert sent < MANY_BYTES

    read = 0
    while read < sent:
        read += len(await stream.read(1_000_000, WITHIN_S))
    assert read == sent


async def test_a_write_to_a_peer_that_does_not_read_times_out(both_ends: Ends) -> None:
    stream, _ = both_ends
    with pytest.raises(httpcore2.WriteTimeout):
        await stream.write(b"x" * MANY_BYTES, 0.05)
    await stream.aclose()

    with pytest.raises(httpcore2.WriteError):
        await stream.write(b"more", WITHIN_S)


async def test_a_connection_reset_is_a_read_error(both_ends: Ends) -> None:
    """A reset must not look like the end of an answer."""
    stream, peer = both_ends
    reading = asyncio.create_task(stream.read(4, WITHIN_S))
    await asyncio.sleep(0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()

    with pytest.raises(httpcore2.ReadError):
        await reading


async def test_a_closed_connection_is_detected_before_the_loop_runs(both_ends: Ends) -> None:
    """A pool checks an idle connection before it uses it again."""
    stream, peer = both_ends
    before = stream.get_extra_info("is_readable")
    peer.close()
    # The loop does not run meanwhile.
    select.select([stream.get_extra_info("socket").fileno()], [], [], WITHIN_S)

    assert before is False
    assert stream.get_extra_info("is_readable") is True


async def test_a_peer_without_tls_is_refused(both_ends: Ends) -> None:
    stream, peer = both_ends
    peer.sendall(b"220 hello\r\n")
    with pytest.raises(httpcore2.ConnectError):
        await stream.start_tls(ssl.create_default_context(), "example.com", WITHIN_S)


async def test_a_hanging_tls_handshake_times_out(both_ends: Ends) -> None:
    stream, _ = both_ends
    with pytest.raises(httpcore2.ConnectTimeout):
        await stream.start_tls(ssl.create_default_context(), "example.com", 0.05)


async def test_tls_on_a_connection_that_was_reset_is_refused(both_ends: Ends) -> None:
    """The loop reports no error of a callback, which would be logged for each such connection."""
    stream, peer = both_ends
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    with pytest.raises(httpcore2.ReadError):
        await stream.read(1, WITHIN_S)
    with pytest.raises(httpcore2.ConnectError):
        await stream.start_tls(ssl.create_default_context(), "example.com", WITHIN_S)
    await asyncio.sleep(0.01)

    assert errors == []


async def test_a_refused_connection_is_a_connect_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(httpcore2.ConnectError):
        await connect_tcp("127.0.0.1", port, WITHIN_S)


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
                if not self._arrived.write(self._below.recv(65_536)):
                    raise ConnectionError("the client has closed the connection") from None
            finally:
                self._send()

    def _send(self) -> None:
        if data := self._leaving.read():
            self._below.sendall(data)


class TlsPeer:
    """The contexts of both sides, and a server that serves one connection in a thread."""

    def __init__(self, folder: Path) -> None:
        authority = CertificateAuthority(folder)
        self.trust = ssl.create_default_context(cafile=str(authority.bundle))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*authority.certify(NAME))
        self.has_ended = threading.Event()
        """Set when the client has closed the connection."""

    @asynccontextmanager
    async def serving(
        self, serve: Callable[[socket.socket, PeerLayer], object]
    ) -> AsyncIterator[TcpStream]:
        """Yield a connection above whose TLS *serve* is called, until the client closes it."""

        def run() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(WITHIN_S)
                try:
                    layer = PeerLayer(peer, self.context)
                except (ssl.SSLError, ConnectionError):
                    return  # the client has refused the certificate
                serve(peer, layer)
                with suppress(ConnectionError):
                    while peer.recv(65_536):
                        pass
                self.has_ended.set()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=run)
            thread.start()
            stream = await connect_tcp("127.0.0.1", listener.getsockname()[1], WITHIN_S)
            yield stream
            await stream.aclose()
            # The loop runs meanwhile, so that it closes the connection the thread waits for.
            await asyncio.to_thread(thread.join, WITHIN_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("notifies", [True, False], ids=["close_notify", "end of file"])
async def test_data_sent_before_the_peer_closed_tls_is_read(tmp_path: Path, notifies: bool) -> None:
    """The data may be larger than the buffer when the peer closes early."""
    peer, size, is_sent = TlsPeer(tmp_path), 800_000, threading.Event()

    def serve(end: socket.socket, layer: PeerLayer) -> None:
        layer.sendall(b"x" * size)
        if notifies:
            layer.notify()
        end.shutdown(socket.SHUT_WR)
        is_sent.set()

    async with peer.serving(serve) as below:
        stream = await below.start_tls(peer.trust, NAME, WITHIN_S)
        assert await asyncio.to_thread(is_sent.wait, WITHIN_S)
        read = 0
        while part := await stream.read(4096, WITHIN_S):
            read += len(part)
            await asyncio.sleep(0)
        await stream.aclose()

    assert read == size


@pytest.mark.parametrize("name", ["other.example", "127.0.0.1", "", None, ".good.example"])
async def test_a_certificate_for_another_name_is_refused(tmp_path: Path, name: str | None) -> None:
    """An empty host name counts as another name."""
    peer = TlsPeer(tmp_path)
    async with peer.serving(lambda *_: None) as below:
        with pytest.raises(httpcore2.ConnectError):
            await below.start_tls(peer.trust, name, WITHIN_S)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_connection_of_a_closed_loop_of_uvloop_counts_as_closed() -> None:
    """A pool that outlives its loop opens another connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            stream = runner.run(connect_tcp("127.0.0.1", listener.getsockname()[1], WITHIN_S))
        peer, _ = listener.accept()
    peer.close()

    assert stream.get_extra_info("is_readable")
