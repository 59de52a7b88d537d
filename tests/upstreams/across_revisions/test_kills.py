"""Replicas that are killed while a session-era upstream asks: nothing runs twice."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context, MCPServer

from tests.support.commands import PID_TOOL
from tests.support.issuers import AsgiServer, Idp
from tests.support.processes import free_port
from tests.support.replicas import BalancedReplicas, ReplicaClient
from tests.support.stores import Postgres, Valkey
from tests.upstreams.across_revisions.test_bridge_matrix import ACCEPT_ANSWER
from tests.upstreams.across_revisions.test_real_clients import BeforeDiscovery, BridgeChoice

TOOL = "mcp_shop__order"
FORMS = {"elicitation": {"form": {}}}
LIVE_REPLICA, KILLED_REPLICAS = 0, (1, 2, 3)
"""The numbers of the replicas."""
CALLERS = 2
"""The calls that run when a replica is killed; some are parked, some not yet sent."""
WITHIN_S = 60
UNKNOWN_OUTCOME = "It is unknown whether shop carried out the call."
NOTHING_SENT = ("Nothing was sent", "Call again")
RANDOM_MOMENTS = random.Random(13)
LATE_ANSWER_PROBABILITY = 0.7
"""The part of the callers that answer only when the replica is gone."""


class Shop(MCPServer):
    """Counts each order that begins, asks, and counts each that is confirmed."""

    def __init__(self) -> None:
        super().__init__("shop")
        self.begun: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.add_tool(self.order)

    async def order(self, ctx: Context[Any, Any], name: str) -> str:
        """Order something."""
        self.begun[name] += 1
        # The SDK does not notice that a client is gone, and would keep the order for ever.
        async with asyncio.timeout(WITHIN_S):
            answer = await ctx.elicit(f"Order {name}?", BridgeChoice)
        if not isinstance(answer, AcceptedElicitation) or not answer.data.yes:
            return "not ordered"
        self.done[name] += 1
        return f"ordered {name}"


class Killing:
    """A replica that stays, replicas that are killed, the shop, and what callers were told."""

    def __init__(self, replicas: BalancedReplicas, shop: Shop) -> None:
        self.replicas, self.shop = replicas, shop
        self.kills = 0
        """How many processes of `gatepost serve` ended by SIGKILL while they had calls."""
        self.told: Counter[str] = Counter()
        """How many callers heard each kind of answer."""
        self._names = count()

    async def run(self, kills: int) -> None:
        """Kill replicas, some at a time, while callers are at it, and judge what they heard."""
        calls: dict[str, asyncio.Task[str]] = {}
        remaining_kills = iter(range(kills))

        async def kill_on(client: ReplicaClient, number: int) -> None:
            for _ in remaining_kills:
                calls.update(await self._kill(client, number))

        lasting = {"scope": "shop", "exp": int(time.time()) + 3600}
        async with self.replicas.client(**lasting) as client:
            async with asyncio.TaskGroup() as group:
                for number in KILLED_REPLICAS:
                    group.create_task(kill_on(client, number))
            # A replica counts as dead after a silence of some seconds: others are killed meanwhile.
            for name, call in calls.items():
                self._judge(name, await call)

    async def _kill(self, client: ReplicaClient, number: int) -> dict[str, "asyncio.Task[str]"]:
        """Kill a replica once some of its calls have begun, and start another in its place."""
        names = [f"n{next(self._names)}" for _ in range(CALLERS)]
        killed, counts = asyncio.Event(), Counter[str]()
        calls = {
            name: asyncio.create_task(self._told(client, name, number, killed, counts))
            for name in names
        }
        # Mostly callers are asked by then, and sometimes their calls have only begun.
        seen = RANDOM_MOMENTS.choice([counts, counts, counts, self.shop.begun])
        most = RANDOM_MOMENTS.randint(2, CALLERS)
        async with asyncio.timeout(WITHIN_S):
            while sum(seen[name] for name in names) < most:  # noqa: ASYNC110 - of another loop
                await asyncio.sleep(0.005)
        await asyncio.sleep(RANDOM_MOMENTS.choice([0, 0.02, 0.2]))
        server = self.replicas.servers[number]
        self.replicas.kill(number)
        killed.set()
        self.kills += server.process.returncode == -signal.SIGKILL
        await asyncio.to_thread(self.replicas.restart, number)
        return calls

    async def _told(
        self,
        client: ReplicaClient,
        name: str,
        number: int,
        killed: asyncio.Event,
        counts: Counter[str],
    ) -> str:
        """Return the caller's last answer; "" if its connection broke before it was asked."""
        params: dict[str, Any] = {"name": TOOL, "arguments": {"name": name}}
        try:
            first = await client.ask("tools/call", params, at=number, capabilities=FORMS)
        except httpx2.TransportError:
            return ""
        if first["resultType"] != "input_required":
            return str(first["content"][0]["text"])
        counts[name] += 1
        params["inputResponses"] = dict.fromkeys(first["inputRequests"], ACCEPT_ANSWER)
        params["requestState"] = first["requestState"]
        if RANDOM_MOMENTS.random() < LATE_ANSWER_PROBABILITY:
            await killed.wait()
        else:
            await asyncio.sleep(RANDOM_MOMENTS.uniform(0, 0.3))
        at = LIVE_REPLICA if killed.is_set() else number
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    ended = await client.ask("tools/call", params, at=at, capabilities=FORMS)
                except httpx2.TransportError:
                    # This one was killed: another one answers.
                    at = LIVE_REPLICA
                    await asyncio.sleep(0.1)
                    continue
                return str(ended["content"][0]["text"])

    def _judge(self, name: str, answer_text: str) -> None:
        """Assert that the shop's own count agrees with the answer."""
        begun, done = self.shop.begun[name], self.shop.done[name]
        assert begun <= 1
        assert done <= begun
        if answer_text.startswith("ordered"):
            assert (answer_text, done) == (f"ordered {name}", 1)
            self.told["ordered"] += 1
        elif answer_text.startswith(UNKNOWN_OUTCOME):
            self.told["unknown"] += 1
        elif any(sign in answer_text for sign in NOTHING_SENT):
            assert begun == 0
            self.told["not sent"] += 1
        else:
            assert answer_text == "", answer_text
            self.told["connection lost"] += 1


@pytest.fixture(scope="module")
def killed_replicas(
    idp: Idp,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,
    postgres_template: str,
    valkey_server: Valkey,
) -> Iterator[Killing]:
    folder: Path = tmp_path_factory.mktemp("kills")
    shop = Shop()
    app = BeforeDiscovery(shop.streamable_http_app())
    served = AsgiServer(app, lifespan="on").start()
    table = {
        "name": "shop",
        "tenants": ["acme"],
        "url": f"{served.url}/mcp",
        "scopes": {"*": ["shop"]},
    }
    try:
        with postgres_server.database(like=postgres_template) as database:
            storage = {"database": database, "shared": valkey_server.url()}
            tools = folder / "pid.py"
            tools.write_text(PID_TOOL.replace("{name}", "pid"), encoding="utf-8")
            replicas = BalancedReplicas(
                idp,
                folder,
                storage,
                # A fifth of a start is what many tools take.
                tools=tools,
                network={"allow_hosts": [served.url.split("/")[2]]},
                upstreams=[table],
            )
            replicas.ports = [free_port() for _ in (LIVE_REPLICA, *KILLED_REPLICAS)]
            with replicas.running():
                yield Killing(replicas, shop)
    finally:
        served.stop()


@pytest.fixture
async def ready_replicas(killed_replicas: Killing) -> Killing:
    """Return the replicas after all of them know the tool."""
    async with killed_replicas.replicas.client(scope="shop") as client, asyncio.timeout(WITHIN_S):
        for at in (LIVE_REPLICA, *KILLED_REPLICAS):
            while True:
                listed = await client.ask("tools/list", at=at)
                if TOOL in {tool["name"] for tool in listed["tools"]}:
                    break
                await asyncio.sleep(0.1)
    return killed_replicas


@pytest.mark.parametrize("kills", [6, pytest.param(500, marks=pytest.mark.slow)])
async def test_a_killed_replica_runs_no_call_twice(ready_replicas: Killing, kills: int) -> None:
    """The upstream counts its calls. Each kill is a SIGKILL of a process that has such calls."""
    before = ready_replicas.kills, ready_replicas.told.total(), ready_replicas.told["unknown"]
    await ready_replicas.run(kills)

    assert max(ready_replicas.shop.begun.values()) == 1
    assert ready_replicas.kills - before[0] == kills
    assert ready_replicas.told.total() - before[1] == kills * CALLERS
    assert ready_replicas.told["unknown"] - before[2] > kills / 2
