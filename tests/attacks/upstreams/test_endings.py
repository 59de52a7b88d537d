"""When access ends: nothing is asked, nothing waits, no program runs, and nothing is left."""

import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gatepost.policy.revocation.revocation_records import revocation
from gatepost.runtime.erasure import TenantErasure
from gatepost.storage.revocations import RevocationRecord
from gatepost.upstreams.calls import parked
from tests.attacks.upstreams.conftest import (
    SERVERS,
    WITHIN_S,
    UpstreamDeployment,
    UpstreamUser,
    deployment_of,
)
from tests.support.internet import EVENTS, Posted, begin_answer, event_bytes, stall
from tests.support.issuers import Idp, Send

QUESTION = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "elicitation/create",
    "params": {
        "message": "Go on?",
        "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
    },
}


PROGRAM = """
import json, os, subprocess, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

for line in sys.stdin:
    asked = json.loads(line)
    method, identity = asked.get("method"), asked.get("id")
    if method == "initialize":
        info = {"name": "notes", "version": "1"}
        told = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        send(id=identity, result=told)
    elif method == "tools/list":
        tool = {"name": "ask", "inputSchema": {"type": "object"}}
        send(id=identity, result={"tools": [tool]})
    elif method == "tools/call":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        form = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
        message = f"processes {os.getpid()} and {child.pid}"
        params = {"message": message, "requestedSchema": form}
        send(id=7, method="elicitation/create", params=params)
    elif identity is not None and method is not None:
        send(id=identity, error={"code": -32601, "message": "no such method"})
"""
"""A program of the session era that starts another one, and then asks."""


class StalledStream:
    """A stream that the upstream holds open, and knows when it is closed."""

    def __init__(self, *first: object) -> None:
        self.first = first
        self.opened, self.closed = threading.Event(), threading.Event()

    async def __call__(self, posted: Posted, send: Send) -> None:
        await begin_answer(send, kind=EVENTS)
        for message in self.first:
            await send(
                {"type": "http.response.body", "body": event_bytes(message), "more_body": True}
            )
        self.opened.set()
        await stall(posted)
        self.closed.set()


@pytest.fixture
def deployment(idp: Idp) -> Iterator[UpstreamDeployment]:
    with deployment_of(idp) as scene:
        yield scene


def suspend(deployment: UpstreamDeployment, tenants: Iterable[str]) -> None:
    """Suspend tenants as a reload of the configuration does."""

    async def order() -> None:
        deployment.gate.services.revocations.configure(tenants)

    deployment.gate.run(order())


def parked_calls(deployment: UpstreamDeployment) -> int:
    return len(deployment.gate.services.upstreams.services.calls.parked)


def park_calls(deployment: UpstreamDeployment, *people: UpstreamUser) -> list[StalledStream]:
    """Park a call for each of these people of one tenant; return the streams of the upstream."""
    upstream, user, identity = deployment.registered("asks", sessions=map(str, range(9)))
    assert user.refresh(identity).status == 200
    deployment.offered(user, "mcp_asks__act")
    parked = []
    for person in people:
        parked.append(StalledStream(QUESTION))
        upstream.answers["tools/call"] = parked[-1]
        answer = person.run("mcp_asks__act")["result"]
        assert answer["resultType"] == "input_required", answer
    assert parked_calls(deployment) == len(people)
    return parked


def test_a_revocation_ends_the_parked_calls_of_its_caller_alone(
    deployment: UpstreamDeployment,
) -> None:
    alice, bob = (deployment.of("acme", "asks", sub=name) for name in ("alice", "bob"))
    of_alice, of_bob = park_calls(deployment, alice, bob)
    selectors = RevocationRecord(
        id="", tenant="acme", subject="alice", created_at=0.0, created_by="test"
    )
    order = revocation(
        selectors, now=time.time(), leeway_s=0, longest_s=3_600, kept_s=3_600, block_s=0
    )
    services = deployment.gate.services

    deployment.gate.run(services.records.revocations.put(order))
    deployment.gate.run(services.revocations.read_changes())

    assert of_alice.closed.wait(WITHIN_S)
    assert parked_calls(deployment) == 1
    assert not of_bob.closed.is_set()


def test_a_parked_call_ends_with_its_token(
    deployment: UpstreamDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the same leeway as a running call; a parked call with a newer token continues."""
    monkeypatch.setattr(parked, "GRACE_S", 0.5)
    soon = int(time.time()) + 4
    alice = deployment.of("acme", "asks", sub="alice", exp=soon)
    bob = deployment.of("acme", "asks", sub="bob")
    of_alice, of_bob = park_calls(deployment, alice, bob)

    assert of_alice.closed.wait(WITHIN_S)
    assert time.time() >= soon
    assert parked_calls(deployment) == 1
    assert not of_bob.closed.is_set()


def test_a_suspension_ends_the_programs_of_parked_calls(idp: Idp, tmp_path: Path) -> None:
    """The program and its child processes end; those of the other tenant continue."""
    script = tmp_path / "notes.py"
    script.write_text(PROGRAM, encoding="utf-8")
    table = {
        "name": "notes",
        "tenants": ["acme", "globex"],
        "command": sys.executable,
        "args": [str(script)],
    }
    with deployment_of(idp, more=[table]) as scene:
        processes = {}
        for tenant in ("acme", "globex"):
            user = scene.of(tenant, "notes")
            scene.offered(user, "mcp_notes__ask")
            text = str(user.run("mcp_notes__ask")["result"]["inputRequests"])
            match = re.search(r"processes (\d+) and (\d+)", text)
            assert match is not None, text
            processes[tenant] = [Path(f"/proc/{pid}") for pid in match.groups()]
        assert parked_calls(scene) == 2

        suspend(scene, ["acme"])

        scene.until(lambda: not any(process.exists() for process in processes["acme"]))
        assert parked_calls(scene) == 1
        assert all(process.exists() for process in processes["globex"])


def test_a_suspension_ends_a_parked_call(deployment: UpstreamDeployment) -> None:
    """The upstream's stream is closed, and the other tenant's parked call continues."""
    parked = {}
    for tenant in ("acme", "globex"):
        sessions = ["one", "two", "three"]
        upstream, user, identity = deployment.registered(
            f"asks_{tenant}", tenant, sessions=sessions
        )
        upstream.answers["tools/call"] = parked[tenant] = StalledStream(QUESTION)
        assert user.refresh(identity).status == 200
        deployment.offered(user, f"mcp_asks_{tenant}__act")
        answer = user.run(f"mcp_asks_{tenant}__act")["result"]
        requests = [
            (request.method, request.headers.get("mcp-session-id")) for request in upstream.seen
        ]
        assert answer["resultType"] == "input_required", (answer, requests)
        assert answer["requestState"]
    assert parked_calls(deployment) == 2
    assert not parked["acme"].closed.is_set()

    suspend(deployment, ["acme"])

    assert parked["acme"].closed.wait(WITHIN_S)
    assert parked_calls(deployment) == 1
    assert not parked["globex"].closed.is_set()


def test_a_suspension_ends_running_calls_and_streams(deployment: UpstreamDeployment) -> None:
    """Background tasks end too: no list is fetched, and no change is followed."""
    upstream, user, identity = deployment.registered("slow")
    calls, stream = StalledStream(), StalledStream()
    upstream.answers["tools/call"] = calls
    upstream.answers["subscriptions/listen"] = stream
    assert user.refresh(identity).status == 200
    deployment.offered(user, "mcp_slow__act")
    assert stream.opened.wait(WITHIN_S)
    caller = threading.Thread(target=lambda: user.call("mcp_slow__act"))
    caller.start()
    assert calls.opened.wait(WITHIN_S)

    suspend(deployment, ["acme"])
    caller.join(WITHIN_S)
    assert not caller.is_alive()
    assert calls.closed.wait(WITHIN_S)
    assert stream.closed.wait(WITHIN_S)
    count = len(upstream.seen)
    assert user.call("mcp_slow__act").status == 403
    assert user.refresh(identity).status == 403
    assert user.ask("PATCH", f"{SERVERS}/{identity}", {"description": "d"}).status == 403
    assert len(upstream.seen) == count
    globex = deployment.of("globex")
    assert globex.call("mcp_good__act").status == 200

    suspend(deployment, [])
    deployment.offered(deployment.of("acme"), "mcp_slow__act")


def test_an_erased_tenant_keeps_no_upstreams(
    deployment: UpstreamDeployment, tmp_path: Path
) -> None:
    """Registrations, catalogues, pins and keys are gone, and no cache restores them."""
    upstream, user, identity = deployment.registered("gone", api_key="sk-to-be-erased-0123")
    assert user.refresh(identity).status == 200
    deployment.offered(user, "mcp_gone__act")
    assert user.call("mcp_gone__act").status == 200
    services = deployment.gate.services

    suspend(deployment, ["acme"])
    erasure = TenantErasure("acme", services.records, services.shared_store, tmp_path)
    deployment.gate.run(erasure.run(lambda line: None))
    remaining = deployment.gate.run(erasure.inventory())
    assert remaining.is_nothing, remaining
    suspend(deployment, [])

    count = len(upstream.seen)
    assert user.ask("GET", f"{SERVERS}/{identity}").status == 404
    deployment.until(lambda: "mcp_gone__act" not in user.names())
    assert user.call("mcp_gone__act").status == 404
    assert len(upstream.seen) == count
    deployment.offered(user, "mcp_good__act")
    assert deployment.of("globex").call("mcp_good__act").status == 200
