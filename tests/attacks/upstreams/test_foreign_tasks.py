"""Tasks of upstreams that lie about them, or whose server is taken away while they run."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.attacks.upstreams.conftest import SERVERS, UpstreamDeployment, UpstreamUser, text_result
from tests.support.endpoint import TASKS
from tests.support.internet import DESCRIPTION, Posted, ScriptedServer, result_answer
from tests.support.issuers import Send

TASK_CAPABILITY = {"extensions": {TASKS: {}}}
FIELDS = {"createdAt": "2026-11-24T10:00:00Z", "ttlMs": 600_000, "pollIntervalMs": 250}
HANDLE = {"resultType": "task", "taskId": "t-1", "status": "working", **FIELDS}


class Workshop:
    """A server that makes a task of each call; `state` is what it answers about it."""

    def __init__(self, deployment: UpstreamDeployment) -> None:
        self.state: Mapping[str, Any] = {}
        capabilities = {"tools": {"listChanged": True}, "extensions": {TASKS: {}}}
        self.upstream: ScriptedServer
        self.upstream, self.user, self.identity = deployment.registered(
            "shop",
            answers={
                "server/discover": result_answer(DESCRIPTION | {"capabilities": capabilities}),
                "tools/call": result_answer(HANDLE),
                "tasks/get": self.get,
                "tasks/cancel": result_answer({"resultType": "complete"}),
            },
        )
        assert self.user.refresh(self.identity).status == 200
        deployment.offered(self.user, "mcp_shop__act")

    async def get(self, posted: Posted, send: Send) -> None:
        state = {"taskId": "t-1", "status": "working", **FIELDS, **self.state}
        await result_answer({**state, "resultType": "complete"})(posted, send)

    def begun(self) -> str:
        """Start the caller's task and return its id."""
        params = {"name": "mcp_shop__act", "arguments": {}}
        task_id: str = self.user.rpc("tools/call", params, TASK_CAPABILITY)["result"]["taskId"]
        return task_id


def text_of(deployment: UpstreamDeployment, user: UpstreamUser, task: str) -> str:
    fields: dict[str, Any] = {}

    def is_over() -> bool:
        fields.update(user.rpc("tasks/get", {"taskId": task}, TASK_CAPABILITY)["result"])
        return fields["status"] != "working"

    deployment.until(is_over)
    text: str = fields["result"]["content"][0]["text"]
    return text


@pytest.fixture
def shop(deployment: UpstreamDeployment) -> Iterator[Workshop]:
    workshop = Workshop(deployment)
    yield workshop
    workshop.user.ask("DELETE", f"{SERVERS}/{workshop.identity}")


def test_the_state_of_another_task_is_not_accepted_as_an_answer(
    deployment: UpstreamDeployment, shop: Workshop
) -> None:
    """The upstream may confuse the task with one of another tenant."""
    shop.state = {
        "taskId": "t-2",
        "status": "completed",
        "result": text_result("the other's secrets"),
    }

    ended = text_of(deployment, shop.user, shop.begun())

    assert "another task" in ended


@pytest.mark.parametrize("how", ["removed", "disabled", "moved"])
def test_tasks_of_a_removed_or_moved_server_are_no_longer_polled(
    deployment: UpstreamDeployment, shop: Workshop, how: str
) -> None:
    """The task ends with an unknown outcome, and no further request is sent."""
    task = shop.begun()
    deployment.until(lambda: shop.upstream.of("tasks/get"))
    path = f"{SERVERS}/{shop.identity}"
    if how == "removed":
        assert shop.user.ask("DELETE", path).status == 204
    else:
        change = {"disabled": {"status": "disabled"}, "moved": {"url": deployment.url("good")}}[how]
        assert shop.user.ask("PATCH", path, change).status == 200
    count = len(shop.upstream.seen)

    assert "unknown" in text_of(deployment, shop.user, task)
    assert len(shop.upstream.seen) <= count + 1  # a poll may have been on its way
    deployment.others_go_on()
