"""`python -m bench.servers.delay PORT TARGET MS`: pass bytes to a port of this machine, later."""

import contextlib
import socket
import socketserver
import sys
import threading
import time


class DelayingProxy(socketserver.ThreadingTCPServer):
    """Delays what its clients send, so that each round trip takes so much longer."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, target: int, delay_s: float) -> None:
        super().__init__(("127.0.0.1", port), DelayedConnection)
        self.target, self.delay_s = target, delay_s


class DelayedConnection(socketserver.BaseRequestHandler):
    """One connection and its other half."""

    server: DelayingProxy

    def handle(self) -> None:
        """Pass bytes in both directions until either end closes."""
        with socket.create_connection(("127.0.0.1", self.server.target)) as upstream:
            for connection in (upstream, self.request):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=passed, args=(upstream, self.request, 0.0), daemon=True)
            back.start()
            passed(self.request, upstream, self.server.delay_s)
            back.join()


def passed(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Pass bytes on, each piece after a pause."""
    with contextlib.suppress(OSError):
        while data := source.recv(262_144):
            if delay_s:
                time.sleep(delay_s)
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    DelayingProxy(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000).serve_forever()
