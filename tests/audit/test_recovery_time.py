"""How long replicas take to serve again once all their database connections have ended."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.audit.test_lost_connections import (
    WITHIN_S,
    PostgresServer,
    answers_to_callers,
    end_backends,
    has_result,
    name_of,
    request_id,
)
from tests.support.client import RawAnswer, ResourceClient
from tests.support.commands import PID_TOOL
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.processes import free_port
from tests.support.replicas import ReplicaProcesses
from tests.support.stores import Postgres

RECOVERED_S = 1.0
BACKEND_ENDINGS = 34
"""At each of three rates: a hundred in all."""
MEASURED_RANK = BACKEND_ENDINGS * 9 // 10
CALLS_OF_A_RECOVERY = 10
"""
A recovery takes this many times what a call takes at that moment, on top of `RECOVERED_S`.

A machine that others use makes both longer; on an idle one a call takes some milliseconds.
"""


@contextlib.contextmanager
def processes(idp: Idp, url: str, folder: Path, number: int) -> Iterator[list[PostgresServer]]:
    """Serve on one database with *number* processes, each of which has served a call."""
    tools = folder / "tools.py"
    tools.write_text(PID_TOOL.replace("{name}", "record_call"), encoding="utf-8")
    replicas = ReplicaProcesses(idp, folder, {"database": url}, tools=tools)
    replicas.ports = [replicas.port, *(free_port() for _ in range(number - 1))]
    token, servers = replicas.token(org_id="acme"), []
    for port in replicas.ports:
        client = ResourceClient(replicas.url)
        client.port = port
        servers.append(PostgresServer(client, token, url, folder / "keyring.json"))
    with replicas.running():
        for server in servers:
            eventually(lambda: has_result(server.call()), within=WITHIN_S)  # noqa: B023  # at once
        yield servers


def seconds_until_good(servers: list[PostgresServer]) -> tuple[float, list[RawAnswer]]:
    """Return the seconds until each server has served a call, and all the answers."""
    heard: list[RawAnswer] = []
    served: list[PostgresServer] = []

    def asks(server: PostgresServer) -> None:
        def is_served() -> bool:
            heard.append(answer := server.call())
            return has_result(answer)

        eventually(is_served, within=WITHIN_S, every=0.01)
        served.append(server)

    threads = [threading.Thread(target=asks, args=(server,)) for server in servers]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    took = time.monotonic() - began
    assert len(served) == len(servers), "a replica does not recover"
    return took, heard


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 4])
def test_replicas_serve_again_within_a_second_of_losing_all_connections(
    idp: Idp, postgres_server: Postgres, migrated_postgres: str, tmp_path: Path, replicas: int
) -> None:
    """A hundred losses, at 1 to 100 calls a second; the records are complete."""
    answers: list[RawAnswer] = []
    slow: list[str] = []
    with processes(idp, migrated_postgres, tmp_path, replicas) as servers:
        for per_second in (1, 10, 100):
            with answers_to_callers(servers, per_second=per_second) as heard:
                recoveries, usual = measured_recoveries(servers, postgres_server, answers)
            answers += heard
            allowed = RECOVERED_S + CALLS_OF_A_RECOVERY * median(usual)
            text = f"{recoveries[MEASURED_RANK]:.2f} s at {per_second} calls a second"
            if recoveries[MEASURED_RANK] > allowed:
                slow.append(f"{text}; allowed: {allowed:.2f} s")
        for server in servers:
            server.recovers()
        rows = servers[0].recorded()

    assert slow == []
    assert len(rows) == len({*rows})
    assert {request_id(answer) for answer in answers if answer.status == 200} <= {*rows}
    assert {answer.status for answer in answers} <= {200, 503}


def measured_recoveries(
    servers: list[PostgresServer], server: Postgres, answers: list[RawAnswer]
) -> tuple[list[float], list[float]]:
    """Return the seconds of each recovery, sorted, and of a call to each server after it."""
    recoveries, usual = list[float](), list[float]()
    for _ in range(BACKEND_ENDINGS):
        assert end_backends(server, name_of(servers[0].url)) >= len(servers)
        for seconds in (recoveries, usual):
            took, heard = seconds_until_good(servers)
            seconds.append(took)
            answers += heard
    return sorted(recoveries), usual
