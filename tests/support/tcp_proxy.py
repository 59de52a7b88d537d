"""A TCP proxy in front of a database, which loses connections and answers when a test wants it."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator

COMMITTED = b"COMMIT\x00"
"""PostgreSQL's answer to a COMMIT, without its head."""


class TcpProxy(socketserver.ThreadingTCPServer):
    """Passes bytes between its clients and a port of this machine."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), Passage)
        self.target = target
        self.port: int = self.server_address[1]
        self.passing = threading.Event()
        """Cleared: as a network that swallows every packet, in both directions."""
        self.passing.set()
        self.commits_to_lose = 0
        """Answers to a COMMIT that do not arrive, with the connection they belong to."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that end in the middle."""


class Passage(socketserver.BaseRequestHandler):
    """One connection and its other half."""

    server: TcpProxy

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.target), timeout=10) as there:
            there.settimeout(None)
            back = threading.Thread(target=self.pump, args=(there, self.request), daemon=True)
            back.start()
            self.pump(self.request, there)
            back.join(10)

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self.server.passing.wait()
                if source is not self.request and COMMITTED in data and self.server.commits_to_lose:
                    self.server.commits_to_lose -= 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tcp_proxy(target: int) -> Iterator[TcpProxy]:
    """Run the proxy for the time of a block."""
    with TcpProxy(target) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.passing.set()
            server.shutdown()
            thread.join(10)
