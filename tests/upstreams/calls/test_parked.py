"""A call that is sent once and parked while its caller answers, in every replica and outage."""

import asyncio
import gc
import json
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from gatepost.secrets.keyring import KeyRing, create
from gatepost.storage import shared_store as shared_stores
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import (
    DeliverMessage,
    MemorySharedStore,
    MemorySubscription,
    MemoryTenantSharedStore,
    SharedStore,
)
from gatepost.storage.valkey.shared_store import ValkeySharedStore
from gatepost.tools.offers.offer import CallContext
from gatepost.upstreams.calls import other_replica
from gatepost.upstreams.calls.parked import ParkingLimits
from gatepost.upstreams.calls.parked_messages import READY
from gatepost.upstreams.connection import UpstreamResult
from tests.support.client_requests import (
    ALL_CAPABILITIES,
    accepted_form,
    call_with_responses,
    input_requests_of,
    next_round,
    result_text,
)
from tests.support.endpoint import META, Response, a_caller
from tests.support.processes import python_environment
from tests.upstreams.calls.test_calls import (
    CRM,
    Exchanged,
    ScriptedUpstreamCalls,
    UpstreamGate,
    asks_once,
    form,
    key_of,
    text_result,
)

TOOL = "mcp_crm__act"
QUICK_LIMITS = ParkingLimits(silent_s=1.5)
UNKNOWN_OUTCOME = "It is unknown whether crm carried out the call."
CHECK = "check before you call again"


def live_contexts() -> int:
    gc.collect()
    return sum(isinstance(context_object, CallContext) for context_object in gc.get_objects())


async def keyed(gate: UpstreamGate, key: str) -> Response:
    return await call_with_responses(gate.client, TOOL, meta={"io.gatepost/idempotency-key": key})


async def test_any_replica_reaches_the_one_that_holds_a_call(shared_store: SharedStore) -> None:
    upstream, keyring = ScriptedUpstreamCalls(asks_once, era="session"), KeyRing.ephemeral()
    here, remote = (
        UpstreamGate(upstream, shared_store=shared_store, keyring=keyring) for _ in range(2)
    )

    first = await call_with_responses(here.client, TOOL)
    rounds = [
        await next_round(gate.client, TOOL, first, {key_of(first): accepted_form(ok=False)})
        for gate in (remote, remote, here)
    ]

    assert {result_text(text) for text in rounds} == {"{'ok': False}"}
    assert upstream.ran() == 1
    assert len(upstream.exchanges[0].heard) == 1
    for gate in (here, remote):
        await gate.calls.aclose()


async def test_a_parked_call_leaves_no_subscription_behind() -> None:
    """Neither at the replica that has the call, nor at the one that passed an answer on."""
    shared_store, keyring = MemorySharedStore(), KeyRing.ephemeral()
    upstream = ScriptedUpstreamCalls(asks_once, era="session")
    here, there = (
        UpstreamGate(upstream, shared_store=shared_store, keyring=keyring) for _ in range(2)
    )
    topics = shared_store.for_tenant("acme")._followers

    first = await call_with_responses(here.client, TOOL)
    of_replica = [*topics]
    await next_round(there.client, TOOL, first, {key_of(first): accepted_form(ok=True)})
    assert ([*topics], len(of_replica)) == (of_replica, 1)
    for gate in (here, there):
        await gate.calls.aclose()
    assert topics == {}


async def test_a_parked_call_does_not_keep_its_first_request_context(
    shared_store: SharedStore,
) -> None:
    """Its arguments and client would stay in memory until the caller answers."""
    upstream = ScriptedUpstreamCalls(asks_once, era="session")
    gate = UpstreamGate(upstream, shared_store=shared_store, keyring=KeyRing.ephemeral())
    before = live_contexts()

    await call_with_responses(gate.client, TOOL)

    assert (len(gate.calls.parked), live_contexts()) == (1, before)
    await gate.calls.aclose()


async def test_a_second_client_request_and_a_large_result_come_from_another_replica(
    shared_store: SharedStore,
) -> None:
    async def asks_twice(exchange: Exchanged) -> UpstreamResult:
        await exchange.ask("elicitation/create", form("First?"))
        await exchange.ask("elicitation/create", form("Second?"))
        return text_result("x" * 500_000)

    upstream, keyring = ScriptedUpstreamCalls(asks_twice, era="session"), KeyRing.ephemeral()
    here, remote = (
        UpstreamGate(upstream, shared_store=shared_store, keyring=keyring) for _ in range(2)
    )

    first = await call_with_responses(here.client, TOOL)
    second = await next_round(remote.client, TOOL, first, {key_of(first): accepted_form(ok=True)})
    third = await next_round(remote.client, TOOL, second, {key_of(second): accepted_form(ok=True)})
    again = await next_round(here.client, TOOL, first, {key_of(first): accepted_form(ok=True)})

    assert input_requests_of(second)[key_of(second)]["params"]["message"] == "crm: Second?"
    assert result_text(third) == "x" * 500_000
    assert input_requests_of(again).keys() == input_requests_of(second).keys()
    assert upstream.ran() == 1
    for gate in (here, remote):
        await gate.calls.aclose()


class LossyTenantStore(MemoryTenantSharedStore):
    """A shared store that loses the first messages on replies, or refuses to subscribe to them."""

    refused = lost = 0

    async def follow(self, topic: str, deliver: DeliverMessage) -> MemorySubscription:
        if topic.startswith("parked-reply:") and self.refused:
            self.refused -= 1
            raise StoreUnavailable("the shared store does not take up a channel")
        return await super().follow(topic, deliver)

    async def publish(self, topic: str, message: bytes) -> None:
        if message == READY and self.lost:
            self.lost -= 1
        else:
            await super().publish(topic, message)


@pytest.fixture
def lossy_store(monkeypatch: pytest.MonkeyPatch) -> MemorySharedStore:
    """Return a shared store whose subscriptions are renewed soon."""
    monkeypatch.setattr(other_replica, "KEEP_ALIVE_S", 0.02)
    monkeypatch.setattr(other_replica, "LOST_S", 0.04)
    monkeypatch.setattr(shared_stores, "SUBSCRIBE_AGAIN_S", 0.01)
    monkeypatch.setattr(shared_stores, "MemoryTenantSharedStore", LossyTenantStore)
    return MemorySharedStore()


@pytest.mark.parametrize(("refused", "lost"), [(0, 1), (3, 0), (3, 1)])
async def test_the_next_step_is_found_without_its_message(
    lossy_store: MemorySharedStore, monkeypatch: pytest.MonkeyPatch, refused: int, lost: int
) -> None:
    """The message is lost, or the subscription fails and is renewed."""
    upstream, keyring = ScriptedUpstreamCalls(asks_once, era="session"), KeyRing.ephemeral()
    here, remote = (
        UpstreamGate(upstream, shared_store=lossy_store, keyring=keyring) for _ in range(2)
    )
    first = await call_with_responses(here.client, TOOL)
    monkeypatch.setattr(LossyTenantStore, "refused", refused)
    monkeypatch.setattr(LossyTenantStore, "lost", lost)

    second = await next_round(remote.client, TOOL, first, {key_of(first): accepted_form(ok=True)})

    assert result_text(second) == "{'ok': True}"
    assert upstream.ran() == 1
    for gate in (here, remote):
        await gate.calls.aclose()


async def test_a_replica_whose_messages_cannot_be_received_is_not_counted_as_gone(
    lossy_store: MemorySharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is told of the outage, and repeats its round."""
    upstream, keyring = ScriptedUpstreamCalls(asks_once, era="session"), KeyRing.ephemeral()
    limits = ParkingLimits(silent_s=0.1)
    here, remote = (
        UpstreamGate(upstream, shared_store=lossy_store, keyring=keyring, parking=limits)
        for _ in range(2)
    )
    first = await call_with_responses(here.client, TOOL)
    await here.calls.aclose()
    monkeypatch.setattr(LossyTenantStore, "refused", 1_000_000)

    second = await next_round(remote.client, TOOL, first, {key_of(first): accepted_form(ok=True)})

    assert second.status == 503


async def test_a_call_of_a_replica_that_is_gone_is_never_sent_again(
    shared_store: SharedStore,
) -> None:
    upstream, keyring = ScriptedUpstreamCalls(asks_once, era="session"), KeyRing.ephemeral()
    here, remote = (
        UpstreamGate(upstream, shared_store=shared_store, keyring=keyring, parking=QUICK_LIMITS)
        for _ in range(2)
    )
    first = await call_with_responses(here.client, TOOL)
    await here.calls.aclose()

    second = await next_round(remote.client, TOOL, first, {key_of(first): accepted_form(ok=True)})

    assert second.json["result"]["isError"]
    assert result_text(second).startswith(UNKNOWN_OUTCOME)
    assert CHECK in result_text(second)
    assert upstream.ran() == 1
    assert upstream.exchanges[0].cancelled == "The server stops"


CHILD = """
import asyncio, json, sys
from pathlib import Path
from gatepost.secrets.keyring import KeyRing
from gatepost.storage.valkey.shared_store import ValkeySharedStore
from tests.support.client_requests import call_with_responses
from tests.upstreams.calls.test_calls import UpstreamGate, ScriptedUpstreamCalls, asks_once

async def main(url, ring, marks):
    async def counted(exchange):
        with Path(marks).open("a") as file:
            file.write("ran\\n")
        return await asks_once(exchange)

    upstream = ScriptedUpstreamCalls(counted, era="session")
    gate = UpstreamGate(
        upstream, shared_store=ValkeySharedStore(url), keyring=KeyRing.load("file:" + ring)
    )
    first = await call_with_responses(gate.client, "mcp_crm__act")
    print(json.dumps(first.json["result"]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_replica_killed_during_a_client_request_leaves_an_unknown_outcome(
    valkey: str, tmp_path: Path
) -> None:
    """The tool runs once, and the caller learns that the outcome is unknown."""
    ring, marks = tmp_path / "ring.json", tmp_path / "marks"
    create(ring)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CHILD,
        valkey,
        str(ring),
        str(marks),
        stdout=asyncio.subprocess.PIPE,
        env=python_environment({}),
    )
    assert child.stdout is not None
    result = json.loads(await asyncio.wait_for(child.stdout.readline(), 60))
    child.send_signal(signal.SIGKILL)
    await child.wait()

    shared_store = ValkeySharedStore(valkey)
    never = ScriptedUpstreamCalls(asks_once, era="session")
    gate = UpstreamGate(
        never, shared_store=shared_store, keyring=KeyRing.load(f"file:{ring}"), parking=QUICK_LIMITS
    )
    (key,) = result["inputRequests"]
    state = result["requestState"]
    second = await call_with_responses(
        gate.client, TOOL, inputResponses={key: accepted_form(ok=True)}, requestState=state
    )

    assert result_text(second).startswith(UNKNOWN_OUTCOME)
    assert never.ran() == 0
    assert marks.read_text() == "ran\n"
    await shared_store.aclose()


async def test_a_state_belongs_to_one_caller() -> None:
    """Another caller, other arguments and another tool are refused before anything is sent."""
    upstream = ScriptedUpstreamCalls(asks_once, era="session")
    gate = UpstreamGate(upstream)
    first = await call_with_responses(gate.client, TOOL)
    answers = {key_of(first): accepted_form(ok=True)}

    other_arguments = await next_round(gate.client, TOOL, first, answers, {"a": 1})
    gate.client.caller = a_caller(subject="bob")
    other_caller = await next_round(gate.client, TOOL, first, answers)
    gate.client.caller = a_caller(tenant_id="globex")
    other_tenant = await next_round(gate.client, TOOL, first, answers)

    assert {answer.error for answer in (other_arguments, other_caller, other_tenant)} == {
        (400, -32602)
    }
    assert upstream.ran() == 1
    assert upstream.exchanges[0].heard == []


async def test_another_upstream_under_the_same_name_gets_no_answer() -> None:
    upstream, keyring = ScriptedUpstreamCalls(asks_once, era="session"), KeyRing.ephemeral()
    before = UpstreamGate(upstream, keyring=keyring)
    after = UpstreamGate(upstream, keyring=keyring, server=msgspec.structs.replace(CRM, id="other"))
    first = await call_with_responses(before.client, TOOL)

    second = await next_round(after.client, TOOL, first, {key_of(first): accepted_form(ok=True)})

    assert second.json["result"]["isError"]
    assert "Call again" in result_text(second)
    assert upstream.ran() == 1
    await before.calls.aclose()


async def test_a_repeated_first_round_with_a_key_meets_the_parked_call(
    shared_store: SharedStore,
) -> None:
    upstream, keyring = ScriptedUpstreamCalls(asks_once, era="session"), KeyRing.ephemeral()
    here = UpstreamGate(upstream, shared_store=shared_store, keyring=keyring)
    remote = UpstreamGate(
        upstream, shared_store=shared_store, keyring=keyring, records=here.client.records
    )

    first, again = await keyed(here, "k-1"), await keyed(remote, "k-1")
    assert input_requests_of(first) == input_requests_of(again)
    assert upstream.ran() == 1

    second = await next_round(remote.client, TOOL, again, {key_of(again): accepted_form(ok=True)})
    late = await next_round(here.client, TOOL, first, {key_of(first): accepted_form(ok=False)})

    assert result_text(second) == result_text(late) == "{'ok': True}"
    assert upstream.ran() == 1
    assert (await keyed(remote, "k-2")).json["result"]["resultType"] == "input_required"
    assert upstream.ran() == 2
    for gate in (here, remote):
        await gate.calls.aclose()


async def test_a_caller_parks_no_more_than_its_share() -> None:
    """Beyond the limit the upstream gets an error for its question and ends the call."""

    async def asks(exchange: Exchanged) -> UpstreamResult:
        answer = await exchange.ask("elicitation/create", form())
        return text_result(answer.get("error", {}).get("message", "answered"))

    upstream = ScriptedUpstreamCalls(asks, era="session")
    gate = UpstreamGate(upstream, parking=ParkingLimits(caller=2))
    parked = [await call_with_responses(gate.client, TOOL) for _ in range(2)]
    refused = await call_with_responses(gate.client, TOOL)
    gate.client.caller = a_caller(subject="bob")
    other = await call_with_responses(gate.client, TOOL)

    assert all(input_requests_of(parked) for parked in (*parked, other))
    assert result_text(refused) == "The client cannot be asked now."
    assert len(gate.calls.parked) == 3
    await gate.calls.aclose()


async def test_an_upstream_cannot_ask_a_client_without_capabilities() -> None:
    """No capability is declared to the upstream, and its request is refused."""

    async def asks(exchange: Exchanged) -> UpstreamResult:
        answer = await exchange.ask("elicitation/create", form())
        return text_result(str(answer["error"]["code"]))

    upstream = ScriptedUpstreamCalls(asks, era="session")
    gate = UpstreamGate(upstream)

    assert result_text(await call_with_responses(gate.client, TOOL, capabilities={})) == "-32601"
    assert upstream.exchanges[0].options.capabilities == {}


async def test_a_disallowed_capability_is_neither_declared_nor_passed_on() -> None:
    async def asks(exchange: Exchanged) -> UpstreamResult:
        answer = await exchange.ask("roots/list", {})
        return text_result(str(answer["error"]["code"]))

    upstream = ScriptedUpstreamCalls(asks, era="session")
    gate = UpstreamGate(upstream)

    assert result_text(await call_with_responses(gate.client, TOOL)) == "-32601"
    declared = upstream.exchanges[0].options.capabilities
    assert declared == {"elicitation": ALL_CAPABILITIES["elicitation"]}
    assert META not in str(upstream.exchanges[0].params)
