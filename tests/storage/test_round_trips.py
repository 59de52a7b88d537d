"""How often a call waits for the database and for Valkey, counted by a proxy before each."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from gatepost.audit.batches import RingLinker, WriteAttempt
from gatepost.audit.record import RecordBody
from gatepost.audit.record_builder import new_record
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.rate_limits import ConcurrencyLimit, Spending
from gatepost.storage.sql.postgresql import PostgresDatabase
from gatepost.storage.sql.records import SqlRecords
from tests.storage.test_approvals import approval
from tests.support.client import ResourceClient
from tests.support.issuers import Idp
from tests.support.measuring import eventually
from tests.support.proxies import TcpProxy, tcp_proxy
from tests.support.server import Server, issuer_settings, running_server
from tests.support.stores import Postgres, Valkey

TENANTS = [f"t{number:02}" for number in range(50)]
BUCKETS = [Spending(name, 100.0, 100.0) for name in ("caller", "tenant", "tool")]
LIMITS = [ConcurrencyLimit("tenant", 200), ConcurrencyLimit("tool", 100)]
CALL_COUNT, POLL_COUNT = 20, 10
SentStatement = tuple[str, tuple[object, ...]]
"""A statement and its parameters."""


@pytest.fixture
def to_postgres(postgres_server: Postgres) -> Iterator[TcpProxy]:
    with tcp_proxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def to_valkey(valkey_server: Valkey) -> Iterator[TcpProxy]:
    with tcp_proxy(valkey_server.port) as proxy:
        yield proxy


def url_through(url: str, proxy: TcpProxy) -> str:
    """Return the URL of a server, with the proxy's port."""
    return url.replace(f":{proxy.target}/", f":{proxy.port}/")


async def test_a_batch_of_fifty_tenants_is_one_round_trip(
    emptied_postgres: str, to_postgres: TcpProxy
) -> None:
    """Records and sums are one statement, which succeeds or fails as a whole."""
    records, keyring = (
        await open_records(url_through(emptied_postgres, to_postgres)),
        KeyRing.ephemeral(),
    )
    audit_store = records.open_audit(RingLinker(keyring))
    body = {name: RecordBody(at=1, kind="call", tenant=name, outcome="success") for name in TENANTS}
    batch = {(name, 1): [new_record(body[name], {})] * 2 for name in TENANTS}
    await audit_store.write(batch, WriteAttempt(keyring).link)
    before = len(to_postgres.requests)

    await audit_store.write(batch, WriteAttempt(keyring).link)
    took = len(to_postgres.requests) - before
    heads = await audit_store.heads("", 99)
    await records.aclose()

    assert took == 1
    assert [heads[name][0].number for name in TENANTS] == [4] * 50


async def test_waiting_requests_of_fifty_tenants_are_read_in_one_round_trip(
    emptied_postgres: str, to_postgres: TcpProxy
) -> None:
    """With a trip for each tenant, a distant database would not answer within the deadline."""
    records = await open_records(url_through(emptied_postgres, to_postgres))
    for name in TENANTS:
        await records.for_tenant(name).approvals.open(approval())
    keys = {(name, approval().id) for name in TENANTS}
    await records.waiting_approvals(keys)
    before = len(to_postgres.requests)

    waiting = await records.waiting_approvals(keys)
    took = len(to_postgres.requests) - before
    await records.aclose()

    assert (waiting, took) == (keys, 1)


async def test_calls_that_come_together_share_a_round_trip_for_all_their_limits(
    valkey: str, to_valkey: TcpProxy
) -> None:
    """They belong to several tenants, and earlier calls release their concurrency with it."""
    shared_store = await open_shared_store(url_through(valkey, to_valkey))
    tenants = [shared_store.for_tenant(name) for name in TENANTS[:4]]

    async def take() -> list[object]:
        return await asyncio.gather(
            *(tenants[at % 4].limits(BUCKETS, LIMITS).take() for at in range(32))
        )

    first = await take()
    for at in range(32):
        tenants[at % 4].limits((), LIMITS).leave()
    before = len(to_valkey.requests)
    second = await take()
    took = len(to_valkey.requests) - before
    levels = await tenants[0].levels(BUCKETS, LIMITS)
    await shared_store.aclose()

    assert (first, second) == ([None] * 32, [None] * 32)
    assert took == 1
    assert levels[3:] == [8, 8]
    assert levels[0] == pytest.approx(84, abs=15)


@pytest.fixture
def server(
    idp: Idp, emptied_postgres: str, valkey: str, to_postgres: TcpProxy, to_valkey: TcpProxy
) -> Iterator[Server]:
    storage = {
        "database": url_through(emptied_postgres, to_postgres),
        "shared": url_through(valkey, to_valkey),
    }
    limits = {"requests_per_second": 1000, "tool": {"requests_per_second": 1000, "concurrency": 50}}
    settings = {
        "storage": storage,
        "limits": limits,
        "tenancy": {"create_on_first_use": True},
        "scopes": {"admin": "upstreams"},  # tenants can have upstreams
    }
    with running_server(idp, [issuer_settings(idp)], **settings) as running:
        yield running


@contextmanager
def counted_statements(server: Server) -> Iterator[list[SentStatement]]:
    """Yield the statements of a server during a block, except for the batches of records."""
    assert isinstance(server.services.records, SqlRecords)
    database = server.services.records.database
    assert isinstance(database, PostgresDatabase)
    statements: list[SentStatement] = []
    engine = database.engine.sync_engine

    def note(_: object, __: object, statement: str, parameters: Any, *more: Any) -> None:
        statements.append((statement, tuple(parameters)))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_a_call_is_one_round_trip_to_each_store(
    server: Server, to_postgres: TcpProxy, to_valkey: TcpProxy
) -> None:
    """Concurrent calls share it."""
    token = server.token()
    clients = [ResourceClient(server.config.resource) for _ in range(CALL_COUNT)]
    assert [client.call(token).status for client in clients[:3]] == [200] * 3

    def counted() -> tuple[int, int]:
        """Return the numbers of record batches and of requests about limits."""
        batches = sum(b"gatepost_audit" in request for request in tuple(to_postgres.requests))
        return batches, sum(b"EVALSHA" in request for request in tuple(to_valkey.requests))

    start = counted()
    with counted_statements(server) as statements:
        assert [clients[0].call(token).status for _ in range(CALL_COUNT)] == [200] * CALL_COUNT
        alone = counted()
        with ThreadPoolExecutor(CALL_COUNT) as threads:
            answers = [*threads.map(lambda client: client.call(token).status, clients)]
        together = counted()

    assert answers == [200] * CALL_COUNT
    assert alone[0] - start[0] == CALL_COUNT
    # A call that no other call follows releases its places with a request that it does not wait
    # for.
    assert CALL_COUNT <= alone[1] - start[1] <= 2 * CALL_COUNT
    assert together[0] - alone[0] < CALL_COUNT
    assert together[1] - alone[1] < CALL_COUNT
    # What else is asked meanwhile is asked by the clock: the recent callers are stored, too.
    assert not [statement for statement, _ in statements if "audit" in statement]
    changed = [
        arguments
        for statement, arguments in statements
        if not statement.startswith(("SELECT", "BEGIN", "COMMIT"))
    ]
    assert all("callers" in statement for statement in changed)


def test_an_idle_server_polls_with_one_statement(server: Server, to_valkey: TcpProxy) -> None:
    """It reads the counters of revocations, secrets and upstreams of recent tenants."""
    assert ResourceClient(server.config.resource).call(server.token()).status == 200
    with counted_statements(server) as statements:
        # The call itself is written among the recent callers, seconds later.
        eventually(lambda: any("lately" in arguments for _, arguments in statements), within=30)
        statements.clear()
        count_before, start = len(to_valkey.requests), time.monotonic()
        eventually(lambda: len(poll_parameters(statements)) >= POLL_COUNT, within=30)
        took_s = time.monotonic() - start

    subjects = {"mcp_changes", "revocations", "secrets"}
    assert [subjects & {*poll} for poll in poll_parameters(statements)] == [subjects] * POLL_COUNT
    assert took_s > POLL_COUNT * 0.25  # each 0.3 to 0.5 s
    # Leases, readiness, and what expires.
    assert len(statements) - POLL_COUNT <= 3 + 2 * took_s
    assert len(to_valkey.requests) - count_before <= 1 + took_s


def poll_parameters(statements: Sequence[SentStatement]) -> list[tuple[object, ...]]:
    """Return the parameters of the statements that read change counters."""
    return [parameters for _, parameters in statements if "changes" in parameters]
