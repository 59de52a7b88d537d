"""Tasks that ask (K-08, K-11, K-12), that are cancelled (K-13), and that have ended (K-16)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gatepost import CallContext, Pack
from tests.support import client_requests
from tests.support.client_requests import TaskConfirmation, TaskName, accepted_form
from tests.support.endpoint import DECLARED_META, META, EndpointTaskClient

pack = Pack("asking")


@pack.tool(task_support="optional", timeout_s=0.2)
async def ask_in_turn(ctx: CallContext) -> str:
    """Ask one thing after the other."""
    names = []
    for number in range(3):
        answer = await ctx.ask("Who is next?", TaskName, key=f"name-{number}")
        names.append(answer.content.name if answer.content else answer.action)
    return ", ".join(names)


@pack.tool(task_support="optional")
async def ask_and_give_up(ctx: CallContext) -> str:
    """Ask, do not wait for long, and ask something else."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await ctx.ask("Are you there?", TaskConfirmation, key="there")
    answer = await ctx.ask("Anybody?", TaskConfirmation, key="anybody")
    return answer.action


@pack.tool(task_support="optional")
async def wait_for_word(ctx: CallContext) -> str:
    """Run until it is stopped."""
    await asyncio.Event().wait()
    return "never"


@pack.tool(task_support="optional")
async def finish_anyway(ctx: CallContext) -> str:
    """Be done when it is told to stop."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "done all the same"


@pack.tool(task_support="required", detaches=True)
async def ask_before_and_after(ctx: CallContext) -> str:
    """Ask for one name in the call, and for another in the task."""
    first = await ctx.ask("What is your name?", TaskName, key="first")
    await ctx.detach()
    second = await ctx.ask("And your other name?", TaskName, key="second")
    return f"{first.content and first.content.name} {second.content and second.content.name}"


TOOLS = [*client_requests.task_pack.tools.values(), *pack.tools.values()]


@pytest.fixture
async def client() -> AsyncIterator[EndpointTaskClient]:
    client = EndpointTaskClient(TOOLS)
    yield client
    await client.task_runner.aclose()


async def input_requests(client: EndpointTaskClient, task_id: str) -> dict[str, Any]:
    """Wait for the input requests of a task; return them."""
    requests: dict[str, Any] = (await client.until(task_id, "input_required"))["inputRequests"]
    return requests


def text(task: Any) -> str:
    words: str = task["result"]["content"][0]["text"]
    return words


@pytest.mark.requirement("K-08", "K-05")
async def test_k_08_the_first_input_request_is_a_round_trip_before_the_task(
    client: EndpointTaskClient,
) -> None:
    """The task has the answer of that round trip and none of its state."""
    result = (await client.call_with("ask_before_and_after")).json["result"]
    again = {
        "inputResponses": {"first": accepted_form(name="Ada")},
        "requestState": result["requestState"],
    }
    created = (await client.call_with("ask_before_and_after", **again)).json["result"]

    assert (result["resultType"], "taskId" in result) == ("input_required", False)
    assert (created["resultType"], created["status"]) == ("task", "working")
    assert not {"requestState", "inputRequests"} & created.keys()
    assert (await input_requests(client, created["taskId"])).keys() == {"second"}
    await client.answer(created["taskId"], second=accepted_form(name="Lovelace"))
    assert text(await client.until(created["taskId"])) == "Ada Lovelace"


@pytest.mark.requirement("K-09", "K-11")
async def test_k_09_a_waiting_task_shows_all_open_input_requests(
    client: EndpointTaskClient,
) -> None:
    """They are listed by key, without the envelope of a request, the same at each read."""
    task = await client.start("multi_input")
    requests = await input_requests(client, task["taskId"])

    assert requests.keys() == {"first", "second"}
    assert all(request.keys() == {"method", "params"} for request in requests.values())
    assert {request["method"] for request in requests.values()} == {"elicitation/create"}
    assert (await client.get(task["taskId"]))["inputRequests"] == requests


@pytest.mark.requirement("K-11")
async def test_k_11_each_input_request_has_a_key_of_its_own(client: EndpointTaskClient) -> None:
    """No answered key is reused; the tool's timeout pauses while a person decides."""
    task = await client.start("ask_in_turn")
    seen: list[str] = []
    for name in ("Ada", "Bo", "Cy"):
        (key,) = await input_requests(client, task["taskId"])
        # Half as long again as the tool may run, all three together.
        await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.1)
        seen.append(key)
        response = await client.answer(task["taskId"], **{key: accepted_form(name=name)})
        assert response.status == 200
        await client.when(task["taskId"], lambda t: seen[-1] not in t.get("inputRequests", {}))

    assert len(set(seen)) == 3
    assert text(await client.until(task["taskId"])) == "Ada, Bo, Cy"


@pytest.mark.requirement("K-11", "K-12")
async def test_k_11_a_withdrawn_input_request_is_gone(client: EndpointTaskClient) -> None:
    """An answer to a withdrawn request changes nothing."""
    task = await client.start("ask_and_give_up")
    await client.when(task["taskId"], lambda t: [*t.get("inputRequests", {})] == ["anybody"])
    late = await client.answer(task["taskId"], there=accepted_form(confirm=True))
    assert late.json["result"]["resultType"] == "complete"
    assert [*await input_requests(client, task["taskId"])] == ["anybody"]
    await client.answer(task["taskId"], anybody={"action": "decline"})

    assert text(await client.until(task["taskId"])) == "decline"


@pytest.mark.requirement("K-12")
async def test_k_12_answers_may_come_one_by_one(client: EndpointTaskClient) -> None:
    """The task waits for the remaining answers, and shows none of those it has."""
    task = await client.start("multi_input")
    await input_requests(client, task["taskId"])
    response = (await client.answer(task["taskId"], second=accepted_form(name="Lovelace"))).json[
        "result"
    ]
    state = await client.get(task["taskId"])
    await client.answer(
        task["taskId"], first=accepted_form(name="Ada"), second=accepted_form(name="Byron")
    )

    assert response.keys() == {"resultType", "_meta"}
    assert (state["status"], [*state["inputRequests"]]) == ("input_required", ["first"])
    assert text(await client.until(task["taskId"])) == "Hello, Ada Lovelace!"


@pytest.mark.requirement("K-12")
@pytest.mark.parametrize("key", ["unknown", "FIRST", "", "first ", "x" * 5000])
async def test_k_12_answers_to_unknown_input_requests_are_ignored(
    client: EndpointTaskClient, key: str
) -> None:
    """Answers of any form to an unknown key are ignored."""
    task = await client.start("multi_input")
    before = await input_requests(client, task["taskId"])
    response = await client.about("update", task["taskId"], inputResponses={key: 12345})

    assert response.json["result"]["resultType"] == "complete"
    assert await input_requests(client, task["taskId"]) == before


MALFORMED_ANSWERS: list[Any] = [
    None,
    [],
    "first",
    {"first": 12345},
    {"first": None},
    {"first": {"action": "maybe"}},
    {"first": {"action": "accept"}},
    {"first": {"action": "accept", "content": {"name": 7}}},
    {"first": {"action": "accept", "content": {}}},
    {"second": {"action": "accept", "content": {"name": "Bo"}}, "first": []},
]


@pytest.mark.requirement("K-12", "X-04")
@pytest.mark.parametrize("responses", MALFORMED_ANSWERS)
async def test_k_12_answers_that_do_not_fit_are_refused(
    client: EndpointTaskClient, responses: Any
) -> None:
    """The whole update is refused, and the input requests stay open."""
    task = await client.start("multi_input")
    before = await input_requests(client, task["taskId"])
    response = await client.about("update", task["taskId"], inputResponses=responses)

    assert response.error == (400, -32602)
    assert await input_requests(client, task["taskId"]) == before


@pytest.mark.requirement("K-12")
async def test_k_12_answers_are_required(client: EndpointTaskClient) -> None:
    """An update without answers is an error."""
    task = await client.start("multi_input")

    assert (await client.about("update", task["taskId"])).error == (400, -32602)


@pytest.mark.requirement("K-10", "M-04")
async def test_k_10_a_task_fails_if_its_client_lacks_the_needed_capability(
    client: EndpointTaskClient,
) -> None:
    """The capabilities are those that the call declared; the error names the missing one."""
    capabilities = {"extensions": DECLARED_META[META + "clientCapabilities"]["extensions"]}
    client.meta = {META + "clientCapabilities": capabilities}
    task = await client.start("confirm_delete", {"filename": "a"})
    ended = await client.until(task["taskId"])

    assert (ended["status"], ended["error"]["code"]) == ("failed", -32021)
    assert ended["error"]["data"]["requiredCapabilities"] == {"elicitation": {}}


@pytest.mark.requirement("K-13")
@pytest.mark.parametrize("tool", ["wait_for_word", "multi_input"])
async def test_k_13_a_task_is_cancelled(client: EndpointTaskClient, tool: str) -> None:
    """The answer is empty at once, also for a second cancellation and an ended task."""
    task = await client.start(tool)
    results = [(await client.about("cancel", task["taskId"])).json["result"] for _ in range(2)]
    ended = await client.until(task["taskId"])
    results.append((await client.about("cancel", task["taskId"])).json["result"])

    assert [result.keys() for result in results] == [{"resultType", "_meta"}] * 3
    assert ended["status"] == "cancelled"
    assert not {"result", "error", "inputRequests"} & ended.keys()


@pytest.mark.requirement("K-13")
async def test_k_13_a_task_may_complete_despite_a_cancellation(client: EndpointTaskClient) -> None:
    """Its result is not lost."""
    task = await client.start("finish_anyway")
    await client.about("cancel", task["taskId"])
    ended = await client.until(task["taskId"])

    assert (ended["status"], text(ended)) == ("completed", "done all the same")


@pytest.mark.requirement("K-16", "K-13", "K-12")
async def test_k_16_cancelling_or_answering_an_ended_task_changes_nothing(
    client: EndpointTaskClient,
) -> None:
    """Both requests are acknowledged."""
    done = await client.start("slow_compute", {"seconds": 0})
    before = await client.until(done["taskId"])
    await client.about("cancel", done["taskId"])
    await client.answer(done["taskId"], first=accepted_form(name="Ada"))

    assert await client.get(done["taskId"]) == before


@pytest.mark.requirement("K-13", "K-16")
async def test_k_16_a_task_ends_once_when_cancelling_races_with_its_end(
    client: EndpointTaskClient,
) -> None:
    """The first final state that a reader saw stays."""
    for pause in range(8):
        task = await client.start("slow_compute", {"seconds": 0})
        for _ in range(pause):
            await asyncio.sleep(0)
        await client.about("cancel", task["taskId"])
        ended = await client.until(task["taskId"])

        assert ended["status"] in {"completed", "cancelled"}
        assert ("result" in ended) == (ended["status"] == "completed")
        assert await client.get(task["taskId"]) == ended


async def test_a_tool_sees_a_cancelled_form(client: EndpointTaskClient) -> None:
    """Cancelling a form is an answer like any other."""
    task = await client.start("confirm_delete", {"filename": "notes.txt"})
    (key,) = await input_requests(client, task["taskId"])
    await client.answer(task["taskId"], **{key: {"action": "cancel"}})

    assert text(await client.until(task["taskId"])) == "notes.txt was kept."
