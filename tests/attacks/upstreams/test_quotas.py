"""Many requests at once, against each quota of a tenant; the other tenant goes on."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gatepost.upstreams.agents import AgentRegistration
from gatepost.upstreams.calls.parked import ParkingLimits
from gatepost.upstreams.upstream_server import UpstreamServer
from tests.attacks.upstreams.conftest import (
    AGENTS,
    SERVERS,
    UpstreamDeployment,
    UpstreamUser,
    deployment_of,
    text_result,
)
from tests.support.client import RestAnswer
from tests.support.internet import (
    EVENTS,
    Posted,
    ScriptedServer,
    begin_answer,
    event_bytes,
    finish_answer,
    raw_answer,
    send_final_event,
    send_more,
    stall,
)
from tests.support.issuers import Idp, Send

AT_ONCE = 80
THREADS = 40
QUOTA = 20
FREE_REGISTRATIONS = 5
"""What the quota leaves before the attack."""


@pytest.fixture
def deployment(idp: Idp, tmp_path: Path) -> Iterator[UpstreamDeployment]:
    with deployment_of(idp, storage={"database": f"sqlite:///{tmp_path}/gatepost.db"}) as scene:
        yield scene


def concurrent_answers(person: UpstreamUser, path: str, bodies: list[Any]) -> list[RestAnswer]:
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(lambda body: person.ask("POST", path, body), bodies))


def test_simultaneous_registrations_cannot_exceed_the_quota_of_a_tenant(
    deployment: UpstreamDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each registration beyond the quota is refused with the reason.

    The quotas are smaller than in production, so that the attack begins sooner.
    """
    store = deployment.gate.services.upstreams.services.store
    for quota in ("MAX_SERVERS", "MAX_AGENTS"):
        monkeypatch.setattr(f"gatepost.upstreams.store.{quota}", QUOTA)

    async def fill() -> None:
        for number in range(QUOTA - FREE_REGISTRATIONS):
            server = UpstreamServer(id="", tenant="acme", name=f"s{number}", status="disabled")
            await store.create(server)
        for number in range(QUOTA - FREE_REGISTRATIONS):
            await store.create_agent(AgentRegistration(id="", tenant="acme", name=f"a{number}"))

    deployment.gate.run(fill())
    admin = deployment.of("acme")
    url = "https://mcp.example.com/mcp"
    servers = [
        {"name": f"more{number}", "url": url, "status": "disabled"} for number in range(AT_ONCE)
    ]
    agents = [{"name": f"more{number}"} for number in range(AT_ONCE)]
    for path, bodies in ((SERVERS, servers), (AGENTS, agents)):
        responses = concurrent_answers(admin, path, bodies)
        assert {response.status for response in responses} <= {201, 409}
        refused = [response for response in responses if response.status == 409]
        assert all("there cannot be more" in response.json["message"] for response in refused)
        registered = [
            entry for entry in admin.ask("GET", path).json["data"] if entry["source"] == "api"
        ]
        assert len(registered) <= QUOTA
        assert len(refused) >= AT_ONCE - FREE_REGISTRATIONS
        # What was refused can be added again once the quota allows it.
        assert admin.ask("DELETE", f"{path}/{registered[0]['id']}").status == 204
        for entry in registered[1 : FREE_REGISTRATIONS + 1]:
            admin.ask("DELETE", f"{path}/{entry['id']}")
        assert admin.ask("POST", path, bodies[-1] | {"name": "at last"}).status == 201
    globex = deployment.of("globex")
    assert globex.ask("POST", SERVERS, servers[0]).status == 201
    deployment.assert_others_are_answered()


PARAMS = {
    "message": "Go on?",
    "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
}


class ElicitingUpstream:
    """Asks before each call, and ends it once it is answered; a parked one stays open."""

    def __init__(self, upstream: ScriptedServer) -> None:
        self._answered: dict[str, asyncio.Event] = {}
        upstream.answers["tools/call"] = self.call
        upstream.answers["response"] = self.response

    async def call(self, posted: Posted, send: Send) -> None:
        identity = f"{posted.headers['mcp-session-id']}-{posted.id}"
        answered = self._answered[identity] = asyncio.Event()
        input_request = {"jsonrpc": "2.0", "id": identity, "method": "elicitation/create"}
        await begin_answer(send, kind=EVENTS)
        await send_more(send, event_bytes(input_request | {"params": PARAMS}))
        waits = {asyncio.ensure_future(stall(posted)), asyncio.ensure_future(answered.wait())}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await finish_answer(send, event_bytes(send_final_event(posted, text_result("no answer"))))

    async def response(self, posted: Posted, send: Send) -> None:
        self._answered[posted.id].set()
        await raw_answer(b"", 202)(posted, send)


def test_parked_calls_are_limited_for_each_caller_and_server(
    deployment: UpstreamDeployment,
) -> None:
    """Calls beyond the limits are refused with the reason."""
    limits: ParkingLimits = deployment.gate.services.upstreams.services.calls.parked.limits
    upstream, user, identity = deployment.registered("asks", sessions=map(str, range(400)))
    ElicitingUpstream(upstream)
    assert user.refresh(identity).status == 200
    deployment.offered(user, "mcp_asks__act")

    def call(person: UpstreamUser) -> str:
        return str(person.run("mcp_asks__act", {"n": 1})["result"].get("resultType"))

    with ThreadPoolExecutor(THREADS) as threads:
        mine = list(threads.map(lambda _: call(user), range(AT_ONCE // 4)))
        others = [deployment.of("acme", "asks", sub=f"caller-{n}") for n in range(AT_ONCE // 4)]
        theirs = list(threads.map(call, others))
    parked = deployment.gate.services.upstreams.services.calls.parked
    assert mine.count("input_required") == limits.caller
    assert theirs.count("input_required") == 16 - limits.caller
    assert len(parked) == 16
    deployment.assert_others_are_answered()
    assert user.ask("DELETE", f"{SERVERS}/{identity}").status == 204
    deployment.until(lambda: len(parked) == 0)
