"""What began at one replica goes on at the other, while one of the two is killed and restarted."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.issuers import Idp
from tests.support.replicas import (
    META,
    BalancedReplicas,
    ReplicaClient,
    ReplicaStream,
)
from tests.support.stores import Postgres, Valkey

HANDSHAKES = ["2025-11-25", "2025-06-18", "2025-03-26"]
ELICITING_REVISIONS = ["2025-11-25", "2025-06-18"]
TASKS = {"extensions": {META + "tasks": {}}}
FORMS = {"elicitation": {}}
ACCEPT_ANSWER = {"action": "accept", "content": {"ok": True}}
pytestmark = pytest.mark.requirement("J-13")


@pytest.fixture(scope="module")
def replicas(
    idp: Idp,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,
    postgres_template: str,
    valkey_server: Valkey,
) -> Iterator[BalancedReplicas]:
    folder: Path = tmp_path_factory.mktemp("replicas")
    with postgres_server.database(like=postgres_template) as database:
        storage = {"database": database, "shared": valkey_server.url()}
        replicas = BalancedReplicas(idp, folder, storage)
        with replicas.running():
            yield replicas


async def restart_replica(replicas: BalancedReplicas, number: int) -> None:
    """Kill a replica and bring it back."""
    await asyncio.to_thread(replicas.restart, number)


async def task_with_status(client: ReplicaClient, task_id: str, status: str) -> dict[str, object]:
    """Return a task as soon as it has that status; each poll may reach another replica."""

    async def look() -> dict[str, object]:
        while True:
            task: dict[str, object] = await client.ask(
                "tasks/get", {"taskId": task_id}, capabilities=TASKS
            )
            if task["status"] == status:
                return task
            assert task["status"] in {"working", "input_required"}, task
            await asyncio.sleep(0.05)

    return await asyncio.wait_for(look(), 30)


def call(tool: str, **arguments: str) -> dict[str, object]:
    return {"name": tool, "arguments": arguments}


@pytest.mark.requirement("S-16", "S-20", "S-17")
@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_session_works_and_ends_at_every_replica(
    replicas: BalancedReplicas, version: str
) -> None:
    """Opened at one, used at both while one is killed; ended at the other, it is gone for good."""
    async with replicas.client() as client:
        session = await client.open(version, at=0)
        for at in (0, 1, None, None):
            assert (await client.within(session, "ping", at=at)).status_code == 200

        replicas.kill(0)
        for _ in range(4):
            assert (await client.within(session, "ping")).status_code == 200
        assert await client.delete(session, at=1) == 204
        await restart_replica(replicas, 0)

        for at in (0, 1, None):
            assert (await client.within(session, "ping", at=at)).status_code == 404


@pytest.mark.requirement("M-05", "M-13")
async def test_a_round_trip_continues_at_the_other_replica(replicas: BalancedReplicas) -> None:
    """The first replica asks and is killed; the other one takes the answer."""
    name = replicas.name()
    async with replicas.client() as client:
        answer = await client.ask("tools/call", call("purge", table=name), at=0, capabilities=FORMS)
        assert answer["resultType"] == "input_required"

        replicas.kill(0)
        retry = {
            **call("purge", table=name),
            "inputResponses": {"confirm": ACCEPT_ANSWER},
            **({"requestState": answer["requestState"]} if "requestState" in answer else {}),
        }
        done = await client.ask("tools/call", retry, capabilities=FORMS)
        await restart_replica(replicas, 0)

    assert done["content"][0]["text"] == f"purged {name}"
    assert replicas.marks(f"purged {name}") == 1


@pytest.mark.requirement("DE-10", "E-12")
@pytest.mark.parametrize("version", ELICITING_REVISIONS)
async def test_an_answer_at_one_replica_reaches_the_waiting_call_at_the_other(
    replicas: BalancedReplicas, version: str
) -> None:
    """The replica that takes the answer was just restarted."""
    name = replicas.name()
    async with replicas.client() as client:
        session = await client.open(version, **FORMS)
        body = {
            "jsonrpc": "2.0",
            "id": 9,
            "method": "tools/call",
            "params": call("purge", table=name),
        }
        async with client.stream(
            "POST", _encoded(body), {"Mcp-Session-Id": session}, at=1
        ) as stream:
            client_request = await stream.until("elicitation/create")
            await restart_replica(replicas, 0)
            answer = {"jsonrpc": "2.0", "id": client_request["id"], "result": ACCEPT_ANSWER}
            assert await client.post(session, answer, at=0) == 202
            done = await stream.until("")

    assert done["result"]["content"][0]["text"] == f"purged {name}"
    assert replicas.marks(f"purged {name}") == 1


@pytest.mark.requirement("K-07", "K-17", "K-09")
async def test_a_task_outlives_the_replica_that_runs_it(replicas: BalancedReplicas) -> None:
    """A repeatable task runs again at the other replica, and both replicas can read it."""
    name = replicas.name()
    async with replicas.client() as client, replicas.client(sub="mallory") as other:
        task = await client.ask("tools/call", call("rebuild", name=name), at=0, capabilities=TASKS)
        assert task["resultType"] == "task"
        await replicas.marked(f"rebuilding {name}")

        replicas.kill(0)
        await replicas.marked(f"rebuilding {name}", 2)
        replicas.let_go(name)
        ended = await task_with_status(client, task["taskId"], "completed")
        await restart_replica(replicas, 0)
        again = await client.ask("tasks/get", {"taskId": task["taskId"]}, at=0, capabilities=TASKS)
        with pytest.raises(AssertionError, match="-32602"):
            await other.ask("tasks/get", {"taskId": task["taskId"]}, capabilities=TASKS)

    assert ended["result"] == again["result"]
    assert ended["result"]["content"][0]["text"] == f"rebuilt {name}"  # type: ignore[index]


@pytest.mark.requirement("K-07", "K-10", "K-16")
async def test_a_task_that_must_not_repeat_fails_with_an_unknown_outcome(
    replicas: BalancedReplicas,
) -> None:
    """The replica that paid is gone, and no replica pays again."""
    name = replicas.name()
    async with replicas.client() as client:
        task = await client.ask("tools/call", call("pay", name=name), at=0, capabilities=TASKS)
        await replicas.marked(f"paying {name}")
        replicas.kill(0)
        replicas.let_go(name)
        ended = await task_with_status(client, task["taskId"], "failed")
        await restart_replica(replicas, 0)
        again = await client.ask("tasks/get", {"taskId": task["taskId"]}, at=0, capabilities=TASKS)

    assert (ended["status"], ended["error"]) == (again["status"], again["error"])
    assert replicas.marks(f"paying {name}") == 1
    assert replicas.marks(f"paid {name}") == 0


@pytest.mark.requirement("K-12", "K-13")
async def test_a_task_can_be_cancelled_at_another_replica(replicas: BalancedReplicas) -> None:
    """The other replica, just restarted, cancels it, and the running work really stops."""
    name = replicas.name()
    async with replicas.client() as client:
        task = await client.ask("tools/call", call("pay", name=name), at=1, capabilities=TASKS)
        await replicas.marked(f"paying {name}")
        await restart_replica(replicas, 0)
        await client.ask("tasks/cancel", {"taskId": task["taskId"]}, at=0, capabilities=TASKS)
        await task_with_status(client, task["taskId"], "cancelled")
        replicas.let_go(name)

        assert await client.say(at=1)
    assert replicas.marks(f"paid {name}") == 0


@pytest.mark.requirement("SU-04", "SU-09", "R-09")
async def test_a_change_at_one_replica_is_announced_at_the_other(
    replicas: BalancedReplicas,
) -> None:
    """It is announced before and after the restart, and to no other tenant."""
    watched = {"toolsListChanged": True, "resourceSubscriptions": ["note://a"]}
    async with replicas.client() as client, replicas.client(org_id="globex") as other:
        body = client.modern("subscriptions/listen", {"notifications": watched})
        head = client.mirrors("subscriptions/listen", None)
        async with (
            client.stream("POST", body, head, at=1) as stream,
            other.stream("POST", body, head, at=1) as foreign,
        ):
            for each in (stream, foreign):
                assert (await each.next())["method"].endswith("acknowledged")
            for _ in range(2):
                await client.ask("tools/call", call("touch", name="a"), at=0)
                assert await _two(stream) == {
                    "notifications/resources/updated",
                    "notifications/tools/list_changed",
                }
                await restart_replica(replicas, 0)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(foreign.next(), 0.2)


@pytest.mark.requirement("R-10", "S-11")
@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_subscription_is_kept_for_the_session(
    replicas: BalancedReplicas, version: str
) -> None:
    """It is made at one replica, which restarts, and notified on the stream at the other."""
    async with replicas.client() as client:
        session = await client.open(version, at=0)
        subscribed = await client.within(session, "resources/subscribe", {"uri": "note://b"}, at=0)
        assert subscribed.json()["result"] == {}
        async with client.stream("GET", headers={"Mcp-Session-Id": session}, at=1) as stream:
            await restart_replica(replicas, 0)
            await client.ask("tools/call", call("touch", name="b"), at=0)

            assert await _two(stream) == {
                "notifications/resources/updated",
                "notifications/tools/list_changed",
            }


@pytest.mark.requirement("CX-03", "T-11", "CX-01")
@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_cancellation_reaches_its_call_at_the_other_replica(
    replicas: BalancedReplicas, version: str
) -> None:
    """It goes to the restarted replica, and spares another caller's request of the same id."""
    name, theirs = replicas.name(), replicas.name()
    async with replicas.client() as client, replicas.client(sub="bob") as other:
        session, foreign = await client.open(version), await other.open(version)
        mine = asyncio.create_task(
            client.within(session, "tools/call", call("hold", name=name), at=1, identity=5)
        )
        bobs = asyncio.create_task(
            other.within(foreign, "tools/call", call("hold", name=theirs), at=1, identity=5)
        )
        await replicas.marked(f"holding {name}")
        await replicas.marked(f"holding {theirs}")
        await restart_replica(replicas, 0)
        note = {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": 5, "reason": "no longer wanted"},
        }
        assert await client.post(session, note, at=0) == 202
        await replicas.marked(f"stopped {name}")
        replicas.let_go(theirs)

        assert f"held {theirs}" in (await bobs).text
        assert "held" not in (await mine).text
    assert replicas.marks(f"stopped {theirs}") == 0


@pytest.mark.requirement("T-11", "CX-01")
async def test_hanging_up_at_the_balancer_stops_the_call(replicas: BalancedReplicas) -> None:
    """The proxy ends its request to either replica."""
    name = replicas.name()
    async with replicas.client() as client:
        params = call("hold", name=name)
        async with client.stream(
            "POST", client.modern("tools/call", params), client.mirrors("tools/call", params)
        ) as stream:
            assert (await stream.next())["method"] == "notifications/progress"
        await replicas.marked(f"stopped {name}")


@pytest.mark.requirement("S-08", "S-12")
@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_lost_stream_is_resumed_at_the_other_replica(
    replicas: BalancedReplicas, version: str
) -> None:
    """The call runs on; its answer is read where the client happens to come back."""
    name = replicas.name()
    async with replicas.client() as client:
        session = await client.open(version)
        head = {"Mcp-Session-Id": session}
        params = {**call("hold", name=name), "_meta": {"progressToken": "p"}}
        body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}
        async with client.stream("POST", _encoded(body), head, at=1) as stream:
            await stream.until("notifications/progress")
            last = stream.last_id
        await restart_replica(replicas, 0)
        replicas.let_go(name)
        async with client.stream("GET", headers={**head, "Last-Event-ID": last}, at=0) as again:
            done = await again.until("")

    assert done["id"] == 3
    assert done["result"]["content"][0]["text"] == f"held {name}"
    assert replicas.marks(f"stopped {name}") == 0


@pytest.mark.requirement("O12")
async def test_a_retried_call_has_one_effect(replicas: BalancedReplicas) -> None:
    """A retry comes to the other while the first runs, and again after the first one died."""
    name, key = replicas.name(), {"Idempotency-Key": "the-same"}
    async with replicas.client() as client:
        first = asyncio.create_task(
            client.ask("tools/call", call("pay", name=name), at=0, headers=key)
        )
        await replicas.marked(f"paying {name}")
        second = asyncio.create_task(
            client.ask("tools/call", call("pay", name=name), at=1, headers=key)
        )
        replicas.let_go(name)
        answers = [await first, await second]
        replicas.kill(0)
        answers.append(await client.ask("tools/call", call("pay", name=name), headers=key))
        await restart_replica(replicas, 0)
        answers.append(await client.ask("tools/call", call("pay", name=name), at=0, headers=key))

    assert {answer["content"][0]["text"] for answer in answers} == {f"paid {name}"}
    assert replicas.marks(f"paid {name}") == 1


async def _two(stream: ReplicaStream) -> set[str]:
    """Return the methods of the next two messages."""
    return {(await stream.next())["method"], (await stream.next())["method"]}


def _encoded(body: dict[str, object]) -> bytes:
    return json.dumps(body).encode()
