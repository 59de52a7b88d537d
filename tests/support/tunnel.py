"""A company's way out: an HTTP proxy that leads every tunnel to one port of this machine."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator


class Tunnel(socketserver.ThreadingTCPServer):
    """Answers CONNECT and passes bytes; remembers what it was asked for."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), Digger)
        self.target = target
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Digger(socketserver.BaseRequestHandler):
    """One tunnel."""

    server: Tunnel

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            chunk = self.request.recv(4096)
            if not chunk:
                return
            head += chunk
        self.server.asked.append(head.decode("latin-1").split("\r\n")[0])
        with socket.create_connection(("127.0.0.1", self.server.target), timeout=10) as there:
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=pump, args=(there, self.request), daemon=True)
            back.start()
            pump(self.request, there)
            back.join(10)


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def tunnel(target: int) -> Iterator[Tunnel]:
    """Run the proxy for the time of a block."""
    with Tunnel(target) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
