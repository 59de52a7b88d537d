"""The tasks extension (io.modelcontextprotocol/tasks): what is answered with a task, and how."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gatepost import CallContext, Outcome, Pack, ToolFailure
from gatepost.storage.tasks import TaskRecord
from gatepost.tools.context.client import ProtocolError
from gatepost_authz.errors import InsufficientScope
from tests.support import client_requests
from tests.support.endpoint import DECLARED_META, META, TASKS, EndpointTaskClient, message

pack = Pack("tasks")


@pack.tool(task_support="optional", timeout_s=60)
async def wait_for_word(ctx: CallContext) -> str:
    """Run until it is stopped."""
    await asyncio.Event().wait()
    return "never"


@pack.tool(task_support="optional")
async def end_as_told(ctx: CallContext, how: str) -> Any:
    """End in one of the ways there are."""
    if how == "failure":
        raise ToolFailure("not_found", "There is none.")
    if how == "protocol":
        raise ProtocolError(-32602, "No such thing", {"thing": 1})
    if how == "scope":
        raise InsufficientScope(("files:write",))
    if how == "limit":
        raise ToolFailure("rate_limit", "Too often.", retry_after=3)
    if how == "roots":
        await ctx.roots()
    if how == "exit":
        raise SystemExit(1)
    if how == "no-json":
        return Outcome(({"type": "text", "text": object()},))
    if how == "crash":
        raise RuntimeError("the password is hunter2")
    return "done"


@pack.tool(task_support="optional", scopes={"files:write"})
async def needs_scope(ctx: CallContext) -> str:
    """Need a permission."""
    return "done"


@pack.tool(task_support="optional")
async def report(ctx: CallContext) -> str:
    """Say how far it is, and wait."""
    await ctx.progress(1, 4)
    await ctx.log("error", "nobody hears this")
    await asyncio.Event().wait()
    return "never"


@pack.tool(task_support="optional")
async def finish_anyway(ctx: CallContext) -> str:
    """Be done when it is told to stop."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "done all the same"


@pack.tool(task_support="optional", detaches=True)
async def quick_or_long(ctx: CallContext, long: bool) -> Outcome:
    """Become a task only where that is worth it."""
    if long:
        await ctx.detach()
        await ctx.detach()
    return Outcome(({"type": "text", "text": "done"},))


TOOLS = [*client_requests.task_pack.tools.values(), *pack.tools.values()]


@pytest.fixture
async def client() -> AsyncIterator[EndpointTaskClient]:
    client = EndpointTaskClient(TOOLS)
    yield client
    await client.task_runner.aclose()


@pytest.mark.requirement("K-01", "X-01", "X-05")
async def test_k_01_the_extension_is_advertised_where_a_tool_supports_it(
    client: EndpointTaskClient,
) -> None:
    """Only discovery has it, without settings; other servers and older revisions do not."""
    result = (await client.ask("server/discover")).json["result"]["capabilities"]
    without = EndpointTaskClient([client_requests.task_pack.tools["greet"]])
    initialize = message(
        "initialize",
        {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x"}},
    )

    assert result["extensions"][TASKS] == {}
    assert "tasks" not in result
    older = (await client.send(initialize)).json["result"]["capabilities"]
    assert not {"extensions", "tasks"} & older.keys()
    other = (await without.ask("server/discover")).json["result"]["capabilities"]
    assert TASKS not in other["extensions"]
    for method in ("get", "update", "cancel"):
        assert (await without.about(method, "t_1", inputResponses={})).error == (404, -32601)


INSUFFICIENT_CAPABILITIES: list[Any] = [
    {},
    {"extensions": {}},
    {"extensions": {"io.modelcontextprotocol/ui": {}}},
    {"extensions": {TASKS: True}},
    {"extensions": {TASKS: None}},
    {"extensions": [TASKS]},
    {"extensions": None},
    {"tasks": {"requests": {"tools": {"call": {}}}}},
]
"""Capabilities without the extension; the last are those of the experiment of 2025-11-25."""


@pytest.mark.requirement("K-02", "K-20", "X-02", "X-03", "X-04", "J-07")
@pytest.mark.parametrize("capabilities", INSUFFICIENT_CAPABILITIES)
async def test_k_02_only_a_request_that_declares_tasks_becomes_one(
    client: EndpointTaskClient, capabilities: Any
) -> None:
    """Earlier declarations do not count; any other client waits for the result."""
    await client.start("slow_compute", {"seconds": 0})
    client.meta = {META + "clientCapabilities": capabilities}
    result = (await client.call_with("slow_compute", {"seconds": 0})).json["result"]

    assert result["resultType"] == "complete"
    assert "taskId" not in result


@pytest.mark.requirement("K-20", "K-04")
async def test_k_20_the_experimental_capability_does_not_declare_the_extension(
    client: EndpointTaskClient,
) -> None:
    """A client that declares only the experimental capability gets no tasks and reads none."""
    task = await client.start("wait_for_word")
    client.meta = {META + "clientCapabilities": INSUFFICIENT_CAPABILITIES[-1]}

    assert (await client.about("get", task["taskId"])).error == (400, -32021)
    assert (await client.call_with("failing_job")).error == (400, -32021)


@pytest.mark.requirement("K-02")
async def test_k_02_the_server_decides_which_calls_become_tasks(client: EndpointTaskClient) -> None:
    """A tool that takes no time is no task; one that detaches sometimes is a task only then."""
    greeting = (await client.call_with("greet", {"name": "Bo"})).json["result"]
    quick = (await client.call_with("quick_or_long", {"long": False})).json["result"]
    long = (await client.call_with("quick_or_long", {"long": True})).json["result"]

    assert [result["resultType"] for result in (greeting, quick, long)] == [
        "complete",
        "complete",
        "task",
    ]


@pytest.mark.requirement("K-03", "X-02")
async def test_k_03_a_task_tool_names_the_missing_extension(client: EndpointTaskClient) -> None:
    """The error comes before the tool runs."""
    client.meta = {}
    response = await client.call_with("failing_job")

    assert response.error == (400, -32021)
    required = response.json["error"]["data"]["requiredCapabilities"]
    assert required == {"extensions": {TASKS: {}}}


@pytest.mark.requirement("K-03", "X-02")
async def test_k_03_a_session_gets_an_error_for_a_task_only_tool(
    client: EndpointTaskClient,
) -> None:
    """The older revisions have no such tasks and no error code for them."""
    session = await client.open(capabilities={"extensions": {TASKS: {}}})
    call = {"name": "failing_job", "arguments": {}}
    result = (await client.within(session, message("tools/call", call))).json["result"]

    assert result["isError"] is True
    assert "only clients that support tasks" in result["content"][0]["text"]


@pytest.mark.requirement("K-02", "K-03")
async def test_k_03_a_hidden_tool_is_unknown_before_any_other_error(
    client: EndpointTaskClient,
) -> None:
    """Neither the error for a missing capability nor a task shows that the tool exists."""
    outsider = EndpointTaskClient(TOOLS, obtainable=frozenset())
    outsider.caller = client.caller.__class__(**{**_fields(client.caller), "scopes": frozenset()})
    hidden = await outsider.call_with("needs_scope")
    unknown = await outsider.call_with("needs_scoop")
    client.caller = outsider.caller

    assert hidden.error == unknown.error == (400, -32602)
    assert (await client.call_with("needs_scope")).error == (403, -31002)


def _fields(caller: Any) -> dict[str, Any]:
    return {name: getattr(caller, name) for name in caller.__struct_fields__}


@pytest.mark.requirement("K-04")
@pytest.mark.parametrize("method", ["get", "update", "cancel"])
async def test_k_04_task_methods_require_the_declared_extension(
    client: EndpointTaskClient, method: str
) -> None:
    """A client without the extension is refused, even for the caller's own task."""
    task = await client.start("slow_compute", {"seconds": 0})
    client.meta = {}
    response = await client.about(method, task["taskId"], inputResponses={})

    assert response.error == (400, -32021)
    assert response.json["error"]["data"]["requiredCapabilities"]["extensions"] == {TASKS: {}}


@pytest.mark.requirement("K-05", "K-06")
async def test_k_05_a_created_task_has_the_documented_members(client: EndpointTaskClient) -> None:
    """It has exactly its fields; durations are whole milliseconds with the unit in the name."""
    task = await client.start("wait_for_word")

    moment = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
    assert task.keys() == {
        *("resultType", "taskId", "status", "createdAt", "lastUpdatedAt"),
        *("ttlMs", "pollIntervalMs", "_meta"),
    }
    assert (task["status"], task["ttlMs"], task["pollIntervalMs"]) == ("working", 3_660_000, 1000)
    assert moment.fullmatch(task["createdAt"])
    assert moment.fullmatch(task["lastUpdatedAt"])


@pytest.mark.requirement("K-07")
async def test_k_07_a_task_is_durable_before_it_is_promised(client: EndpointTaskClient) -> None:
    """It is stored when its tool starts, and any replica finds it at once."""
    replica = EndpointTaskClient(TOOLS, records=client.records, shared_store=client.shared_store)
    task = await client.start("wait_for_word")

    assert (await replica.get(task["taskId"]))["status"] == "working"


@pytest.mark.requirement("K-07")
async def test_k_07_a_task_beyond_the_limit_does_not_start(client: EndpointTaskClient) -> None:
    """The call is refused, and its tool has not run."""
    client.task_runner.task_store.limits = client.task_runner.task_store.limits.__class__(
        max_per_caller=2
    )
    first = await client.start("wait_for_word")
    await client.start("confirm_delete", {"filename": "a"})
    response = await client.call_with("wait_for_word")
    creator = client.caller
    client.caller = creator.__class__(**{**_fields(creator), "subject": "bob"})
    other = await client.call_with("wait_for_word")
    client.caller = creator
    await client.about("cancel", first["taskId"])
    await client.until(first["taskId"])

    assert response.error == (200, -32000)
    assert response.headers["retry-after"] == "1"
    assert "2 tasks are already running" in response.json["error"]["message"]
    assert other.json["result"]["resultType"] == "task"
    assert (await client.start("wait_for_word"))["status"] == "working"


@pytest.mark.requirement("K-09", "K-05")
async def test_k_09_a_read_task_has_the_members_of_its_state(client: EndpointTaskClient) -> None:
    """A completed task has its result; no task has the state of round trips."""
    waiting = await client.start("wait_for_word")
    working = await client.get(waiting["taskId"])
    task = await client.start("slow_compute", {"seconds": 0, "label": "it"})
    completed = await client.until(task["taskId"])

    assert working["resultType"] == completed["resultType"] == "complete"
    assert not {"result", "error", "inputRequests", "requestState"} & working.keys()
    assert completed["result"]["content"][0]["text"] == "Computed it in 0 seconds."
    assert completed["result"]["isError"] is False
    assert not {"error", "inputRequests", "requestState"} & completed.keys()
    assert completed["createdAt"] == task["createdAt"]


TASK_ENDINGS = [
    # How the tool ends, the task's state, and the code of its error.
    ("failure", "completed", None),
    ("crash", "completed", None),
    ("exit", "completed", None),
    ("no-json", "completed", None),
    ("protocol", "failed", -32602),
    ("scope", "failed", -31002),
    ("limit", "failed", -32000),
    ("roots", "failed", -32021),
]


@pytest.mark.requirement("K-10")
@pytest.mark.parametrize(("how", "status", "code"), TASK_ENDINGS)
async def test_k_10_only_a_protocol_error_makes_a_task_failed(
    client: EndpointTaskClient, how: str, status: str, code: int | None
) -> None:
    """A tool failure is a completed task whose result says so; no internal detail shows."""
    task = await client.start("end_as_told", {"how": how})
    ended = await client.until(task["taskId"])

    assert ended["status"] == status
    if code is None:
        assert ended["result"]["isError"] is True
        assert "error" not in ended
        assert "hunter2" not in str(ended)
    else:
        assert ended["error"]["code"] == code
        assert ended["error"]["message"] == ended["statusMessage"]
        assert "result" not in ended


@pytest.mark.requirement("K-15")
async def test_k_15_the_methods_of_the_experimental_tasks_are_unknown(
    client: EndpointTaskClient,
) -> None:
    """Their `task` member is ignored, whether the tool supports tasks or not."""
    for method in ("tasks/result", "tasks/list"):
        response = await client.ask(method, {"taskId": "t"}, meta=DECLARED_META, mcp_name="t")
        assert response.error == (404, -32601)
    hint = {"ttl": 60_000, "pollInterval": 100}
    greeting = (await client.call_with("greet", {"name": "Bo"}, task=hint)).json["result"]
    client.meta = {}
    computed = (await client.call_with("slow_compute", {"seconds": 0}, task=hint)).json["result"]

    assert greeting["resultType"] == computed["resultType"] == "complete"
    session = await client.open()
    call = {"name": "slow_compute", "arguments": {"seconds": 0}, "task": hint}
    older = (await client.within(session, message("tools/call", call))).json["result"]
    assert older["isError"] is False
    assert "task" not in older


@pytest.mark.requirement("K-18")
async def test_k_18_reports_become_the_status_message(client: EndpointTaskClient) -> None:
    """A task has no progress notifications and no log messages."""
    params = {"name": "report", "arguments": {}}
    meta = {**DECLARED_META, "progressToken": 1, META + "logLevel": "debug"}
    response = await client.ask("tools/call", params, meta=meta)
    task = response.json["result"]
    state = await client.when(task["taskId"], lambda state: "statusMessage" in state)

    assert (state["status"], state["statusMessage"]) == ("working", "1 of 4")


@pytest.mark.requirement("K-19", "K-14")
async def test_k_19_a_task_is_readable_until_its_time_is_over(client: EndpointTaskClient) -> None:
    """After its lifetime the task is unknown, and its running tool is stopped."""
    done = await client.start("slow_compute", {"seconds": 0})
    await client.until(done["taskId"])
    client.clock.now += done["ttlMs"] / 1000 - 1

    assert (await client.get(done["taskId"]))["status"] == "completed"
    client.clock.now += 2
    assert (await client.about("get", done["taskId"])).error == (400, -32602)


@pytest.mark.requirement("H-04")
@pytest.mark.parametrize("method", ["get", "update", "cancel"])
@pytest.mark.parametrize("name", ["t_other", ""])
async def test_h_04_the_header_names_the_task(
    client: EndpointTaskClient, method: str, name: str
) -> None:
    """A proxy that routes by the header must not have routed another task's request."""
    task = await client.start("wait_for_word")
    params = {"taskId": task["taskId"], "inputResponses": {}}
    wrong = await client.ask(f"tasks/{method}", params, meta=DECLARED_META, mcp_name=name)
    none = await client.ask(f"tasks/{method}", params, meta=DECLARED_META, drop=["mcp-name"])

    assert wrong.error == none.error == (400, -32020)


@pytest.mark.requirement("K-07")
async def test_k_07_a_disconnect_before_the_answer_cancels_the_stored_task() -> None:
    """The client will never learn the id."""
    client = EndpointTaskClient(TOOLS)
    tasks = client.records.of("acme").tasks
    create, created = tasks.create, asyncio.Event()

    async def slowly(record: TaskRecord) -> None:
        created.set()
        await asyncio.sleep(0)
        await create(record)

    tasks.create = slowly
    asking = asyncio.create_task(client.call_with("wait_for_word"))
    await asyncio.wait_for(created.wait(), 5)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    (record,) = tasks.records.values()

    assert (await client.until(record.id))["status"] == "cancelled"
