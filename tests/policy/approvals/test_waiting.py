"""Waiting requests are listed in pages, and read together for the calls that wait for them."""

import asyncio
from collections.abc import Set
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from gatepost.policy.approvals.request_lists import cursor_of, place_at, place_of
from gatepost.policy.script_reviews.script import Script
from gatepost.policy.script_reviews.store import SUBJECT, ScriptApprovals
from gatepost.storage.backends import open_records
from gatepost.storage.memory.records import MemoryRecords
from tests.support.endpoint import a_caller
from tests.support.runners import (
    ACME,
    BOB,
    ApprovalDeployment,
    WaitingClient,
    failure_kind,
    run_until,
)


async def test_waiting_requests_are_listed_by_pages() -> None:
    """Calls and scripts are in one order, also if they came at one moment."""
    deployment = ApprovalDeployment(require=["act"])
    service = deployment.replica().service
    for number in range(7):
        await deployment.replica().asked(what=f"{number}")
        if number == 3:
            scripts = ScriptApprovals(deployment.records.for_tenant(ACME).entries(SUBJECT))
            await scripts.request(
                [Script("s.sh", b"1", "workspace")], caller=a_caller(subject="erin"), max_waiting=9
            )
    every = await service.waiting(ACME)
    ids, position = [], None
    while page := await service.waiting(ACME, after=position, max_requests=2):
        ids.append(len(page))
        position = place_at(cursor_of(place_of(page[-1])))
        assert page == every[sum(ids) - len(page) : sum(ids)]

    assert (ids, len(every)) == ([2, 2, 2, 2], 8)
    assert [place_at(text) for text in ("", "x~a", "inf~a", "nan~a", "1.5", "1.5~")] == [None] * 6


WAITING_CALLS, POLLS = 20, 3
POLL = "json_each("
"""What only the statement that reads the states of several requests contains."""


async def test_waiting_calls_share_one_statement_for_each_poll(tmp_path: Path) -> None:
    """None of them reads its own request again before it is decided."""
    records = await open_records(f"sqlite:///{tmp_path}/records.db")
    replica, client = (
        ApprovalDeployment(records=records, require=["act"]).replica(),
        WaitingClient(),
    )
    statements: list[str] = []

    def note(_: object, __: object, statement: str, *more: Any) -> None:
        statements.append(statement)

    def are_polls() -> bool:
        return all(POLL in statement for statement in statements[-POLLS:])

    async def only_poll() -> bool:
        return len(client.waits) == WAITING_CALLS and are_polls()

    async def have_polled() -> bool:
        return len(statements) >= POLLS

    event.listen(Engine, "before_cursor_execute", note)
    try:
        async with asyncio.TaskGroup() as calls:
            for number in range(WAITING_CALLS):
                calls.create_task(replica.call(client=client, what=f"{number}"))
            await run_until(only_poll)
            statements.clear()
            await run_until(have_polled)
            polls = [*statements]
            for request in await replica.service.waiting(ACME):
                await replica.service.reject(ACME, request.id, BOB, "")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        await records.aclose()

    assert [statement for statement in polls if POLL not in statement] == []


class HangingRecords(MemoryRecords):
    """Records that never say which requests still wait."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def waiting_approvals(self, keys: Set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Wait without end."""
        self.asked.set()
        await asyncio.Event().wait()
        return set()


async def test_a_call_of_a_revoked_caller_ends_while_the_database_hangs() -> None:
    """Whether a call may still wait is asked every second, whatever the database does."""
    records = HangingRecords()
    deployment = ApprovalDeployment(records=records, require=["act"])
    call = asyncio.create_task(deployment.replica().call(client=WaitingClient()))
    await records.asked.wait()

    deployment.revokes = lambda _: True

    assert failure_kind(await call) == "denied"
