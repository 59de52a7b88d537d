"""One connection for many users, as proxies keep theirs: each request is judged as its own."""

import socket
from collections.abc import Iterator

import pytest

from tests.attacks.conftest import AttackedServer, Fields
from tests.support.client import RawAnswer, modern_request, read_answer, request
from tests.support.server import CALLS


class SharedConnection:
    """A connection to the server on which one request follows another."""

    def __init__(self, server: AttackedServer, connection: socket.socket) -> None:
        self._site, self._connection = server, connection

    def call(self, token: str, *more: tuple[str, str], host: str = "", size: int = 0) -> RawAnswer:
        """Call the record_call tool in one packet, with *size* bytes of white space at the end."""
        usual, body = modern_request("tools/call", {"name": "record_call", "arguments": {}})
        body += b" " * size
        fields: Fields = [
            ("Host", host or self._site.client.authority),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Authorization", f"Bearer {token}"),
            *usual,
            *more,
        ]
        self._connection.sendall(request("POST", self._site.client.path, fields, body))
        return read_answer(self._connection)


@pytest.fixture
def proxy(server: AttackedServer) -> Iterator[SharedConnection]:
    with socket.create_connection(("127.0.0.1", server.client.port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield SharedConnection(server, connection)


@pytest.mark.requirement("P3")
def test_the_token_names_the_caller_on_a_shared_connection(
    server: AttackedServer, proxy: SharedConnection
) -> None:
    """Tokens of different callers alternate; they have the same length."""
    forge = server.tokens()
    tokens = {name: forge.token(sub=name) for name in ("user-a", "user-b", "user-c")}
    assert len({len(token) for token in tokens.values()}) == 1
    order = [name for name in tokens for _ in range(3)] * 2 + [*tokens] * 3
    before = len(CALLS)
    for number, name in enumerate(order):
        assert proxy.call(tokens[name], size=number % 3).status == 200

    assert [caller.subject for caller in CALLS[before:]] == order


REFUSED_HEADERS: dict[str, tuple[int, tuple[str, str]]] = {
    "another site's page": (403, ("Origin", "https://evil.example")),
    "a second host": (400, ("Host", "evil.example")),
    "a second length": (400, ("Content-Length", "5")),
    "too long a field": (431, ("X-Long", "a" * 40_000)),
    "a compressed body": (415, ("Content-Encoding", "gzip")),
    "another tool in the head": (400, ("Mcp-Name", "record_write")),
}


@pytest.mark.requirement("P3")
@pytest.mark.parametrize(("status", "field"), REFUSED_HEADERS.values(), ids=REFUSED_HEADERS.keys())
def test_a_refused_header_is_refused_after_accepted_requests(
    server: AttackedServer, proxy: SharedConnection, status: int, field: tuple[str, str]
) -> None:
    """The refused request has one more field than the three accepted ones before it."""
    token = server.tokens().token()
    for _ in range(3):
        assert proxy.call(token).status == 200
    with server.nothing_runs():
        answer = proxy.call(token, field)
    assert answer.status == status


@pytest.mark.requirement("P3")
def test_another_host_is_refused_after_requests_for_the_own_host(
    server: AttackedServer, proxy: SharedConnection
) -> None:
    """The server refuses it each time and then accepts its own host again (DNS rebinding)."""
    token = server.tokens().token()
    for _ in range(3):
        for _ in range(3):
            assert proxy.call(token).status == 200
        with server.nothing_runs():
            assert proxy.call(token, host="evil.example").status == 421


@pytest.mark.requirement("P3")
@pytest.mark.parametrize(
    "changed",
    [
        {"exp": 1_000_000_000},
        {"aud": "https://elsewhere.example/mcp"},
        {"iss": "https://x.example"},
    ],
)
def test_a_bad_token_is_refused_after_a_good_token_on_the_same_connection(
    server: AttackedServer, proxy: SharedConnection, changed: dict[str, object]
) -> None:
    """The server refuses it each time and then accepts the good token again."""
    valid, bad = server.tokens().token(), server.tokens().token(**changed)
    for _ in range(3):
        for _ in range(3):
            assert proxy.call(valid).status == 200
        with server.nothing_runs():
            for _ in range(3):
                assert proxy.call(bad).status == 401
