"""A suspended tenant's upstreams: nothing is asked, nothing waits, and nothing is left of it."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gatepost.runtime.erasure import TenantErasure
from tests.attacks.upstreams.conftest import SERVERS, WITHIN_S, Scene, scene_of
from tests.support.issuers import Idp, Send
from tests.upstreams.transport.conftest import (
    EVENTS,
    Posted,
    begin,
    event,
    stall,
)

QUESTION = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "elicitation/create",
    "params": {
        "message": "Go on?",
        "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
    },
}


class Held:
    """A stream that the upstream holds open, and knows when it is closed."""

    def __init__(self, *first: object) -> None:
        self.first = first
        self.opened, self.closed = threading.Event(), threading.Event()

    async def __call__(self, posted: Posted, send: Send) -> None:
        await begin(send, kind=EVENTS)
        for one in self.first:
            await send({"type": "http.response.body", "body": event(one), "more_body": True})
        self.opened.set()
        await stall(posted)
        self.closed.set()


@pytest.fixture
def scene(idp: Idp) -> Iterator[Scene]:
    with scene_of(idp) as made:
        yield made


def suspend(scene: Scene, tenants: Iterable[str]) -> None:
    """Suspend tenants as a reload of the configuration does."""
    loop = scene.gate.loop
    assert loop is not None

    async def order() -> None:
        scene.gate.services.cutoffs.configure(tenants)

    asyncio.run_coroutine_threadsafe(order(), loop).result(WITHIN_S)


def test_a_suspension_ends_a_parked_call(scene: Scene) -> None:
    """The upstream hears it, and the other tenant's parked call goes on."""
    held = {}
    for tenant in ("acme", "globex"):
        house, user, identity = scene.moved_in(f"asks_{tenant}", tenant)
        house.has_sessions("one", "two", "three")
        house.answers["tools/call"] = held[tenant] = Held(QUESTION)
        assert user.refresh(identity).status == 200
        scene.offered(user, f"mcp_asks_{tenant}__act")
        answer = user.run(f"mcp_asks_{tenant}__act")["result"]
        assert answer["resultType"] == "input_required", answer
        assert answer["requestState"]
    assert len(scene.gate.services.upstreams.services.calls.parked) == 2
    assert not held["acme"].closed.is_set()

    suspend(scene, ["acme"])

    assert held["acme"].closed.wait(WITHIN_S)
    assert len(scene.gate.services.upstreams.services.calls.parked) == 1
    assert not held["globex"].closed.is_set()


def test_a_suspension_ends_running_calls_and_streams(scene: Scene) -> None:
    """Also the background work: no list is fetched, and no change is followed."""
    house, user, identity = scene.moved_in("slow")
    calls, stream = Held(), Held()
    house.answers["tools/call"] = calls
    house.answers["subscriptions/listen"] = stream
    assert user.refresh(identity).status == 200
    scene.offered(user, "mcp_slow__act")
    assert stream.opened.wait(WITHIN_S)
    caller = threading.Thread(target=lambda: user.call("mcp_slow__act"))
    caller.start()
    assert calls.opened.wait(WITHIN_S)

    suspend(scene, ["acme"])
    caller.join(WITHIN_S)
    assert not caller.is_alive()
    assert calls.closed.wait(WITHIN_S)
    assert stream.closed.wait(WITHIN_S)
    asked = len(house.seen)
    assert user.call("mcp_slow__act").status == 403
    assert user.refresh(identity).status == 403
    assert user.ask("PATCH", f"{SERVERS}/{identity}", {"description": "d"}).status == 403
    assert len(house.seen) == asked
    globex = scene.of("globex")
    assert globex.call("mcp_good__act").status == 200

    suspend(scene, [])
    scene.offered(scene.of("acme"), "mcp_slow__act")


def test_an_erased_tenant_begins_anew(scene: Scene, tmp_path: Path) -> None:
    """Its registrations, catalogues, pins and keys are gone, and no memory brings them back."""
    house, user, identity = scene.moved_in("gone", api_key="sk-to-be-erased-0123")
    assert user.refresh(identity).status == 200
    scene.offered(user, "mcp_gone__act")
    assert user.call("mcp_gone__act").status == 200
    services = scene.gate.services
    loop = scene.gate.loop
    assert loop is not None

    suspend(scene, ["acme"])
    erasure = TenantErasure("acme", services.records, services.relay, tmp_path)
    asyncio.run_coroutine_threadsafe(erasure.run(lambda line: None), loop).result(WITHIN_S)
    left = asyncio.run_coroutine_threadsafe(erasure.found(), loop).result(WITHIN_S)
    assert left.is_nothing, left
    suspend(scene, [])

    asked = len(house.seen)
    assert user.ask("GET", f"{SERVERS}/{identity}").status == 404
    scene.until(lambda: "mcp_gone__act" not in user.names())
    assert user.call("mcp_gone__act").status == 404
    assert len(house.seen) == asked
    scene.offered(user, "mcp_good__act")
    assert scene.of("globex").call("mcp_good__act").status == 200
