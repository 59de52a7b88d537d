"""Stores that fail and come back: the errors meanwhile, and what works afterwards."""

import asyncio
import re
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import asyncpg
import pytest
from redis.asyncio.connection import BlockingConnectionPool

from gatepost.storage import shared_store as shared_stores
from gatepost.storage.backends import open_records, open_shared_store
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore, WakeUps
from gatepost.storage.sql import database
from gatepost.storage.sql.postgresql import PostgresDatabase
from gatepost.storage.sql.records import SqlRecords, migrate
from gatepost.storage.valkey import channels
from gatepost.storage.valkey.shared_store import ValkeySharedStore
from tests.conftest import idempotency_record
from tests.storage.test_shared_store import Follower
from tests.support.measuring import capture_logs
from tests.support.stores import POSTGRES_PASSWORD as POSTGRES_PASSWORD
from tests.support.stores import VALKEY_PASSWORD as VALKEY_PASSWORD
from tests.support.stores import Postgres, Valkey

NEVER_S = 3_600.0


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """Yield a Valkey server that this test may stop."""
    with Valkey.running() as server:
        yield server


async def unavailable(records: Records) -> str:
    """Return the error about a database that does not answer."""
    with pytest.raises(StoreUnavailable) as outage:
        await records.for_tenant("acme").idempotency.begin(idempotency_record(), now=0.0)
    with pytest.raises(StoreUnavailable):
        await records.ping()
    return str(outage.value)


async def test_a_database_that_restarts_is_used_again(own_postgres: Postgres) -> None:
    """Connections that lay in the pool are noticed before a statement is lost on them."""
    with own_postgres.database() as url:
        await migrate(url)
        records = await open_records(url)
        idempotency = records.for_tenant("acme").idempotency
        await asyncio.gather(
            *(idempotency.begin(idempotency_record(key=b"%d" % n), now=0.0) for n in range(5))
        )
        own_postgres.stop()
        outage = await unavailable(records)
        own_postgres.start()

        assert await idempotency.begin(idempotency_record(), now=0.0) is None
        assert await idempotency.get(b"3") == idempotency_record(key=b"3")
        await records.aclose()

    assert POSTGRES_PASSWORD not in outage


async def test_a_hanging_statement_times_out(
    migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gatepost sets the deadline; no task is left waiting, and later statements work."""
    records = await open_records(migrated_postgres)
    monkeypatch.setattr(database, "ANSWER_S", 0.3)
    idempotency = records.for_tenant("acme").idempotency
    other = await asyncpg.connect(migrated_postgres)
    await other.execute("BEGIN; LOCK TABLE idempotency_records")

    with pytest.raises(StoreUnavailable, match="does not answer in time"):
        await idempotency.begin(idempotency_record(), now=0.0)

    await other.close()
    monkeypatch.setattr(database, "ANSWER_S", 20.0)
    assert await idempotency.begin(idempotency_record(), now=0.0) is None
    await records.aclose()


async def test_a_silent_database_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server accepts connections and never answers."""
    monkeypatch.setattr(database, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(StoreUnavailable, match="does not answer in time"):
            await open_records(f"postgresql://a:b@127.0.0.1:{port}/c")


@pytest.mark.parametrize(
    "change",
    [
        ("gatepost:", "stranger:"),
        (POSTGRES_PASSWORD, f"{POSTGRES_PASSWORD}x"),
        (r":\d+/", ":1/"),
        ("/test", "/unknown"),
    ],
    ids=["user", "password", "port", "database"],
)
async def test_no_error_shows_the_database_password(postgres: str, change: tuple[str, str]) -> None:
    """No reason for a failed connection shows the password."""
    wrong = re.sub(*change, postgres, count=1)
    assert wrong != postgres

    with pytest.raises(StoreUnavailable) as outage:
        await open_records(wrong)

    assert POSTGRES_PASSWORD not in "".join(map(str, _chain(outage.value)))
    assert outage.value.__cause__ is None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = None if error.__suppress_context__ else error.__context__


async def test_an_error_of_a_statement_shows_no_value(
    migrated_postgres: str, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that fails names no value of it: arguments may be secrets."""
    records = await open_records(migrated_postgres)
    name = migrated_postgres.rpartition("/")[2]
    postgres_server.sql("ALTER TABLE idempotency_records RENAME TO elsewhere", name)

    with pytest.raises(StoreUnavailable) as outage:
        await records.for_tenant("acme").idempotency.begin(
            idempotency_record(digest=b"secret"), now=0.0
        )
    await records.aclose()

    assert str(outage.value) == "the database does not serve: UndefinedTableError (42P01)"


async def test_an_error_for_a_value_of_another_type_shows_no_value(sql_url: str) -> None:
    """The same holds for values that the database cannot store, before it gets them."""
    records = await open_records(sql_url)
    bad_time: Any = "secret"

    with pytest.raises(StoreUnavailable) as outage:
        await records.for_tenant("acme").idempotency.renew(b"k", "holder", bad_time)
    await records.aclose()

    assert str(outage.value).startswith("the database does not serve: ")
    assert "secret" not in "".join(map(str, _chain(outage.value)))


async def test_a_cancelled_caller_leaves_the_connection_pool_intact(sql_url: str) -> None:
    """Clients go away at any moment; the pool is whole again afterwards."""
    records = await open_records(sql_url)
    idempotency = records.for_tenant("acme").idempotency
    for number in range(30):
        running = asyncio.create_task(
            idempotency.begin(idempotency_record(key=b"%d" % number), now=0.0)
        )
        for _ in range(number % 6):
            await asyncio.to_thread(int)
        running.cancel()
        await asyncio.wait([running])

    answers = await asyncio.gather(
        *(
            idempotency.begin(idempotency_record(key=b"after %d" % number), now=0.0)
            for number in range(30)
        )
    )
    assert answers == [None] * 30
    await records.aclose()


async def received_again(shared_store: SharedStore, follower: Follower) -> None:
    """Publish until the follower hears: no event tells when its connection is back."""
    async with asyncio.timeout(20):
        while not follower.heard:
            try:
                await shared_store.for_tenant("acme").publish("t", b"back")
            except StoreUnavailable:
                await asyncio.to_thread(int)


async def test_subscribers_are_notified_again_after_an_outage(own_valkey: Valkey) -> None:
    """They need not subscribe again; messages published during the outage are lost."""
    shared_store = await open_shared_store(own_valkey.url())
    acme, follower = shared_store.for_tenant("acme"), Follower()
    await acme.follow("t", follower)
    own_valkey.stop()

    with pytest.raises(StoreUnavailable) as outage:
        await acme.publish("t", b"lost")
    with pytest.raises(StoreUnavailable):
        await shared_store.ping()
    own_valkey.start()
    await received_again(shared_store, follower)
    await shared_store.aclose()

    assert VALKEY_PASSWORD not in str(outage.value)
    assert b"lost" not in follower.heard


async def test_a_polling_task_is_woken_again_after_an_outage(
    own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its subscription is renewed, whether it began before the outage or during it."""
    monkeypatch.setattr(channels, "ANSWER_S", 0.2)
    monkeypatch.setattr(shared_stores, "SUBSCRIBE_AGAIN_S", 0.05)
    shared_store = await open_shared_store(own_valkey.url())
    acme = shared_store.for_tenant("acme")
    async with WakeUps(partial(acme.follow, "t")) as before:
        own_valkey.stop()
        with pytest.raises(StoreUnavailable):
            await acme.publish("t", b"lost")
        async with WakeUps(partial(acme.follow, "t")) as during, asyncio.timeout(30):
            states = [during.is_following]
            own_valkey.start()
            await during.wait(NEVER_S)
            states.append(during.is_following)
            await acme.publish("t", b"back")
            await during.wait(NEVER_S)
            await before.wait(NEVER_S)
    await shared_store.aclose()

    assert states == [False, True]


async def test_connections_to_a_demoted_server_are_closed(own_valkey: Valkey) -> None:
    """It refuses writes, while another server at its address accepts them."""
    shared_store = await open_shared_store(own_valkey.url())
    assert isinstance(shared_store, ValkeySharedStore)
    acme, server = shared_store.for_tenant("acme"), shared_store.client

    async def connections() -> set[str]:
        return {
            connection["id"]
            for connection in await server.client_list()
            if connection["cmd"].startswith("eval")
        }

    await acme.spend("bucket", rate=1, burst=9)
    before = await connections()
    await server.replicaof("127.0.0.1", 9)
    with pytest.raises(StoreUnavailable, match="ReadOnlyError"):
        await acme.spend("bucket", rate=1, burst=9)
    await server.replicaof("NO", "ONE")
    await acme.spend("bucket", rate=1, burst=9)
    after = await connections()
    await shared_store.aclose()

    assert len(before) == 1
    assert after - before


async def test_no_stream_subscribes_during_an_outage(
    own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription fails, because it could not deliver every later message."""
    monkeypatch.setattr(channels, "ANSWER_S", 0.2)
    shared_store = await open_shared_store(own_valkey.url())
    acme, follower = shared_store.for_tenant("acme"), Follower()
    await acme.follow("t", follower)
    own_valkey.stop()
    with pytest.raises(StoreUnavailable):
        await acme.publish("t", b"x")

    for topic in ("t", "new"):
        with pytest.raises(StoreUnavailable):
            await acme.follow(topic, follower)

    own_valkey.start()
    await received_again(shared_store, follower)
    assert set(follower.heard) == {b"back"}
    await shared_store.aclose()


async def test_a_silent_connection_is_replaced(
    own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network may swallow a connection without a word; a ping without an answer tells."""
    monkeypatch.setattr(channels, "PING_S", 0.1)
    monkeypatch.setattr(channels, "SILENCE_S", 0.5)
    with capture_logs() as logs:
        shared_store = await open_shared_store(own_valkey.url())
        follower = Follower()
        await shared_store.for_tenant("acme").follow("t", follower)
        own_valkey.signal(signal.SIGSTOP)
        async with asyncio.timeout(20):
            while not logs:
                await asyncio.to_thread(int)
        own_valkey.signal(signal.SIGCONT)
        await received_again(shared_store, follower)
        await shared_store.aclose()

    assert logs[0]["event"] == "pubsub_lost"
    assert logs[0]["error"] == "TimeoutError"


async def test_a_database_that_hung_is_used_again(
    own_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every caller gets an error in time, and the pool keeps all its connections."""
    with own_postgres.database() as url:
        await migrate(url)
        records = await open_records(url)
        assert isinstance(records, SqlRecords)
        idempotency = records.for_tenant("acme").idempotency
        await asyncio.gather(
            *(idempotency.begin(idempotency_record(key=b"%d" % n), now=0.0) for n in range(30))
        )
        monkeypatch.setattr(database, "ANSWER_S", 0.2)
        own_postgres.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(20):
                answers = await asyncio.gather(
                    *(idempotency.get(b"%d" % n) for n in range(200)), return_exceptions=True
                )
        finally:
            own_postgres.signal(signal.SIGCONT)
        monkeypatch.setattr(database, "ANSWER_S", 20.0)
        again = await asyncio.gather(*(idempotency.get(b"%d" % n) for n in range(30)))
        assert isinstance(records.database, PostgresDatabase)
        pool = records.database.engine.pool
        await records.aclose()

    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert None not in again
    assert pool.checkedout() == 0  # type: ignore[attr-defined]


def answers_within(shared_store: SharedStore, timeout_s: float) -> None:
    """Bound the time that open and new connections wait for their server."""
    assert isinstance(shared_store, ValkeySharedStore)
    pool = shared_store.client.connection_pool
    assert isinstance(pool, BlockingConnectionPool)
    pool.timeout = timeout_s
    pool.connection_kwargs |= {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    for connection in pool._available_connections:  # type: ignore[attr-defined]
        connection.socket_timeout = connection.socket_connect_timeout = timeout_s


async def test_a_shared_store_that_hung_is_used_again(own_valkey: Valkey) -> None:
    """Its connections are closed one by one and replaced."""
    shared_store = await open_shared_store(own_valkey.url())
    answers_within(shared_store, 20.0)
    acme = shared_store.for_tenant("acme")
    await asyncio.gather(*(acme.put(f"k{n}", b"%d" % n, ttl_s=60) for n in range(100)))
    # A short patience is for a server that hangs: one that a busy machine keeps waiting answers.
    answers_within(shared_store, 0.2)
    own_valkey.signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(20):
            lost = await asyncio.gather(
                *(acme.take("nothing") for _ in range(200)), return_exceptions=True
            )
    finally:
        own_valkey.signal(signal.SIGCONT)
    answers_within(shared_store, 20.0)
    async with asyncio.timeout(20):
        while await asyncio.gather(shared_store.ping(), return_exceptions=True) != [None]:
            await asyncio.to_thread(int)
    taken = await asyncio.gather(*(acme.take(f"k{n}") for n in range(100)))
    await shared_store.aclose()

    assert {type(error) for error in lost} == {StoreUnavailable}
    assert taken == [b"%d" % n for n in range(100)]


async def test_many_requests_at_once_are_served(
    sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand requests wait for a handful of connections, and none is refused."""
    # The promise is that they queue, not how fast a busy machine works the queue off.
    monkeypatch.setattr(database, "ANSWER_S", 60.0)
    records = await open_records(sql_url)
    sessions = records.for_tenant("acme").sessions
    async with asyncio.timeout(90):
        results = await asyncio.gather(*(sessions.get(b"%d" % n) for n in range(1000)))
    await records.aclose()

    assert [result.ended for result in results] == [False] * 1000
