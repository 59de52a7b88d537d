"""A server on the loop of production, mostly with TLS, in a thread of this process."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from starlette.types import ASGIApp

from gatepost.http.deadlines import Deadlines
from gatepost.runtime.server import GatepostServer, bind, listen_config, tls_context
from tests.authz.certificates import Company

WITHIN_S = 30
STOPS_WITHIN_S = 25
"""Less than the half minute that TLS waits for a client's word."""
NEVER_S = 600
"""Longer than any test waits."""


class Encrypted(threading.Thread):
    """The server; whoever stops it may wait until it has ended."""

    def __init__(self, app: ASGIApp, company: Company | None, deadlines: Deadlines) -> None:
        super().__init__(daemon=True)
        tls = None if company is None else tls_context(*company.certify("localhost"))
        self.trusting = ssl.create_default_context(cafile=company and str(company.bundle))
        self._speaks_tls = company is not None
        self.sock = bind("127.0.0.1", 0)
        self.port: int = self.sock.getsockname()[1]
        self.ready = threading.Event()
        config = listen_config(app, deadlines, tls=tls)
        self.server = GatepostServer(config, on_ready=self.ready.set)

    def run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self.server.serve(sockets=[self.sock]))

    def opened(self, address: str = "127.0.0.1", **options: int) -> socket.socket:
        """A connection on which a client can ask, from one of its addresses."""
        plain = self.plain(address, **options)
        if not self._speaks_tls:
            return plain
        return self.trusting.wrap_socket(plain, server_hostname="localhost")

    def plain(self, address: str = "127.0.0.1", **options: int) -> socket.socket:
        """A connection on which nothing has been said yet."""
        made = socket.socket()
        made.bind((address, 0))
        for name, value in options.items():
            made.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        made.settimeout(WITHIN_S)
        try:
            made.connect(("127.0.0.1", self.port))
        except OSError:
            made.close()
            raise
        return made

    def connected(self, **options: int) -> ssl.SSLSocket:
        """An encrypted one; a connection that is cut raises, and one that is ended reads empty."""
        return self.trusting.wrap_socket(
            self.plain(**options), server_hostname="localhost", suppress_ragged_eofs=False
        )

    def stop(self) -> None:
        """Have it stop, and return once it has."""
        self.server.should_exit = True
        self.join(STOPS_WITHIN_S)
        assert not self.is_alive(), "the server waits for somebody"


@contextmanager
def encrypted(app: ASGIApp, company: Company | None, **deadlines: Any) -> Iterator[Encrypted]:
    """Serve for the time of a block; every deadline that is not given never comes."""
    never = {"head_s": NEVER_S, "keep_alive_s": NEVER_S, "drain_s": NEVER_S}
    server = Encrypted(app, company, Deadlines(**never | deadlines))
    server.start()
    assert server.ready.wait(WITHIN_S)
    try:
        yield server
    finally:
        server.stop()


def rest_of(connection: socket.socket) -> bytes:
    """All until the server ends the connection."""
    data = b""
    while piece := connection.recv(65_536):
        data += piece
    return data


def until(connection: socket.socket, end: bytes) -> bytes:
    """All up to *end*, which is the last that comes."""
    data = b""
    while not data.endswith(end):
        piece = connection.recv(65_536)
        assert piece, f"closed after {data!r}"
        data += piece
    return data
