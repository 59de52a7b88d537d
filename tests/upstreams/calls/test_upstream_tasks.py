"""A task of an upstream: polled, asked for its caller, cancelled with the call."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gatepost.tools.context.client import InputRequest, SilentClient
from gatepost.tools.offers.offer import CallContext, ToolFailure
from gatepost.upstreams.calls.round_state import target_of
from gatepost.upstreams.calls.tasks import FAILED_POLLS, UpstreamTask
from gatepost.upstreams.connection import ConnectionFailure, UpstreamError, UpstreamResult
from gatepost.workspace import TenantWorkspace
from tests.support.endpoint import a_caller
from tests.upstreams.calls.test_calls import CRM, definition, form

HANDLE = {"resultType": "task", "taskId": "t-1", "status": "working", "pollIntervalMs": 1000}
COMPLETED_TASK = UpstreamResult({"status": "completed", "result": {"content": []}})
Answer = UpstreamResult | UpstreamError | ConnectionFailure


class AgreeingClient(SilentClient):
    """A client that says yes, and remembers what it was told."""

    def __init__(self) -> None:
        self.detached, self.state = 0, b""
        self.told: list[str | None] = []
        self.asked: list[InputRequest] = []

    async def detach(self, *, state: bytes = b"") -> None:
        self.detached += 1
        self.state = state

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append(message)

    async def request(
        self, requests: Mapping[str, InputRequest], *, state: bytes = b""
    ) -> Mapping[str, Mapping[str, Any]]:
        self.asked.extend(requests.values())
        return {key: {"action": "accept", "content": {"ok": True}} for key in requests}


class PolledUpstream:
    """Answers each poll with the next of its answers, and the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = [*answers]
        self.heard: list[tuple[str, Mapping[str, Any]]] = []
        self.slept: list[float] = []

    async def ask(self, method: str, params: Mapping[str, Any]) -> UpstreamResult | UpstreamError:
        self.heard.append((method, params))
        if method != "tasks/get":
            return UpstreamResult({})
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ConnectionFailure):
            raise answer
        return answer

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def task(self, client: AgreeingClient) -> UpstreamTask:
        ctx = CallContext(
            caller=a_caller(), request_id="r", workspace=TenantWorkspace(-1, "acme"), client=client
        )
        declared = {"elicitation": {"form": {}}}
        target = target_of(ctx, CRM, definition(), {})
        return UpstreamTask(ctx, CRM, target, declared, self.ask, sleep=self.sleep)


def working_task(**more: Any) -> UpstreamResult:
    return UpstreamResult({"status": "working", **more})


async def test_an_upstream_task_is_polled_until_it_ends() -> None:
    upstream = PolledUpstream(
        working_task(statusMessage="half", pollIntervalMs=99_000), COMPLETED_TASK
    )
    person = AgreeingClient()

    assert await upstream.task(person).outcome(HANDLE) == UpstreamResult({"content": []})
    assert person.detached == 1
    assert b'"task":"t-1"' in person.state
    assert person.told == ["half"]
    assert upstream.slept == [1.0, 30.0]


async def test_client_requests_of_an_upstream_task_are_sent_once() -> None:
    asks = UpstreamResult(
        {
            "status": "input_required",
            "inputRequests": {"q": {"method": "elicitation/create", "params": form()}},
        }
    )
    upstream, person = PolledUpstream(asks, asks, COMPLETED_TASK), AgreeingClient()

    await upstream.task(person).outcome(HANDLE)

    assert [page_request.params["message"] for page_request in person.asked] == ["crm: Sure?"]
    updates = [params for method, params in upstream.heard if method == "tasks/update"]
    assert [*updates[0]["inputResponses"]] == ["q"]
    assert len(updates) == 1


async def test_a_failed_upstream_task_is_an_error_of_the_call() -> None:
    upstream = PolledUpstream(
        UpstreamResult({"status": "failed", "error": {"code": 7, "message": "no"}})
    )

    assert await upstream.task(AgreeingClient()).outcome(HANDLE) == UpstreamError(7, "no")


@pytest.mark.parametrize("status", ["cancelled", "completed", "unheard of"])
async def test_an_upstream_task_that_ends_without_a_result_is_a_failure(status: str) -> None:
    with pytest.raises(ToolFailure):
        await (
            PolledUpstream(UpstreamResult({"status": status}))
            .task(AgreeingClient())
            .outcome(HANDLE)
        )


async def test_a_short_outage_delays_a_task_and_a_long_one_makes_it_unknown() -> None:
    away = ConnectionFailure("unreachable", "crm is away.")
    upstream = PolledUpstream(*[away] * (FAILED_POLLS - 1), COMPLETED_TASK)
    assert await upstream.task(AgreeingClient()).outcome(HANDLE) == UpstreamResult({"content": []})

    with pytest.raises(ConnectionFailure) as failure:
        await PolledUpstream(away).task(AgreeingClient()).outcome(HANDLE)
    assert failure.value.reason == "outcome_unknown"


async def test_a_cancelled_call_cancels_the_upstream_task() -> None:
    upstream = PolledUpstream(working_task())
    call = asyncio.create_task(upstream.task(AgreeingClient()).outcome(HANDLE))
    while not upstream.slept:  # noqa: ASYNC110  # each turn of the loop is a poll of the task
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert upstream.heard[-1] == ("tasks/cancel", {"taskId": "t-1"})
