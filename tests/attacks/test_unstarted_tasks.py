"""Calls that were to become tasks and could not: what they cost, and whom."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.http import body
from gatepost.mcp.tasks.store import TaskLimits
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords, MemoryTasks
from gatepost.storage.tasks import TaskRecord
from tests.support.endpoint import (
    DECLARED_META,
    JSON,
    META,
    VERSION,
    EndpointTaskClient,
    Response,
    message,
)
from tests.support.runners import run_ready, run_until

WITHIN_S = 10
MAX_TASKS = 2


class SlowTasks(MemoryTasks):
    """Tasks that take a turn to be counted, and wait to be kept or cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.is_out = False

    async def count(self, owner: bytes) -> int:
        counted = await super().count(owner)
        await asyncio.sleep(0)
        return counted

    async def create(self, task: TaskRecord) -> None:
        self.entered.set()
        await self.go_on.wait()
        if self.is_out:
            raise StoreUnavailable("away")
        await super().create(task)


class ServerWithTasks:
    """A server whose tool `work`, a task where the client takes one, waits for ``gate``."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[int] = []
        self.gate = asyncio.Event()
        pack = Pack("lengthy")

        @pack.tool(task_support="optional", **options)
        async def work(ctx: CallContext, number: int) -> str:
            """Have an effect."""
            await ctx.detach()
            self.ran.append(number)
            await self.gate.wait()
            return "done"

        records = MemoryRecords()
        self.tasks = records.for_tenant("acme").tasks = SlowTasks()
        self.client = EndpointTaskClient(
            pack.tools.values(), task_limits=TaskLimits(max_per_caller=MAX_TASKS), records=records
        )
        self.hang_up = asyncio.Event()

    async def call(self, number: int, key: str = "") -> Response:
        """Make a call that may become a task, with an idempotency key; ``hang_up`` ends it."""
        meta = {META + "protocolVersion": VERSION, **DECLARED_META}
        params = {"name": "work", "arguments": {"number": number}, "_meta": meta}
        headers = [JSON, ("mcp-protocol-version", VERSION)]
        headers += [("mcp-method", "tools/call"), ("mcp-name", "work")]
        headers += [("idempotency-key", key)] if key else []
        sent = self.client.send(message("tools/call", params), headers, hang_up=self.hang_up)
        return await asyncio.wait_for(sent, WITHIN_S)

    async def ended(self, response: Response) -> Any:
        """Return the task that a call has become, at its end."""
        self.gate.set()
        return await self.client.until(response.json["result"]["taskId"])


@pytest.fixture
async def server() -> AsyncIterator[ServerWithTasks]:
    server = ServerWithTasks()
    yield server
    server.gate.set()
    await server.client.task_runner.aclose()


async def too_many_tasks(server: ServerWithTasks) -> None:
    """Call while the largest number of tasks runs."""
    others = [await server.call(-n) for n in range(MAX_TASKS)]
    assert (await server.call(1, "k")).error == (200, -32000)
    for other in others:
        await server.ended(other)


async def store_is_out(server: ServerWithTasks) -> None:
    """Call while the task cannot be stored."""
    server.tasks.is_out = True
    assert (await server.call(1, "k")).error == (503, -32603)
    server.tasks.is_out = False


async def client_is_gone(server: ServerWithTasks) -> None:
    """Break the client's connection while the task is being stored."""
    server.tasks.go_on.clear()
    first = asyncio.create_task(server.call(1, "k"))
    await asyncio.wait_for(server.tasks.entered.wait(), WITHIN_S)
    server.hang_up.set()
    assert (await first).status == 0
    server.hang_up.clear()
    server.tasks.go_on.set()


@pytest.mark.parametrize("happens", [too_many_tasks, store_is_out, client_is_gone])
async def test_an_idempotency_key_can_be_reused_if_its_call_did_not_begin(
    server: ServerWithTasks, happens: Any
) -> None:
    """Its retries were told for a day that the tool may have done a part of its work."""
    await happens(server)
    assert 1 not in server.ran

    again = await server.call(1, "k")
    assert (await server.ended(again))["result"]["content"][0]["text"] == "done"
    assert server.ran.count(1) == 1


async def test_the_task_limit_holds_for_tasks_that_begin_at_the_same_time(
    server: ServerWithTasks,
) -> None:
    """Counting before the first task was stored let one caller start any number."""
    answers = await asyncio.gather(*(server.call(number) for number in range(10)))

    assert sum("result" in answer.json for answer in answers) == MAX_TASKS
    assert len(server.ran) == len(server.tasks.records) == MAX_TASKS


async def test_a_task_is_cancelled_if_its_client_disconnects_before_the_answer(
    server: ServerWithTasks,
) -> None:
    """No client knows the id of such a task, so it neither runs nor counts."""
    await client_is_gone(server)

    async def has_ended() -> bool:
        return [task.status for task in server.tasks.records.values()] == ["cancelled"]

    await run_until(has_ended)
    assert server.ran == []


async def test_an_ended_task_keeps_its_result_but_not_its_arguments(
    server: ServerWithTasks,
) -> None:
    """Arguments and answers of people could take megabytes for another hour."""
    task = await server.ended(await server.call(4711))
    (record,) = server.tasks.records.values()

    assert task["result"]["content"][0]["text"] == "done"
    assert (record.answers, record.requests) == (None, None)
    assert b"4711" not in record.call
    assert (await server.client.get(record.id)) == task


STEPS = range(12)


@pytest.mark.parametrize("options", [{}, {"detaches": True}])
@pytest.mark.parametrize("steps", STEPS)
async def test_a_disconnect_before_a_task_begins_releases_its_idempotency_key(
    monkeypatch: pytest.MonkeyPatch, steps: int, options: dict[str, Any]
) -> None:
    """The call waited to become a task without an owner, and then kept its key."""
    monkeypatch.setattr(body, "WATCH_AFTER_S", 0)
    server = ServerWithTasks(**options)
    first = asyncio.create_task(server.call(1, "k"))
    await run_ready(steps)
    server.hang_up.set()
    await first
    server.hang_up.clear()
    server.gate.set()
    again = (await server.call(1, "k")).json["result"]
    if again["resultType"] == "task":
        again = (await server.client.until(again["taskId"]))["result"]

    assert again["content"][0]["text"] == "done"
    assert server.ran == [1]
    await server.client.task_runner.aclose()
