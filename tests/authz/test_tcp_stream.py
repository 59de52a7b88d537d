"""TCP connections of the event loop, against sockets that misbehave."""

import asyncio
import select
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpcore2
import pytest
import uvloop

from gatepost_authz.tcp_stream import TcpStream, connect_tcp
from tests.support.proxies import CertificateAuthority

WITHIN_S = 10
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


class TlsPeer:
    """The contexts of both sides, and a server that serves one connection in a thread."""

    def __init__(self, folder: Path) -> None:
        authority = CertificateAuthority(folder)
        self.trust = ssl.create_default_context(cafile=str(authority.bundle))
        self._own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._own.load_cert_chain(*authority.certify("good.example"))

    @asynccontextmanager
    async def serving(
        self, *records: bytes, notifies: bool
    ) -> AsyncIterator[tuple[int, threading.Event]]:
        """Send *records* and end the connection; the event says when all of that is sent."""
        is_sent = threading.Event()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(WITHIN_S)
                arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = self._own.wrap_bio(arrived, leaving, server_side=True)
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        peer.sendall(leaving.read())
                        if not arrived.write(peer.recv(65_536)):
                            return
                    except ssl.SSLError:
                        return
                for record in records:
                    tls.write(record)
                if notifies:
                    with suppress(ssl.SSLWantReadError):
                        tls.unwrap()
                peer.sendall(leaving.read())
                peer.shutdown(socket.SHUT_WR)
                is_sent.set()
                while peer.recv(65_536):
                    pass

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=serve)
            thread.start()
            yield listener.getsockname()[1], is_sent
            # The loop runs meanwhile, so that it closes the connection the thread waits for.
            await asyncio.to_thread(thread.join, WITHIN_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("notifies", [True, False], ids=["close_notify", "end of file"])
async def test_data_sent_before_the_peer_closed_tls_is_read(tmp_path: Path, notifies: bool) -> None:
    """The data may be larger than the buffer when the peer closes early."""
    peer, size = TlsPeer(tmp_path), 800_000
    async with peer.serving(b"x" * size, notifies=notifies) as (port, is_sent):
        below = await connect_tcp("127.0.0.1", port, WITHIN_S)
        stream = await below.start_tls(peer.trust, "good.example", WITHIN_S)
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
    async with peer.serving(notifies=True) as (port, _):
        below = await connect_tcp("127.0.0.1", port, WITHIN_S)
        with pytest.raises(httpcore2.ConnectError):
            await below.start_tls(peer.trust, name, WITHIN_S)
        await below.aclose()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_connection_of_a_closed_loop_of_uvloop_counts_as_closed() -> None:
    """A pool that outlives its loop opens another connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            stream = runner.run(connect_tcp("127.0.0.1", listener.getsockname()[1], WITHIN_S))
        peer, _ = listener.accept()
    peer.close()

    assert stream.get_extra_info("is_readable")
