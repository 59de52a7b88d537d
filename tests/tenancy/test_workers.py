"""Several processes on one socket: any of them serves any caller, and each stands on its own."""

import contextlib
import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.secrets.keyring import create
from tests.support.client import modern_request, session_call
from tests.support.commands import ServerProcess, pid_of, server_process
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.server import issuer_settings
from tests.tenancy.test_streams import answering

ATTEMPTS = 400
"""Requests after which two processes that share a socket must both have answered."""


@pytest.fixture
def server(idp: Idp, tmp_path: Path, valkey: str) -> Iterator[ServerProcess]:
    """Yield two workers with a key ring file, one database and one Valkey."""
    create(tmp_path / "keyring.json")
    idp.hits.clear()
    issuers = [
        issuer_settings(idp, tenants={"acme": "acme"}),
        issuer_settings(idp, "second", tenants={"b": "b"}),
    ]
    ring = {"ring": "file:keyring.json"}
    storage = {"database": "sqlite:///gatepost.db", "shared": valkey}
    with server_process(
        idp, tmp_path, issuers, "--workers", "2", keys=ring, storage=storage
    ) as server:
        yield server


def until_both_answered(server: ServerProcess, token: str) -> set[int]:
    """Return the ids of two processes that have answered this token."""
    pids: set[int] = set()
    for _ in range(ATTEMPTS):
        pids.add(server.pid(token))
        if len(pids) == 2:
            return pids
    raise AssertionError(f"only {pids} answered")


@pytest.mark.requirement("N23", "S-20", "S-16")
def test_a_session_of_one_worker_is_valid_at_every_worker(server: ServerProcess) -> None:
    """Ids are signed with the shared ring: no balancer has to remember who opened what."""
    token = server.token()
    session = server.client.open(token)
    pids: set[int] = set()
    for _ in range(ATTEMPTS):
        pids.add(pid_of(server.client.within(token, session, session_call("pid"))))
        if len(pids) == 2:
            break

    assert len(pids) == 2
    assert server.process.process.pid not in pids


@pytest.mark.requirement("N23", "N14")
def test_each_worker_fetches_its_own_keys(server: ServerProcess) -> None:
    """No client crosses a fork: each process asks each issuer once, and once only."""
    until_both_answered(server, server.token())

    assert server.idp.key_hits("main") == 2
    assert server.idp.key_hits("second") == 2


@pytest.mark.requirement("N23")
def test_a_signal_drains_every_worker(server: ServerProcess) -> None:
    """Calls that run in either process finish with their result; the exit code is 0."""
    token = server.token()
    call = {"name": "count_slowly", "arguments": {"steps": 20, "delay_s": 0.1}}
    message = modern_request("tools/call", call, progress=1)
    with contextlib.ExitStack() as stack:
        streams: dict[str, http.client.HTTPResponse] = {}
        for _ in range(60):
            answer = stack.enter_context(answering(server.client, token, message))
            # The first half of a request's id belongs to the process.
            worker = (answer.getheader("x-request-id") or "").partition("-")[0]
            streams.setdefault(worker, answer)
            if len(streams) == 2:
                break
        assert len(streams) == 2
        server.process.process.send_signal(signal.SIGTERM)
        ends = [
            answer.read().decode().rstrip().rsplit("data: ", 1)[-1] for answer in streams.values()
        ]

    texts = [json.loads(end)["result"]["content"][0]["text"] for end in ends]
    assert texts == ["Counted to 20"] * 2
    assert server.process.process.wait(15) == 0


@pytest.mark.requirement("N18", "N23")
def test_a_reload_reaches_every_worker_and_later_ones(server: ServerProcess, idp: Idp) -> None:
    """A removed issuer stays removed, also in the process that replaces one that died."""
    token, removed = server.token(), server.token("second", org_id="b")
    assert server.status(removed) == 200

    server.reload(times=2, issuers=[issuer_settings(idp, tenants={"acme": "acme"})])
    before = until_both_answered(server, token)
    assert_refused(server, removed)

    os.kill(min(before), signal.SIGKILL)
    server.process.wait_for("worker_replaced")
    new: set[int] = set()

    def replaced() -> bool:
        # The connection may be one that the killed process had taken.
        with contextlib.suppress(ConnectionError):
            new.add(server.pid(token))
        return bool(new - before)

    eventually(replaced, within=20, every=0.01)
    assert_refused(server, removed)


def assert_refused(server: ServerProcess, token: str) -> None:
    """Assert that no process accepts the token in many attempts."""
    assert {server.status(token) for _ in range(40)} == {401}


@pytest.mark.requirement("N23")
def test_a_later_worker_accepts_existing_sessions(server: ServerProcess) -> None:
    """No caller has to sign in again because a process died."""
    token = server.token()
    session = server.client.open(token)
    before = until_both_answered(server, token)
    os.kill(max(before), signal.SIGKILL)
    seen: set[int] = set()

    def taken_up() -> bool:
        with contextlib.suppress(ConnectionError):
            seen.add(pid_of(server.client.within(token, session, session_call("pid"))))
        return bool(seen - before)

    eventually(taken_up, within=20, every=0.01)
