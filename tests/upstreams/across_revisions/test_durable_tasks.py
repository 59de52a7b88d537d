"""A task of an upstream is the caller's: another replica continues it, and makes no call again."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands
from tests.support.endpoint import TASKS
from tests.support.internet import DESCRIPTION, Posted, ScriptedServer, result_answer
from tests.support.issuers import AsgiServer, Idp, Send
from tests.support.measuring import eventually
from tests.support.replicas import BalancedReplicas, ReplicaClient
from tests.support.stores import Postgres, Valkey
from tests.upstreams.across_revisions.test_bridge_matrix import ACCEPT_ANSWER

BUILD_TOOL, WELD_TOOL = "mcp_plant__build", "mcp_plant__weld"
CAPABILITIES = {"extensions": {TASKS: {}}, "elicitation": {"form": {}}}
FORM = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
QUESTION = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Next part?", "requestedSchema": FORM},
}
WITHIN_S = 40
FIELDS = {"createdAt": "2026-11-24T10:00:00Z", "ttlMs": 600_000, "pollIntervalMs": 250}


class Plant(ScriptedServer):
    """A modern server that makes a task of each call, and counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        capabilities = {"tools": {}, "extensions": {TASKS: {}}}
        self.begun: Counter[str] = Counter()
        self.tasks: dict[str, dict[str, Any]] = {}
        self.given: dict[str, list[str]] = {}
        """The keys of the questions that were answered, by task."""
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        self.answers |= {
            "server/discover": result_answer({**DESCRIPTION, "capabilities": capabilities}),
            "tools/list": result_answer(
                {"tools": [{"name": name, "inputSchema": schema} for name in ("build", "weld")]}
            ),
            "tools/call": self.call,
            "tasks/get": self.get,
            "tasks/update": self.update,
            "tasks/cancel": self.cancel,
        }

    async def call(self, posted: Posted, send: Send) -> None:
        name = posted.body["params"]["arguments"]["name"]
        self.begun[name] += 1
        self.tasks[name] = {"taskId": name, "status": "working", **FIELDS}
        await result_answer({**self.tasks[name], "resultType": "task"})(posted, send)

    async def get(self, posted: Posted, send: Send) -> None:
        task = self.tasks[posted.body["params"]["taskId"]]
        await result_answer({**task, "resultType": "complete"})(posted, send)

    async def update(self, posted: Posted, send: Send) -> None:
        params = posted.body["params"]
        arguments = self.given.setdefault(params["taskId"], [])
        arguments += [
            f"{key} {response['action']}" for key, response in params["inputResponses"].items()
        ]
        await result_answer({"resultType": "complete"})(posted, send)

    async def cancel(self, posted: Posted, send: Send) -> None:
        self.tasks[posted.body["params"]["taskId"]]["status"] = "cancelled"
        await result_answer({"resultType": "complete"})(posted, send)

    def polled(self, name: str) -> bool:
        """Return whether the gate has polled the task, which it does once the task is durable."""
        return any(request.body["params"]["taskId"] == name for request in self.of("tasks/get"))

    def finish(self, name: str) -> None:
        """Give the task its result."""
        value = {"content": [{"type": "text", "text": f"built {name}"}]}
        self.tasks[name] |= {"status": "completed", "result": value}

    def ask(self, name: str, key: str) -> None:
        """Make the task ask for input."""
        self.tasks[name] |= {"status": "input_required", "inputRequests": {key: QUESTION}}


class Factory:
    """Two replicas in front of a plant."""

    def __init__(self, replicas: BalancedReplicas, plant: Plant) -> None:
        self.replicas, self.plant = replicas, plant

    async def begin(
        self, client: ReplicaClient, at: int, tool: str = BUILD_TOOL
    ) -> tuple[str, str]:
        """Name and id of a new task."""
        name = self.replicas.name()
        params = {"name": tool, "arguments": {"name": name}}
        task = await client.ask("tools/call", params, at=at, capabilities=CAPABILITIES)
        assert task["resultType"] == "task", task
        return name, task["taskId"]

    def approve(self) -> None:
        """Approve the call that waits, at the command line."""
        *_, row = self._run("approvals", "list", "--tenant", "acme").splitlines()
        which = (row.split()[0], "--tenant", "acme")
        output = self._run("approvals", "show", *which)
        digest = output.partition("--digest ")[2].split()[0]
        self._run("approvals", "approve", *which, "--digest", digest)

    def _run(self, *words: str) -> str:
        code, output, complaints = commands.completed(*words, cwd=self.replicas.folder)
        assert code == 0, complaints
        return output

    async def until(self, client: ReplicaClient, at: int, task: str, *statuses: str) -> Any:
        """Return the task as soon as it has one of these statuses."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                params = {"taskId": task}
                task_state = await client.ask("tasks/get", params, at=at, capabilities=CAPABILITIES)
                if task_state["status"] in statuses:
                    return task_state
                await asyncio.sleep(0.05)


@contextmanager
def plant_behind(idp: Idp, folder: Path, storage: dict[str, str]) -> Iterator[Factory]:
    plant = Plant()
    served = AsgiServer(plant).start()
    table = {"name": "plant", "tenants": ["acme"], "url": f"{served.url}/mcp"}
    settings: dict[str, Any] = {
        "network": {"allow_hosts": [served.url.split("/")[2]]},
        "upstreams": [{**table, "scopes": {"*": ["plant"]}}],
        "listen": {"drain_s": 1},
        "approvals": {"require": [WELD_TOOL]},
    }
    replicas = BalancedReplicas(idp, folder, storage, **settings)
    try:
        with replicas.running():
            yield Factory(replicas, plant)
    finally:
        served.stop()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def running(
    request: pytest.FixtureRequest,
    idp: Idp,
    tmp_path_factory: pytest.TempPathFactory,
    valkey_server: Valkey,
) -> Iterator[Factory]:
    folder = tmp_path_factory.mktemp("plant")
    shared = {"shared": valkey_server.url()}
    if request.param == "sqlite":
        with plant_behind(idp, folder, {"database": "sqlite:///gatepost.db", **shared}) as factory:
            yield factory
        return
    server: Postgres = request.getfixturevalue("postgres_server")
    template: str = request.getfixturevalue("postgres_template")
    with (
        server.database(like=template) as database,
        plant_behind(idp, folder, {"database": database, **shared}) as factory,
    ):
        yield factory


@pytest.fixture
async def client(running: Factory) -> AsyncIterator[ReplicaClient]:
    """Yield a client of replicas that both know the tool."""
    async with running.replicas.client(scope="plant") as client, asyncio.timeout(WITHIN_S):
        for at in (0, 1):
            while True:
                listed = await client.ask("tools/list", at=at)
                if BUILD_TOOL in {tool["name"] for tool in listed["tools"]}:
                    break
                await asyncio.sleep(0.1)
        yield client


async def test_a_killed_replica_loses_no_task(running: Factory, client: ReplicaClient) -> None:
    """The other replica polls the upstream's task, and the upstream has begun it once."""
    name, task = await running.begin(client, 0)
    running.replicas.kill(0)
    running.plant.finish(name)

    ended = await running.until(client, 1, task, "completed", "failed")
    assert ended["result"]["content"][0]["text"] == f"built {name}"
    assert running.plant.begun[name] == 1
    await asyncio.to_thread(running.replicas.restart, 0)


async def test_a_stopped_replica_hands_the_task_over(
    running: Factory, client: ReplicaClient
) -> None:
    """The stop does not cancel the task at the upstream."""
    name, task = await running.begin(client, 0)
    assert await asyncio.to_thread(running.replicas.servers[0].stop) == 0
    running.plant.finish(name)

    ended = await running.until(client, 1, task, "completed", "failed", "cancelled")
    assert ended["result"]["content"][0]["text"] == f"built {name}"
    assert running.plant.begun[name] == 1
    cancelled = [request.body["params"]["taskId"] for request in running.plant.of("tasks/cancel")]
    assert name not in cancelled
    await asyncio.to_thread(running.replicas.restart, 0)


async def test_an_approved_call_is_not_approved_again(
    running: Factory, client: ReplicaClient
) -> None:
    """The replica that continues it makes no second call, so it asks for no second decision."""
    name, task = await running.begin(client, 0, WELD_TOOL)
    await asyncio.to_thread(running.approve)
    await asyncio.to_thread(eventually, lambda: running.plant.polled(name), within=WITHIN_S)
    running.replicas.kill(0)
    running.plant.finish(name)

    ended = await running.until(client, 1, task, "completed", "failed")
    assert ended["result"]["content"][0]["text"] == f"built {name}"
    assert running.plant.begun[name] == 1
    await asyncio.to_thread(running.replicas.restart, 0)


async def test_client_requests_are_answered_at_the_next_replica(
    running: Factory, client: ReplicaClient
) -> None:
    """An answer counts for its own question, and not for a later one with the same words."""
    name, task = await running.begin(client, 0)
    for key in ("first", "second"):
        at = ("first", "second").index(key)
        running.plant.ask(name, key)
        client_requests = await running.until(
            client, at, task, "input_required", "completed", "failed"
        )
        accepted_answers = dict.fromkeys(client_requests["inputRequests"], ACCEPT_ANSWER)
        params = {"taskId": task, "inputResponses": accepted_answers}
        await client.ask("tasks/update", params, at=at, capabilities=CAPABILITIES)
        answered = running.plant.given.setdefault(name, [])
        await asyncio.to_thread(
            eventually, partial(answered.__contains__, f"{key} accept"), within=WITHIN_S
        )
        running.plant.tasks[name]["status"] = "working"
        if at == 0:
            running.replicas.kill(0)
    running.plant.finish(name)

    await running.until(client, 1, task, "completed")
    assert running.plant.given[name] == ["first accept", "second accept"]
    assert running.plant.begun[name] == 1
    await asyncio.to_thread(running.replicas.restart, 0)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_cancellation_reaches_the_upstream(
    running: Factory, client: ReplicaClient, is_killed: bool
) -> None:
    """Another replica can send it, even after the replica that made the call has ended."""
    name, task = await running.begin(client, 0)
    if is_killed:
        running.replicas.kill(0)
    await client.ask("tasks/cancel", {"taskId": task}, at=1, capabilities=CAPABILITIES)

    await running.until(client, 1, task, "cancelled")
    assert running.plant.tasks[name]["status"] == "cancelled"
    assert running.plant.begun[name] == 1
    if is_killed:
        await asyncio.to_thread(running.replicas.restart, 0)
