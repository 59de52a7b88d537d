"""Whose a task is (K-14, K-17), what may be heard of it (K-18), and that its end stays (K-16)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost import CallContext, Pack
from gatepost.mcp.task_methods import may_follow, notification
from gatepost.mcp.tasks.store import TaskStore
from gatepost.mcp.tasks.task_record import failed
from gatepost.storage.tasks import TERMINAL, TaskRecord
from gatepost_authz.caller import TenantContext
from tests.support import client_requests
from tests.support.endpoint import DECLARED_META, META, EndpointTaskClient, a_caller
from tests.support.endpoint_clients import open_subscription

pack = Pack("owned")


@pack.tool(task_support="optional", scopes={"files:write"})
async def write_slowly(ctx: CallContext) -> str:
    """Write until it is stopped."""
    await asyncio.Event().wait()
    return "written"


TOOLS = [*client_requests.task_pack.tools.values(), *pack.tools.values()]


@pytest.fixture
async def client() -> AsyncIterator[EndpointTaskClient]:
    client = EndpointTaskClient(TOOLS)
    yield client
    await client.task_runner.aclose()


def changed_caller(**changes: Any) -> TenantContext:
    return a_caller(claims={"name": "Alice"}, **changes)


OTHER_CALLERS = [
    changed_caller(tenant_id="globex"),
    changed_caller(issuer="https://other.example.com"),
    changed_caller(subject="bob"),
    changed_caller(subject_kind="client"),
    changed_caller(client_id="another-client"),
    changed_caller(actor="an-agent"),
]


@pytest.mark.requirement("K-17", "K-14", "SEC-03")
@pytest.mark.parametrize("other_caller", OTHER_CALLERS)
@pytest.mark.parametrize("method", ["get", "update", "cancel"])
async def test_k_17_a_task_belongs_to_its_creator(
    client: EndpointTaskClient, other_caller: TenantContext, method: str
) -> None:
    """Knowing the id is not enough: the answer is exactly that for an unknown task."""
    task = await client.start("multi_input")
    client.caller = other_caller
    foreign = await client.about(method, task["taskId"], inputResponses={})
    unknown = await client.about(method, "t_unknown", inputResponses={})
    client.caller = a_caller()

    assert foreign.error == (400, -32602)
    assert (foreign.status, foreign.headers, foreign.body) == (
        unknown.status,
        unknown.headers,
        unknown.body,
    )
    assert (await client.until(task["taskId"], "input_required"))["status"] == "input_required"


@pytest.mark.requirement("K-17")
async def test_k_17_ids_cannot_be_guessed(client: EndpointTaskClient) -> None:
    """Each id consists of 24 random bytes."""
    ids = {(await client.start("slow_compute", {"seconds": 0}))["taskId"] for _ in range(20)}

    assert len(ids) == 20
    assert {len(task_id) for task_id in ids} == {34}


@pytest.mark.requirement("K-17", "SEC-02")
@pytest.mark.parametrize("method", ["get", "update", "cancel"])
async def test_k_17_a_token_without_the_scopes_is_challenged(
    client: EndpointTaskClient, method: str
) -> None:
    """The same user with fewer scopes gets the challenge and not the task."""
    task = await client.start("write_slowly")
    client.caller = changed_caller(scopes=frozenset())
    response = await client.about(method, task["taskId"], inputResponses={})

    assert response.error == (403, -31002)
    assert 'scope="files:write"' in response.headers["www-authenticate"]
    assert await may_follow(client.task_runner.task_store, client.caller, [task["taskId"]]) == []
    assert await notification(client.task_runner.task_store, client.caller, task["taskId"]) is None


@pytest.mark.requirement("K-17")
async def test_k_17_task_requests_of_a_suspended_tenant_are_refused(
    client: EndpointTaskClient,
) -> None:
    """Task requests are refused like every other request of the suspended tenant."""
    task = await client.start("write_slowly")
    suspended = EndpointTaskClient(
        TOOLS,
        records=client.records,
        shared_store=client.shared_store,
        suspended=frozenset({"acme"}),
    )

    assert (await suspended.about("get", task["taskId"])).error == (200, -31001)


@pytest.mark.requirement("K-17")
async def test_k_17_a_fresh_token_of_the_same_principal_reads_the_task(
    client: EndpointTaskClient,
) -> None:
    """Neither the expiry nor the id of the token is part of the principal."""
    task = await client.start("write_slowly")
    client.caller = changed_caller(expires_at=2_000_000_001, token_id="t2")

    assert (await client.get(task["taskId"]))["status"] == "working"


@pytest.mark.requirement("K-14")
@pytest.mark.parametrize(
    "task_id", ["", "t_", "tasks-nonexistent", "x" * 65, "x" * 10_000, "t\u00e9"]
)
@pytest.mark.parametrize("method", ["get", "update", "cancel"])
async def test_k_14_a_malformed_task_id_is_unknown(
    client: EndpointTaskClient, method: str, task_id: str
) -> None:
    """The error is that of an unknown task."""
    header = task_id if task_id.isascii() else "=?base64?dMOp?="
    params = {"taskId": task_id, "inputResponses": {}}
    response = await client.ask(f"tasks/{method}", params, meta=DECLARED_META, mcp_name=header)

    assert response.error == (400, -32602)
    assert response.json["error"]["message"] == "Unknown task"


@pytest.mark.requirement("K-14")
@pytest.mark.parametrize("params", [{}, {"taskId": None}, {"taskId": 7}, {"taskId": ["t"]}])
async def test_k_14_an_id_is_required(client: EndpointTaskClient, params: Any) -> None:
    """A request without an id, or with one that is no string, is an error."""
    assert (await client.ask("tasks/get", params, meta=DECLARED_META)).error == (400, -32602)


async def test_a_task_outlives_its_token(client: EndpointTaskClient) -> None:
    """A valid token started the task, so the task runs on; reading it takes a valid token again."""
    client.caller = changed_caller(expires_at=int(client.clock.now))
    task = await client.start("slow_compute", {"seconds": 0.05})
    client.clock.now += 120
    client.caller = changed_caller()

    assert (await client.until(task["taskId"]))["status"] == "completed"


async def test_a_caller_without_the_permission_loses_its_tasks(client: EndpointTaskClient) -> None:
    """The way to end them, for a tenant that is suspended while they run."""
    mine = await client.start("write_slowly")
    client.caller = changed_caller(tenant_id="globex")
    other = await client.start("write_slowly")
    client.task_runner.end(lambda caller: caller.tenant_id == "acme")

    assert (await client.get(other["taskId"]))["status"] == "working"
    client.caller = changed_caller()
    ended = await client.until(mine["taskId"])
    assert (ended["status"], ended["statusMessage"]) == (
        "failed",
        "The caller's access was revoked.",
    )


@pytest.mark.requirement("K-18", "SU-02", "SU-10")
async def test_k_18_a_listen_stream_sends_the_full_state_of_the_callers_tasks(
    client: EndpointTaskClient,
) -> None:
    """The stream leaves out other callers' tasks and unknown ids."""
    mine = await client.start("confirm_delete", {"filename": "a"})
    await client.until(mine["taskId"], "input_required")
    client.caller = changed_caller(subject="bob")
    foreign = await client.start("write_slowly")
    client.caller = changed_caller()
    filters = {"taskIds": [mine["taskId"], foreign["taskId"], "t_unknown"]}
    async with open_subscription(client, filters, meta=DECLARED_META) as stream:
        assert await stream.acknowledged() == {"taskIds": [mine["taskId"]]}
        await client.about("cancel", mine["taskId"])
        notification = await stream.next()
        while notification["params"]["status"] == "input_required":
            notification = await stream.next()

    ended = await client.get(mine["taskId"])
    assert notification["method"] == "notifications/tasks"
    assert notification["params"].pop("_meta") == {META + "subscriptionId": 7}
    assert notification["params"] == {
        k: v for k, v in ended.items() if k not in {"resultType", "_meta"}
    }


NEXT_STATES = st.sampled_from(["working", "input_required", "completed", "failed", "cancelled"])
EDITS = st.lists(st.tuples(NEXT_STATES, st.integers(0, 2)), min_size=1, max_size=12)


@pytest.mark.requirement("K-16")
@given(edits=EDITS)
def test_k_16_a_terminal_state_never_changes(edits: list[tuple[Any, int]]) -> None:
    """This holds for any writes of several replicas, in any order."""

    async def race() -> list[str]:
        client = EndpointTaskClient(TOOLS)
        task_stores = [
            client.task_runner.task_store,
            TaskStore(client.records, client.pubsub, clock=client.clock),
        ]
        first = a_record(client.clock.now)
        await task_stores[0].create("acme", first)
        seen: list[str] = []

        async def write(status: Any, yields: int, task_store: TaskStore) -> None:
            for _ in range(yields):
                await asyncio.sleep(0)
            end = failed(-32603, "no") if status == "failed" else {"status": status}
            # Each may begin with a record that others have changed since it was read.
            await task_store.change(
                "acme",
                "t",
                lambda r: msgspec.structs.replace(r, **end),
                last_read=first if yields else None,
            )
            record = await task_store.get("acme", "t")
            assert record is not None
            seen.append(record.status)

        await asyncio.gather(
            *(write(*edit, task_stores[n % 2]) for n, edit in enumerate(edits)),
        )
        return seen

    seen = asyncio.run(race())
    ends = [status for status in seen if status in TERMINAL]
    assert len(set(ends)) <= 1
    assert not ends or set(seen[seen.index(ends[0]) :]) == {ends[0]}


def a_record(now: float) -> TaskRecord:
    return TaskRecord(
        id="t",
        owner=b"",
        tool="x",
        status="working",
        created_at=now,
        updated_at=now,
        expires_at=now + 60,
        call=b"{}",
    )
