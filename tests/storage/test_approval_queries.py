"""Queries of approval requests read as many rows as they return, however long the history is."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, Engine, event

from gatepost.storage.backends import open_records
from gatepost.storage.sql.records import SqlRecords
from gatepost.storage.sql.tables import APPROVAL_REQUESTS
from tests.storage.test_approvals import approval

Query = Callable[[SqlRecords], Awaitable[object]]

QUERIES: dict[str, Query] = {
    "a request": lambda records: records.for_tenant("acme").approvals.get("a1"),
    "the request of a call": lambda records: records.for_tenant("acme").approvals.find(b"b1"),
    "the first waiting requests": lambda records: records.for_tenant("acme").approvals.waiting(9),
    "the next waiting requests": lambda records: records.for_tenant("acme").approvals.waiting(
        9, (1.0, "a1")
    ),
    "the last decided requests": lambda records: records.for_tenant("acme").approvals.ended(
        None, 9
    ),
    "the decided requests before": lambda records: records.for_tenant("acme").approvals.ended(
        (1.0, "a1"), 9
    ),
    "the number of waiting requests": lambda records: records.for_tenant("acme").approvals.count(
        "https://id.example.com", "alice", "user"
    ),
    "the open requests": lambda records: records.for_tenant("acme").approvals.undecided(),
    "which requests still wait": lambda records: records.waiting_approvals(
        {("acme", "a0"), ("acme", "a1"), ("t1", "a0"), ("t2", "a1")}
    ),
    "the overdue requests": lambda records: records.overdue_approvals(1.0, 9),
}
STATES = ("waiting", "approved", *("rejected", "used", "expired", "withdrawn") * 2)
REQUESTS, TENANTS = 40, 250
STEPS_OF_MORE = re.compile(r"SCAN (?!pair )|TEMP B-TREE|Seq Scan|Sort|Filter:|Bitmap")
"""Steps of a plan that read more rows than the query returns, in SQLite or PostgreSQL."""


@pytest.fixture
async def sql_records(sql_url: str) -> AsyncIterator[SqlRecords]:
    """Yield records with many requests of several tenants, most of which are decided."""
    records = await open_records(sql_url)
    assert isinstance(records, SqlRecords)
    requests = [
        approval(id=f"a{number}", binding=b"b%d" % number, state=STATES[number % len(STATES)])
        for number in range(REQUESTS)
    ]
    rows = [
        {"tenant": tenant, **msgspec.structs.asdict(request)}
        for tenant in ("acme", *(f"t{number}" for number in range(TENANTS)))
        for request in requests
    ]

    def store(connection: Connection) -> None:
        connection.execute(APPROVAL_REQUESTS.insert(), rows)
        connection.exec_driver_sql("ANALYZE approval_requests")

    await records.database.transaction(store)
    yield records
    await records.aclose()


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
async def test_a_query_of_approvals_finds_its_rows_by_one_index(
    sql_records: SqlRecords, query: Query
) -> None:
    """The index has the whole condition and the order, so a million other rows do not matter."""
    statements: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *more: Any) -> None:
        statements.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await query(sql_records)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    [(statement, parameters)] = statements

    def explain(connection: Connection) -> str:
        if connection.dialect.name == "sqlite":
            command = "EXPLAIN QUERY PLAN "
        else:
            # PostgreSQL reads a table of a few rows as a whole unless it must not.
            command = "EXPLAIN (COSTS OFF) "
            connection.exec_driver_sql("SET enable_seqscan = off")
            connection.exec_driver_sql("SET enable_bitmapscan = off")
        rows = connection.exec_driver_sql(command + statement, parameters).all()
        return "\n".join(str(row[-1]) for row in rows)

    plan = await sql_records.database.run_sync(explain)

    assert re.search(r"USING (COVERING )?INDEX|Index (Only )?Scan", plan), plan
    assert not STEPS_OF_MORE.search(plan), plan
