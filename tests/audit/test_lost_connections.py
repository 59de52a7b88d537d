"""Lost database connections: the server recovers by itself, and each call is recorded once."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.audit.batches import RingLinker
from gatepost.audit.checkpoints import public_keys
from gatepost.audit.record import read
from gatepost.audit.verify import verify
from gatepost.secrets.keyring import KeyRing, create
from gatepost.storage.backends import open_records
from gatepost.storage.sql import database, postgresql_audit_writer, sqlite
from gatepost.storage.sql.records import SqlRecords
from tests.support.client import RawAnswer, ResourceClient
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.proxies import tcp_proxy
from tests.support.server import issuer_settings, running_server
from tests.support.stores import Postgres

WITHIN_S = 30
KILL_TRIGGER = """
CREATE SEQUENCE kills;
CREATE FUNCTION end_this_backend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('kills') <= {times} THEN
        PERFORM pg_terminate_backend(pg_backend_pid());
        PERFORM pg_sleep(10);
    END IF;
    RETURN NEW;
END $$;
CREATE {kind} TRIGGER kill {when} FOR EACH ROW EXECUTE FUNCTION end_this_backend();
"""
KILL_MOMENTS = {
    "before the first record": ("", "BEFORE INSERT ON audit_segments"),
    "behind the last one": ("", "BEFORE INSERT OR UPDATE ON audit_heads"),
    "at the commit": (
        "CONSTRAINT",
        "AFTER INSERT ON audit_segments DEFERRABLE INITIALLY DEFERRED",
    ),
}


class PostgresServer:
    """A server on a PostgreSQL, its callers, and what is on record of them."""

    def __init__(self, client: ResourceClient, token: str, url: str, ring: Path) -> None:
        self.client, self.token, self.url, self.ring = client, token, url, ring

    def call(self) -> RawAnswer:
        return self.client.call(self.token)

    def is_ready(self) -> bool:
        return self.client.send("GET", "/readyz").status == 200

    def assert_recovers(self) -> None:
        """Wait until the server is ready without a call; then assert that calls are served."""
        eventually(self.is_ready, within=WITHIN_S)
        assert self.call().status == 200

    async def _recorded(self) -> list[str]:
        records = await open_records(self.url)
        keyring = KeyRing.load(f"file:{self.ring}")
        audit_store = records.open_audit(RingLinker(keyring))
        verdict = await verify(audit_store, "acme", public_keys(keyring), keyring, ())
        tenant_log = audit_store.tenant_log("acme")
        chains = [tenant_log.chain(writer) for writer in await tenant_log.writers()]
        rows = [row for chain in chains for row in await chain.rows(0, 100_000)]
        await records.aclose()
        assert not verdict.problem, verdict
        return [read(row).request_id for row in rows]

    def recorded(self) -> list[str]:
        """Return the request ids of all records, whose chain is whole."""
        return asyncio.run(self._recorded())


@contextlib.contextmanager
def serving(idp: Idp, url: str, folder: Path, *, read_from: str = "") -> Iterator[PostgresServer]:
    """Serve until the first call is served; *read_from* is another way to the database."""
    ring = folder / "keyring.json"
    if not ring.exists():
        create(ring)
    settings: dict[str, Any] = {
        "storage": {"database": url},
        "keys": {"ring": f"file:{ring}"},
        "tenancy": {"create_on_first_use": True},
        "workspace": {"root": str(folder / "workspaces")},
    }
    with running_server(idp, [issuer_settings(idp)], **settings) as running:
        server = PostgresServer(
            running.client, running.token(org_id="acme"), read_from or url, ring
        )
        eventually(lambda: server.call().status == 200, within=WITHIN_S)
        yield server


def request_id(answer: RawAnswer) -> str:
    value = answer.field("x-request-id")
    # An answer that took the place of another one has it in its body alone.
    return value or str(json.loads(answer.body)["error"]["data"]["request_id"])


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


@pytest.mark.parametrize("moment", KILL_MOMENTS)
@pytest.mark.parametrize("times", [1, 2, 4])
def test_each_call_is_recorded_once_if_a_backend_ends_during_a_commit(
    idp: Idp,
    postgres_server: Postgres,
    migrated_postgres: str,
    tmp_path: Path,
    moment: str,
    times: int,
) -> None:
    """One lost backend is not noticed; after several the server recovers without a call."""
    kind, when = KILL_MOMENTS[moment]
    with serving(idp, migrated_postgres, tmp_path) as server:
        sql = KILL_TRIGGER.format(times=times, kind=kind, when=when)
        postgres_server.sql(sql, name_of(migrated_postgres))
        hit = server.call()
        server.assert_recovers()
        rows = server.recorded()

    assert has_result(hit) is (times == 1), hit
    assert rows.count(request_id(hit)) == 1
    assert len(rows) == len({*rows}) == 3


@pytest.mark.parametrize("lost", [1, 2])
def test_a_batch_whose_commit_answer_is_lost_is_not_written_again(
    idp: Idp, postgres_server: Postgres, migrated_postgres: str, tmp_path: Path, lost: int
) -> None:
    """The batch is in the database, and its call succeeds."""
    with tcp_proxy(postgres_server.port) as proxy:
        url = migrated_postgres.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        with serving(idp, url, tmp_path, read_from=migrated_postgres) as server:
            proxy.commits_to_lose = lost
            hit = server.call()
            server.assert_recovers()
            rows = server.recorded()

        assert has_result(hit)
        assert proxy.commits_to_lose == 0
        assert rows.count(request_id(hit)) == 1
        assert len(rows) == len({*rows}) == 3


def test_a_call_succeeds_over_a_connection_whose_end_is_reported_before_it_is_closed(
    idp: Idp, postgres_server: Postgres, migrated_postgres: str, tmp_path: Path
) -> None:
    """The driver has its own error for that. The batch is written over another connection."""
    with tcp_proxy(postgres_server.port) as proxy:
        url = migrated_postgres.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        with serving(idp, url, tmp_path, read_from=migrated_postgres) as server:
            proxy.ending.clear()
            ended = end_backends(postgres_server, name_of(migrated_postgres))
            eventually(lambda: len(proxy.ended) == ended, within=WITHIN_S)
            answer = server.call()
            # The other connections are in the same state, and none is closed yet.
            server.assert_recovers()
            rows = server.recorded()

        assert has_result(answer), answer
        assert rows.count(request_id(answer)) == 1


def test_each_call_is_recorded_once_if_the_network_drops_packets(
    idp: Idp,
    postgres_server: Postgres,
    migrated_postgres: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hanging write is given up; if it arrives later, its records count once."""
    for module in (database, postgresql_audit_writer):
        monkeypatch.setattr(module, "ANSWER_S", 0.5)
    with tcp_proxy(postgres_server.port) as proxy:
        url = migrated_postgres.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        with serving(idp, url, tmp_path, read_from=migrated_postgres) as server:
            proxy.passing.clear()
            hit = server.call()
            assert server.call().status == 503
            proxy.passing.set()
            server.assert_recovers()
            rows = server.recorded()

        assert b"was carried out" in hit.body
        assert rows.count(request_id(hit)) == 1
        assert len(rows) == len({*rows})


def test_the_server_recovers_from_a_read_only_database(
    idp: Idp, postgres_server: Postgres, migrated_postgres: str, tmp_path: Path
) -> None:
    """After a failover, connections to the former primary are replaced."""
    name = name_of(migrated_postgres)
    with serving(idp, migrated_postgres, tmp_path) as server:
        postgres_server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        end_backends(postgres_server, name)
        server.call()
        eventually(lambda: not server.is_ready(), within=WITHIN_S)
        assert server.call().status == 503
        postgres_server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
        server.assert_recovers()
        rows = server.recorded()

    assert len(rows) == len({*rows}) >= 3


# A session of a database that only reads could not note whom it ends.
END_BACKENDS = """
BEGIN READ WRITE;
CREATE TEMP TABLE ended AS SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
SELECT count(pg_terminate_backend(pid)) FROM ended;
DO $$ BEGIN
    WHILE EXISTS (SELECT FROM pg_stat_activity JOIN ended USING (pid)) LOOP
        PERFORM pg_sleep(0.001), pg_stat_clear_snapshot();
    END LOOP;
END $$;
COMMIT;
"""


def end_backends(server: Postgres, name: str) -> int:
    """End all connections to that database; return how many once they are over."""
    return int(server.sql(END_BACKENDS, name))


@contextlib.contextmanager
def answers_to_callers(
    servers: list[PostgresServer], *, per_second: float = 0
) -> Iterator[list[RawAnswer]]:
    """Yield what callers get, four of each server; *per_second* is the rate of all calls."""
    answers: list[RawAnswer] = []
    over = threading.Event()
    pause = 4 * len(servers) / per_second if per_second else 0

    def calls(server: PostgresServer) -> None:
        while not over.wait(pause):
            answers.append(server.call())

    threads = [threading.Thread(target=calls, args=(server,)) for server in servers for _ in "1234"]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        over.set()
        for thread in threads:
            thread.join(WITHIN_S)


def has_result(answer: RawAnswer) -> bool:
    return answer.status == 200 and b'"result"' in answer.body


def test_each_call_is_recorded_once_if_backends_end_repeatedly(
    idp: Idp, postgres_server: Postgres, migrated_postgres: str, tmp_path: Path
) -> None:
    """The server serves calls again after each time."""
    with serving(idp, migrated_postgres, tmp_path) as server:
        with answers_to_callers([server]) as answers:
            for _ in range(15):
                end_backends(postgres_server, name_of(migrated_postgres))
                eventually(lambda: has_result(server.call()), within=WITHIN_S, every=0.01)
        server.assert_recovers()
        rows = server.recorded()

    assert len(rows) == len({*rows})
    assert {request_id(answer) for answer in answers if answer.status == 200} <= {*rows}
    assert {answer.status for answer in answers} <= {200, 503}


async def database_pages(url: str) -> int:
    """Return how large a new database is, in pages."""
    records = await open_records(url)
    assert isinstance(records, SqlRecords)
    count = await records.database.run_sync(
        lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar()
    )
    await records.aclose()
    return int(count or 0)


def test_each_call_is_recorded_once_after_the_disk_was_full(
    idp: Idp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting records are written when there is space again."""
    url = f"sqlite:///{tmp_path}/gatepost.db"
    most = asyncio.run(database_pages(url)) + 3
    roomy = sqlite.PRAGMAS
    monkeypatch.setattr(sqlite, "PRAGMAS", {**roomy, "max_page_count": most})
    with serving(idp, url, tmp_path) as server:
        answers = [server.call()]
        while has_result(answers[-1]) and len(answers) < 20_000:
            answers.append(server.call())
        assert server.call().status == 503
        assert not server.is_ready()
        monkeypatch.setattr(sqlite, "PRAGMAS", roomy)
        server.assert_recovers()
        rows = server.recorded()

    assert b"was carried out" in answers[-1].body
    assert {request_id(answer) for answer in answers} <= {*rows}
    assert len(rows) == len({*rows}) == len(answers) + 2
