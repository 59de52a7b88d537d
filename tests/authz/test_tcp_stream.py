"""TCP connections of the event loop, against sockets that misbehave."""

import asyncio
import select
import socket
import ssl
import struct
from collections.abc import AsyncIterator

import httpcore2
import pytest

from gatepost_authz.tcp_stream import TcpStream, connect_tcp

WITHIN_S = 10
MUCH = 64_000_000
"""More than the buffers of any system hold."""

Ends = tuple[TcpStream, socket.socket]


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Servers run on uvloop, and other users of the package on asyncio's own loop."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """A connection, and the peer's socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = await connect_tcp("127.0.0.1", listener.getsockname()[1], WITHIN_S)
        peer, _ = listener.accept()
    with peer:
        yield stream, peer
        await stream.aclose()


async def test_what_arrives_is_read_in_pieces_to_its_end(ends: Ends) -> None:
    stream, peer = ends
    peer.sendall(b"abcdef")
    first = await stream.read(4, WITHIN_S)
    second = await stream.read(4, WITHIN_S)
    peer.close()

    assert first + second == b"abcdef"
    assert await stream.read(4, WITHIN_S) == b""


async def test_a_silent_peer_is_not_waited_for(ends: Ends) -> None:
    """The connection stays usable."""
    stream, peer = ends
    with pytest.raises(httpcore2.ReadTimeout):
        await stream.read(4, 0.01)
    peer.sendall(b"late")

    assert await stream.read(4, WITHIN_S) == b"late"


async def test_a_flood_waits_at_its_sender(ends: Ends) -> None:
    """What is not read takes bounded memory, and nothing of it is lost."""
    stream, peer = ends
    peer.setblocking(False)
    sent, stalls = 0, 0
    while stalls < 100 and sent < MUCH:
        try:
            sent += peer.send(b"x" * 100_000)
            stalls = 0
        except BlockingIOError:
            stalls += 1
        await asyncio.sleep(0)
    assert sent < MUCH

    read = 0
    while read < sent:
        read += len(await stream.read(1_000_000, WITHIN_S))
    assert read == sent


async def test_a_peer_that_reads_nothing_holds_nobody(ends: Ends) -> None:
    stream, _ = ends
    with pytest.raises(httpcore2.WriteTimeout):
        await stream.write(b"x" * MUCH, 0.05)
    await stream.aclose()

    with pytest.raises(httpcore2.WriteError):
        await stream.write(b"more", WITHIN_S)


async def test_a_reset_is_an_error(ends: Ends) -> None:
    """It must not look like the end of an answer."""
    stream, peer = ends
    reading = asyncio.create_task(stream.read(4, WITHIN_S))
    await asyncio.sleep(0)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()

    with pytest.raises(httpcore2.ReadError):
        await reading


async def test_a_closed_connection_is_known_before_the_loop_hears_of_it(ends: Ends) -> None:
    """A pool asks before it uses an idle connection again."""
    stream, peer = ends
    before = stream.get_extra_info("is_readable")
    peer.close()
    # The loop does not run meanwhile.
    select.select([stream.get_extra_info("socket").fileno()], [], [], WITHIN_S)

    assert before is False
    assert stream.get_extra_info("is_readable") is True


async def test_a_peer_without_tls_is_refused(ends: Ends) -> None:
    stream, peer = ends
    peer.sendall(b"220 hello\r\n")
    with pytest.raises(httpcore2.ConnectError):
        await stream.start_tls(ssl.create_default_context(), "example.com", WITHIN_S)


async def test_a_handshake_that_hangs_ends(ends: Ends) -> None:
    stream, _ = ends
    with pytest.raises(httpcore2.ConnectTimeout):
        await stream.start_tls(ssl.create_default_context(), "example.com", 0.05)


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(httpcore2.ConnectError):
        await connect_tcp("127.0.0.1", port, WITHIN_S)
