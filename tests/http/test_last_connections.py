"""Clients that connect while the server stops: a proxy does not ask another replica."""

import asyncio
import socket
import ssl
from contextlib import closing
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.http.deadlines import Deadlines
from gatepost.http.edge import respond
from gatepost.runtime.http_server import GatepostServer, bind, listen_config, tls_context
from tests.http.test_tls import NEVER_S, rest_of
from tests.support.connections import WITHIN_S
from tests.support.proxies import CertificateAuthority

GET_REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, 200, b"{}")


async def started_server(sock: socket.socket, tls: ssl.SSLContext | None = None) -> GatepostServer:
    """Return a server that accepts at each turn of the loop and is stopped by its `shutdown`."""
    deadlines = Deadlines(head_s=NEVER_S, keep_alive_s=NEVER_S, drain_s=NEVER_S)
    config = listen_config(app, deadlines, tls=tls)
    config.load()
    server = GatepostServer(config, on_ready=lambda: None)
    server.lifespan = config.lifespan_class(config)
    await server.startup([sock])
    return server


@pytest.mark.parametrize("asked_before", [0, 1])
async def test_a_stop_answers_requests_sent_before_it(asked_before: int) -> None:
    """
    The requests are on a connection that is not accepted yet, and on an idle one.

    The first would be reset, and the second closed with the request unread.
    """
    sock = bind("127.0.0.1", 0)
    address = sock.getsockname()
    server = await started_server(sock)
    with closing(socket.create_connection(address, WITHIN_S)) as client:
        for _ in range(asked_before):
            client.sendall(GET_REQUEST)
            await asyncio.to_thread(client.recv, 65_536)
        client.sendall(GET_REQUEST)

        # The loop has had no turn since.
        await server.shutdown([sock])
        answer = await asyncio.to_thread(rest_of, client)

    assert answer.startswith(b"HTTP/1.1 200"), answer
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, WITHIN_S)


async def test_a_stop_waits_for_a_tls_handshake_and_its_request(tmp_path: Path) -> None:
    """In TLS 1.3 a client sends its request right after its last handshake message."""
    authority = CertificateAuthority(tmp_path)
    trusting = ssl.create_default_context(cafile=str(authority.bundle))
    sock = bind("127.0.0.1", 0)
    server = await started_server(sock, tls_context(*authority.certify("localhost")))

    def exchange(client: socket.socket) -> bytes:
        with trusting.wrap_socket(client, server_hostname="localhost") as encrypted:
            encrypted.sendall(GET_REQUEST)
            return rest_of(encrypted)

    with closing(socket.create_connection(sock.getsockname(), WITHIN_S)) as client:
        waiting = asyncio.create_task(asyncio.to_thread(exchange, client))
        await server.shutdown([sock])

        assert (await waiting).startswith(b"HTTP/1.1 200")
