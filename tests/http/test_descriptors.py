"""More connections than a process may have open: new clients are served all the same."""

import contextlib
import errno
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from gatepost.http.file_descriptors import DescriptorLimits
from tests.support.client import RawAnswer, modern_request, read_answer, request, result
from tests.support.commands import ServerProcess, server_process
from tests.support.connections import RecordedEdge, ask, recorded_edge
from tests.support.internet import fetch
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.processes import free_port
from tests.support.server import issuer_settings

__all__ = ["recorded_edge"]  # a fixture

WITHIN_S = 30
LIMIT = 100
"""Descriptors that the server may have; it needs some twenty for itself."""
RAISED_LIMIT = 256
CONNECTIONS = LIMIT + 40
CONNECTION_ENDED, CONNECTIONS_WAIT = '"event":"idle_connection_ended"', '"event":"connections_wait"'


class LimitedServer:
    """A server with few descriptors, and the port of its numbers."""

    def __init__(self, server: ServerProcess, metrics: int) -> None:
        self.post, self.metrics = server, metrics
        self.token = server.token()

    def connected(self) -> socket.socket:
        """Return a connection without a request."""
        return socket.create_connection(("127.0.0.1", self.post.client.port), timeout=WITHIN_S)

    def message(self, *, whole: bool = True) -> bytes:
        """Return a call of `whoami`; with half of its body, it continues until the rest comes."""
        named, body = modern_request("tools/call", {"name": "whoami", "arguments": {}})
        own = [("Host", self.post.client.authority), ("Authorization", f"Bearer {self.token}")]
        own += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        message = request("POST", self.post.client.path, [*own, *named], body)
        return message if whole else message[:-1]

    def ask(self, connection: socket.socket) -> RawAnswer:
        connection.sendall(self.message())
        return read_answer(connection)

    def complaints(self) -> list[str]:
        """Return what the log says about connections."""
        lines = self.post.process.stderr.splitlines()
        return [line for line in lines if CONNECTION_ENDED in line or CONNECTIONS_WAIT in line]


def limited_command(soft: int, hard: int) -> list[str]:
    """Return a command that runs another one with these limits of open descriptors."""
    return ["sh", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"', "sh"]


@contextlib.contextmanager
def serving(
    idp: Idp, folder: Path, before: Sequence[str], more: Mapping[str, str] = {}
) -> Iterator[LimitedServer]:
    port = free_port()
    env = {"GATEPOST_LISTEN__METRICS": f"127.0.0.1:{port}", **more}
    issuers = [issuer_settings(idp, tenants={"acme": "acme"})]
    with server_process(idp, folder, issuers, env=env, before=before) as server:
        yield LimitedServer(server, port)


@pytest.fixture(scope="module")
def server(idp: Idp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedServer]:
    with serving(idp, tmp_path_factory.mktemp("few"), limited_command(LIMIT, LIMIT)) as server:
        yield server


@pytest.fixture(scope="module")
def raised_server(idp: Idp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedServer]:
    """Yield a server whose soft limit is lower than its hard limit."""
    slow = {"GATEPOST_LIMITS__HEADER_TIMEOUT_S": "60"}  # longer than any client waits here
    before = limited_command(LIMIT, RAISED_LIMIT)
    with serving(idp, tmp_path_factory.mktemp("raised"), before, slow) as server:
        yield server


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_limit(
    raised_server: LimitedServer,
) -> None:
    """Shells and container runtimes often set a soft limit of 1,024."""
    pid = raised_server.post.process.process.pid
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (RAISED_LIMIT, RAISED_LIMIT)


@pytest.mark.parametrize("has_request", [False, True], ids=["silent", "between requests"])
def test_idle_connections_are_closed_for_new_clients(
    server: LimitedServer, has_request: bool
) -> None:
    """The oldest idle connections are closed instead of resetting new clients."""
    with ExitStack() as open_:
        connections = []
        for _ in range(CONNECTIONS):
            connections.append(open_.enter_context(server.connected()))
            if has_request:
                assert server.ask(connections[-1]).status == 200
        for _ in range(5):
            with server.connected() as client:
                assert result(server.ask(client))["isError"] is False
        assert fetch(server.metrics)[0] == 200

        assert is_over(connections[0])
        assert server.ask(connections[-1]).status == 200, "the newest of them is served"
    assert any(CONNECTION_ENDED in line for line in server.complaints())
    assert len(server.complaints()) < 20, "a stranger must not fill the log"


def test_many_connections_at_once_do_not_delay_other_clients(raised_server: LimitedServer) -> None:
    """Idle connections end one loop iteration later than new ones arrive."""
    with ExitStack() as open_:
        for _ in range(RAISED_LIMIT + 400):
            open_.enter_context(raised_server.connected())
        with raised_server.connected() as client:
            assert raised_server.ask(client).status == 200


def test_a_running_request_is_never_ended_for_a_new_client(server: LimitedServer) -> None:
    """Without an idle connection, new clients wait instead of being reset."""
    with ExitStack() as open_:
        connections = []
        for _ in range(CONNECTIONS):
            connections.append(open_.enter_context(server.connected()))
            connections[-1].sendall(server.message(whole=False))
        eventually(
            lambda: any(CONNECTIONS_WAIT in line for line in server.complaints()), within=WITHIN_S
        )
        assert fetch(server.metrics)[0] == 200, "numbers matter most now"

        last = server.message()[-1:]
        for connection in connections:
            connection.sendall(last)
            assert read_answer(connection).status == 200


def test_the_first_requests_import_nothing(idp: Idp, tmp_path: Path) -> None:
    """An import needs a descriptor, so a call near the limit would fail."""
    env = {"PYTHONPROFILEIMPORTTIME": "1"}
    with server_process(
        idp, tmp_path, [issuer_settings(idp, tenants={"acme": "acme"})], env=env
    ) as server:
        warm = LimitedServer(server, 0)

        def imported() -> list[str]:
            lines = server.process.stderr.splitlines()
            timed = [line for line in lines if line.startswith("import time:")]
            return [line.rpartition("|")[2].strip() for line in timed]

        before = imported()
        assert before
        for _ in range(2):
            with warm.connected() as client:
                assert warm.ask(client).status == 200
            assert server.client.listed(warm.token)
            assert server.client.call(warm.token[:-4] + "AAAA", "whoami").status == 401
        assert imported()[len(before) :] == []


async def test_a_shortage_of_descriptors_leads_to_503_with_retry_after(
    recorded_edge: RecordedEdge,
) -> None:
    """The shortage passes, so the answer is not 500 with a traceback."""
    recorded_edge.inner.raises = OSError(errno.EMFILE, "Too many open files")
    refused = await ask(recorded_edge.edge)

    assert (refused.status, refused.headers.get("retry-after")) == (503, "5")
    assert refused.json["error"]["data"]["error"] == "unavailable"


def test_some_descriptors_are_reserved_for_files_and_stores() -> None:
    """An eighth is reserved, within bounds, and the metrics server gets a part of it."""
    assert DescriptorLimits.from_limit(1024) == DescriptorLimits(almost_full=896, full=960)
    assert DescriptorLimits.from_limit(1024, share=4) == DescriptorLimits(almost_full=896, full=992)
    assert DescriptorLimits.from_limit(1 << 20) == DescriptorLimits(
        almost_full=(1 << 20) - 1000, full=(1 << 20) - 500
    )


def is_over(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
