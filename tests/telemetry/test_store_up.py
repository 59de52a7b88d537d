"""`/readyz` and the metric while a database answers but accepts no writes, as with a full disk."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gatepost.runtime import metrics_sampler
from gatepost.storage.sql import sqlite
from tests.support.internet import metrics_page
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.server import Server, issuer_settings, running_server

pytestmark = pytest.mark.requirement("P16")
WITHIN_S = 60
STORE_UP = "gatepost_store_up"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the file for writing during a block; reading still works."""
    other = sqlite3.connect(path, isolation_level=None, timeout=WITHIN_S)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


def readiness(server: Server) -> tuple[int, object]:
    """Return the status of `/readyz`, and what it says about the database."""
    answer = server.client.send("GET", "/readyz")
    return answer.status, json.loads(answer.body)["stores"]["database"]


def store_up(server: Server) -> float:
    """Return the metric of the database."""
    return metrics_page(server.shared_metrics).value(STORE_UP, store="database")


@pytest.mark.parametrize(("on_failure", "status"), [("refuse", 503), ("go_on", 200)])
def test_a_database_that_accepts_no_writes_is_reported_until_it_does(
    idp: Idp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_failure: str, status: int
) -> None:
    """Both report it with either `audit.on_failure`, and recover without a call."""
    monkeypatch.setattr(metrics_sampler, "EVERY_S", 0.05)
    monkeypatch.setattr(sqlite, "PRAGMAS", {**sqlite.PRAGMAS, "busy_timeout": 200})
    file = tmp_path / "gatepost.db"
    settings = {
        "storage": {"database": f"sqlite:///{file}"},
        "audit": {"on_failure": on_failure},
    }
    with running_server(
        idp, [issuer_settings(idp)], tenancy={"create_on_first_use": True}, **settings
    ) as server:
        token = server.token(org_id="acme")
        eventually(lambda: server.client.call(token).status == 200, within=WITHIN_S)
        eventually(lambda: readiness(server) == (200, "ok"), within=WITHIN_S)
        eventually(lambda: store_up(server) == 1, within=WITHIN_S)
        with locked(file):
            server.client.call(token)
            eventually(lambda: readiness(server) == (503, "unavailable"), within=WITHIN_S)
            eventually(lambda: server.client.call(token).status == status, within=WITHIN_S)
            eventually(lambda: store_up(server) == 0, within=WITHIN_S)
            assert readiness(server) == (503, "unavailable")

        eventually(lambda: readiness(server) == (200, "ok"), within=WITHIN_S)
        eventually(lambda: store_up(server) == 1, within=WITHIN_S)
        eventually(lambda: server.client.call(token).status == 200, within=WITHIN_S)
