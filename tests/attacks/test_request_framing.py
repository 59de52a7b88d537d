"""What was found by sending requests whose end is in doubt; each stays found."""

from tests.attacks.conftest import AttackedServer
from tests.attacks.test_http_connections import connected, statuses
from tests.support.measuring import each

CHUNKED_BODY = b"2\r\n{}\r\n0\r\n\r\n"
REFUSED_CODINGS = [
    ["gzip, chunked"],
    ["chunked, chunked"],
    ["xchunked, chunked"],
    ["chunked", "chunked"],
    ["gzip", "chunked"],
    ["identity, chunked"],
]
METHODS_AND_TARGETS = [
    "POST /mcp",
    "GET /health",
    "OPTIONS /mcp",
    "TRACE /mcp",
    "POST /nowhere",
    "GET /",
]


@each("method_and_target", METHODS_AND_TARGETS)
@each("codings", REFUSED_CODINGS, ids=str)
def test_no_request_is_served_after_an_unknown_transfer_coding(
    server: AttackedServer, method_and_target: str, codings: list[str]
) -> None:
    """A proxy may see another end of such a request, so the rest could be smuggled."""
    lines = [f"{method_and_target} HTTP/1.1", f"Host: {server.client.authority}"]
    lines += [f"Transfer-Encoding: {coding}" for coding in codings]
    next_one = (
        f"GET /health HTTP/1.1\r\nHost: {server.client.authority}\r\nConnection: close\r\n\r\n"
    )

    with connected(server) as connection:
        connection.sendall(
            "\r\n".join([*lines, "", ""]).encode() + CHUNKED_BODY + next_one.encode()
        )
        answered = statuses(connection)

    assert len(answered) == 1, answered


def test_a_connection_serves_the_next_request_after_a_chunked_body(server: AttackedServer) -> None:
    """A known transfer coding is unambiguous."""
    head = f"GET /health HTTP/1.1\r\nHost: {server.client.authority}\r\n"
    first = f"{head}Transfer-Encoding: Chunked\r\n\r\n".encode() + CHUNKED_BODY

    with connected(server) as connection:
        connection.sendall(first + f"{head}Connection: close\r\n\r\n".encode())
        assert statuses(connection) == [200, 200]
