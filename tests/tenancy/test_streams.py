"""Open streams of a real server: what a stop and a new configuration mean for them."""

import contextlib
import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.secrets.keyring import create
from tests.support.client import ResourceClient, modern_request
from tests.support.commands import ServerProcess, server_process
from tests.support.issuers import Idp
from tests.support.server import issuer_settings

ATTEMPTS = 400
"""Streams after which two processes that share a socket must both have one."""
TOOLS_FILTER = {"notifications": {"toolsListChanged": True}}


class Stream:
    """One listen stream, read event by event."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        assert answer.status == 200
        self.worker = (answer.getheader("x-request-id") or "").partition("-")[0]
        """The first half of a request's id belongs to the process."""
        assert self.next()["method"] == "notifications/subscriptions/acknowledged"

    def next(self) -> Any:
        """Return the next message within the connection's timeout, or None at the end."""
        while line := self._answer.readline():
            if line.startswith(b"data: "):
                return json.loads(line[6:])
        return None


@contextlib.contextmanager
def answering(
    client: ResourceClient, token: str, message: tuple[list[tuple[str, str]], bytes]
) -> Iterator[http.client.HTTPResponse]:
    """Send a message; yield its answer as soon as it begins."""
    fields, body = message
    headers = dict(fields) | {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
    }
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", client.path, body, headers)
        yield connection.getresponse()


@contextlib.contextmanager
def listening(client: ResourceClient, token: str) -> Iterator[Stream]:
    """Open a stream of the token's caller."""
    with answering(client, token, modern_request("subscriptions/listen", TOOLS_FILTER)) as answer:
        yield Stream(answer)


def issuers(idp: Idp) -> list[Any]:
    tables = {"acme": "acme", "globex": "globex"}
    return [
        issuer_settings(idp, tenants=tables),
        issuer_settings(idp, "second", tenants={"b": "b"}),
    ]


@pytest.fixture
def server(idp: Idp, tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a server of one process."""
    with server_process(idp, tmp_path, issuers(idp)) as server:
        yield server


@pytest.fixture
def two_workers(idp: Idp, tmp_path: Path, valkey: str) -> Iterator[ServerProcess]:
    """Yield a server of two workers."""
    create(tmp_path / "keyring.json")
    storage = {"database": "sqlite:///gatepost.db", "shared": valkey}
    ring = {"ring": "file:keyring.json"}
    with server_process(
        idp, tmp_path, issuers(idp), "--workers", "2", keys=ring, storage=storage
    ) as crew:
        yield crew


@contextlib.contextmanager
def on_both(workers: ServerProcess, token: str) -> Iterator[list[Stream]]:
    """Open a stream at each of the two workers."""
    with contextlib.ExitStack() as stack:
        opened_streams: dict[str, Stream] = {}
        for _ in range(ATTEMPTS):
            opening = contextlib.ExitStack()
            stream = opening.enter_context(listening(workers.client, token))
            if stream.worker in opened_streams:
                opening.close()
                continue
            stack.enter_context(opening)
            opened_streams[stream.worker] = stream
            if len(opened_streams) == 2:
                break
        assert len(opened_streams) == 2
        yield [*opened_streams.values()]


@pytest.mark.requirement("SU-07", "N23")
def test_a_stop_ends_streams_with_their_result(two_workers: ServerProcess) -> None:
    """Every worker ends them before the drain is over, so they do not delay the stop."""
    with on_both(two_workers, two_workers.token()) as streams:
        two_workers.process.process.send_signal(signal.SIGTERM)
        for stream in streams:
            assert stream.next()["result"]["resultType"] == "complete"
            assert stream.next() is None

    assert two_workers.process.process.wait(15) == 0


@pytest.mark.requirement("TL-16", "SU-10", "N23")
def test_a_new_tool_by_reload_is_announced_in_every_worker(two_workers: ServerProcess) -> None:
    """Every tenant gets the change; a reload without a list change is not announced."""
    load = ["./pid.py", two_workers.add_tool("another")]
    with (
        on_both(two_workers, two_workers.token()) as streams,
        listening(two_workers.client, two_workers.token(org_id="globex")) as other,
    ):
        two_workers.reload(times=2, log={"level": "info"})
        two_workers.reload(times=2, tools={"packs": ["demo"], "load": load})
        for stream in (*streams, other):
            assert stream.next()["method"] == "notifications/tools/list_changed"
        two_workers.process.process.send_signal(signal.SIGTERM)
        for stream in (*streams, other):
            assert "result" in stream.next()


@pytest.mark.requirement("SU-10", "N18")
@pytest.mark.parametrize("what", ["tenant", "issuer", "baseline"])
def test_a_reload_ends_the_streams_of_callers_that_lose_access(
    server: ServerProcess, idp: Idp, what: str
) -> None:
    """The tenant is suspended, the issuer removed, or a scope is missing; others continue."""
    lost = server.token("second", org_id="b", scope="")
    token = server.token(scope="files:write")
    changes: dict[str, Any] = {
        "tenant": {"tenancy": {"create_on_first_use": False, "suspended": ["b"]}},
        "issuer": {"issuers": issuers(idp)[:1]},
        "baseline": {"scopes": {"baseline": ["files:write"]}},
    }[what]
    with listening(server.client, lost) as theirs, listening(server.client, token) as ours:
        server.reload(**changes)
        assert theirs.next()["result"]["resultType"] == "complete"
        assert theirs.next() is None
        server.reload(tools={"packs": ["demo"], "load": ["./pid.py", server.add_tool("another")]})

        assert ours.next()["method"] == "notifications/tools/list_changed"
