"""`/metrics` has no authentication, so its clients must not block calls, scrapes or a stop."""

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.http.edge import respond
from gatepost.http.httptools_protocol import MAX_PIPELINED
from gatepost.runtime.http_server import bind
from gatepost.runtime.metrics_server import MAX_CONNECTIONS, scraped
from gatepost.telemetry.exposition import Exposition, registry_of
from gatepost.telemetry.shared_memory import SharedMetrics
from tests.support.client import read_answer
from tests.support.commands import ServerProcess, server_process
from tests.support.internet import fetch, scrape
from tests.support.issuers import Idp
from tests.support.measuring import each, eventually
from tests.support.processes import free_port
from tests.support.server import issuer_settings

pytestmark = pytest.mark.requirement("P16")

WITHIN_S = 30
GET_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
MANY_CONNECTIONS = 3 * MAX_CONNECTIONS
OTHER_DESCRIPTORS = 50
"""File descriptors that the process may open meanwhile for other reasons."""
CALLS = {"tool": "pid", "outcome": "success"}


class MeasuredServer:
    """A running server, the port of its metrics, and how many calls it has answered."""

    def __init__(self, post: ServerProcess, port: int) -> None:
        self.post, self.port, self.made = post, port, 0

    def open_files(self) -> int:
        """Return how many open files the process has."""
        return len(os.listdir(f"/proc/{self.post.process.process.pid}/fd"))


@contextlib.contextmanager
def serving(idp: Idp, folder: Path) -> Iterator[MeasuredServer]:
    port = free_port()
    env = {"GATEPOST_LISTEN__METRICS": f"127.0.0.1:{port}"}
    with server_process(
        idp, folder, [issuer_settings(idp, tenants={"acme": "acme"})], env=env
    ) as server:
        yield MeasuredServer(server, port)


@pytest.fixture(scope="module")
def server(idp: Idp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredServer]:
    with serving(idp, tmp_path_factory.mktemp("site")) as server:
        yield server


def connected_client(port: int, sent: bytes = b"") -> socket.socket:
    """Open a connection that sends this and reads nothing."""
    client_socket = socket.socket()
    client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client_socket.settimeout(WITHIN_S)
    client_socket.connect(("127.0.0.1", port))
    with contextlib.suppress(ConnectionError):
        client_socket.sendall(sent)
    return client_socket


CLIENTS = {
    "says nothing": b"",
    "sends half a head": GET_REQUEST[:-2],
    "asked once and goes on": GET_REQUEST + GET_REQUEST[:-2],
    "reads nothing of many answers": GET_REQUEST * (MAX_PIPELINED // 2),
    "sends no body": b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n",
    "sends a head without end": GET_REQUEST[:-2] + b"X-Fill: " + b"a" * 60_000,
}


def call_count(server: MeasuredServer) -> float:
    """Return how many calls of the tool were counted."""
    return scrape(server.port).value("gatepost_tool_calls_total", **CALLS)


@pytest.mark.parametrize("client", CLIENTS)
def test_many_clients_of_metrics_are_bounded_and_block_nothing(
    server: MeasuredServer, client: str
) -> None:
    """Calls and scrapes are answered meanwhile, and the number of open connections is bounded."""
    token = server.post.token()
    server.made += 1
    server.post.pid(token)
    eventually(lambda: call_count(server) == server.made, within=WITHIN_S)
    before = server.open_files()
    with ExitStack() as clients:
        for _ in range(MANY_CONNECTIONS):
            clients.enter_context(connected_client(server.port, CLIENTS[client]))
        assert server.post.status(token) == 200
        server.made += 1
        server.post.pid(token)
        # An answer of a moment ago is the answer still.
        eventually(lambda: call_count(server) == server.made, within=WITHIN_S)
        most = before + MAX_CONNECTIONS + OTHER_DESCRIPTORS
        eventually(lambda: server.open_files() <= most, within=WITHIN_S)
        assert server.post.status(token) == 200


def test_a_stop_does_not_wait_for_clients_of_metrics(idp: Idp, tmp_path: Path) -> None:
    """The server exits with 0 while clients of every kind are connected, and logs no error."""
    with serving(idp, tmp_path) as server, ExitStack() as clients:
        for sent in CLIENTS.values():
            for _ in range(10):
                clients.enter_context(connected_client(server.port, sent))
        assert fetch(server.port, "/health")[0] == 200
        assert server.post.process.stop(timeout_s=WITHIN_S) == 0
    assert '"level":"error"' not in server.post.process.output


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Serve empty metrics, and return the port."""
    sock = bind("127.0.0.1", 0)
    with scraped(Exposition(registry_of(SharedMetrics(), version="1")), sock):
        yield sock.getsockname()[1]


UNUSUAL_REQUESTS = {
    "a tunnel": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", {405}),
    "an echo": (b"TRACE /metrics HTTP/1.1\r\nHost: x\r\n\r\n", {405}),
    "a body": (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", {405}),
    "a body to come": (
        b"PUT /metrics HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        {405},
    ),
    "chunks": (
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n",
        {405},
    ),
    "a body of a GET": (GET_REQUEST[:-2] + b"Content-Length: 5\r\n\r\nhello", {200}),
    "another protocol": (
        GET_REQUEST[:-2] + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        {200},
    ),
    "version two": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    "two lengths": (GET_REQUEST[:-2] + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", {400}),
    "many fields": (GET_REQUEST[:-2] + b"X: y\r\n" * 20_000 + b"\r\n", {200, 400, 431}),
    "a long field": (GET_REQUEST[:-2] + b"X: " + b"y" * 300_000 + b"\r\n\r\n", {400, 431}),
    "a long target": (b"GET /" + b"m" * 90_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", {404, 400, 431}),
}


@each("case", UNUSUAL_REQUESTS)
def test_an_odd_request_is_answered_and_the_next_one_too(port: int, case: str) -> None:
    """It gets a status or the end of its connection, and other requests are not affected."""
    sent, statuses = UNUSUAL_REQUESTS[case]
    with connected_client(port, sent) as odd_client, contextlib.suppress(ConnectionError):
        assert read_answer(odd_client).status in statuses
    status, _, text = fetch(port)
    assert status == 200
    assert re.search(r"^gatepost_build_info", text, re.MULTILINE)


class LargePages:
    """Answers with a large page, and counts how often."""

    SIZE = 1_000_000
    made = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.made += scope["path"] == "/metrics"
        await respond(send, 200, b"x" * (self.SIZE if scope["path"] == "/metrics" else 1))


def test_no_more_pages_are_made_than_a_slow_reader_takes() -> None:
    """Of hundreds of requested pages the server makes only as many as its buffers hold."""
    pages, sock = LargePages(), bind("127.0.0.1", 0)
    with scraped(pages, sock):
        port = sock.getsockname()[1]
        with connected_client(port, GET_REQUEST * 500) as slow:
            eventually(lambda: pages.made >= 1, within=WITHIN_S)
            # Each is a turn of the loop that makes the pages.
            for _ in range(20):
                assert fetch(port, "/health")[0] == 200
            assert pages.made < 250
            assert slow.recv(1) == b"H"
