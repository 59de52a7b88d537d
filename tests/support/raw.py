"""HTTP/1.1 byte by byte, for requests that no well-behaved client would send."""

import socket
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class RawAnswer(NamedTuple):
    """One answer as it came: status, header fields in order (names in lower case), body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def field(self, name: str) -> str | None:
        """The only field of that name; None when there is none."""
        values = [value for field, value in self.headers if field == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None


def exchange(port: int, data: bytes | Iterable[bytes], *, timeout: float = 30) -> RawAnswer:
    """Send bytes (in pieces, if given in pieces) to loopback and read one answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        for piece in [data] if isinstance(data, bytes) else data:
            connection.sendall(piece)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> RawAnswer:
    """Read one answer with a Content-Length, or up to the end of the connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65_536)
        if not chunk:
            raise ConnectionError(f"the server closed after {received!r}")
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    headers = [(n.strip().lower(), v.strip()) for n, _, v in (f.partition(":") for f in fields)]
    length = next((int(v) for n, v in headers if n == "content-length"), None)
    while length is None or len(body) < length:
        chunk = connection.recv(65_536)
        if not chunk:
            break
        body += chunk
    return RawAnswer(int(first.split()[1]), headers, body)


def request(
    method: str,
    target: str,
    fields: Sequence[tuple[str, str | bytes]] = (),
    body: bytes = b"",
) -> bytes:
    """A request head with exactly these fields, in this order, and a body."""
    lines = [f"{method} {target} HTTP/1.1".encode()]
    for name, value in fields:
        raw = value if isinstance(value, bytes) else value.encode("latin-1")
        lines.append(name.encode("latin-1") + b": " + raw)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
