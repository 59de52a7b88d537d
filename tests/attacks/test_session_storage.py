"""What one caller of an older revision could have the stores keep, without any limit."""

import asyncio
import json
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.mcp.sessions.channel import CHANGES_IN_A_ROW, CHANGES_PER_S, NEW_AT_ONCE, NEW_PER_S
from gatepost.mcp.sessions.resumable import FINISHED_S, EventLog, EventLogs
from gatepost.mcp.sessions.settings import MAX_WATCHED_CHARACTERS
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import MemorySharedStore
from tests.support.client_requests import (
    ACCEPTED_FORM,
    next_request,
    opened_pair,
    session_result_text,
)
from tests.support.endpoint import JSON, EndpointClient, a_caller, message
from tests.support.endpoint_clients import EndpointPair
from tests.support.measuring import ManualClock
from tests.support.runners import run_until

WITHIN_S = 10


def stored_notes(replicas: EndpointPair, kind: str) -> list[str]:
    """Return the notes of one kind at the shared store."""
    stored = replicas.one.shared_store.for_tenant("acme")._notes  # type: ignore[attr-defined]
    return [name for name in stored if f"/{kind}/" in name]


async def waiting_call(replicas: EndpointPair, identity: Any = 7) -> Any:
    """Start a call that asks; return it and the id of its client request."""
    live = replicas.call(replicas.one, "ask_name", identity=identity)
    return live, (await next_request(live))["id"]


async def test_answers_are_stored_only_for_pending_client_requests() -> None:
    """A caller could store megabytes by answering old client requests again and again."""
    replicas = await opened_pair()
    live, once = await waiting_call(replicas)
    assert await replicas.answer(replicas.two, once, result=ACCEPTED_FORM) == 202
    assert await session_result_text(live) == (False, "accept Ann")
    live, never = await waiting_call(replicas)
    await replicas.cancel(replicas.two, 7)
    await live.over()

    async def is_cleared() -> bool:
        return stored_notes(replicas, "asked") == []

    await run_until(is_cleared)
    for identity in (once, never):
        assert await replicas.answer(replicas.two, identity, result=ACCEPTED_FORM) == 202
    assert stored_notes(replicas, "answer") == []


async def test_a_client_request_is_answered_once() -> None:
    """A second answer is ignored, also if it arrives before the first is read."""
    replicas = await opened_pair()
    live, identity = await waiting_call(replicas)
    refused = {"action": "decline"}
    answers = [
        replicas.answer(replicas.two, identity, result=answer)
        for answer in (ACCEPTED_FORM, refused)
    ]

    assert await asyncio.gather(*answers) == [202, 202]
    assert await session_result_text(live) == (False, "accept Ann")
    assert stored_notes(replicas, "answer") == stored_notes(replicas, "asked") == []


pack = Pack("talks")


@pack.tool()
async def tell(ctx: CallContext, size: int) -> str:
    """Report, and answer so many characters."""
    await ctx.progress(1)
    return "x" * size


async def statuses_of(replicas: EndpointPair, events: list[str]) -> list[int]:
    """Return the statuses of a GET with each of these as its last event."""
    statuses = []
    for event in events:
        live = await replicas.resume(replicas.one, event).opened()
        statuses.append(live.status)
        live.hang_up()
        await live.over()
    return statuses


async def test_the_stored_events_of_a_callers_ended_streams_are_limited_in_bytes() -> None:
    """The newest events are kept, and those of another caller are not affected."""
    replicas = await EndpointPair(pack.tools.values()).open()
    replicas.one.endpoint._handshake._event_logs = EventLogs(max_bytes=50_000)
    other = EndpointPair(pack.tools.values())
    other.one = replicas.one
    replicas.become(a_caller(subject="bob"))
    await other.open()
    others = [await first_event_of_a_call(other)]
    replicas.become(a_caller())
    events = [await first_event_of_a_call(replicas) for _ in range(6)]

    assert await statuses_of(replicas, events) == [400, 400, 400, 400, 200, 200]
    replicas.become(a_caller(subject="bob"))
    assert await statuses_of(other, others) == [200]


async def first_event_of_a_call(replicas: EndpointPair) -> str:
    """Return the id of the first event of a call that is over."""
    live = replicas.call(replicas.one, "tell", size=20_000)
    identity, _ = await live.event()
    await live.over()
    return identity


async def test_stored_events_of_ended_streams_expire() -> None:
    """They expire for callers that never come back, too."""
    clock = ManualClock()
    archive = EventLogs(max_bytes=10_000, clock=clock)
    replicas = await EndpointPair(pack.tools.values()).open()
    session = replicas.one.endpoint._handshake._sessions.find(replicas.session.encode(), a_caller())
    assert session is not None
    room = await replicas.one.server.session_registry.channel("acme", session)
    assert room is not None
    for number in range(50):
        archive.add(EventLog(room, b"1", archive, ("acme", "i", "user", str(number))))
    assert len(archive._finished) == 50
    clock.now += FINISHED_S
    last = ("acme", "i", "user", "last")
    archive.add(EventLog(room, b"1", archive, last))

    assert [*archive._finished] == [last]
    assert {*archive._ended_bytes._bytes} == {last, "acme"}


async def test_the_stored_events_of_a_tenants_ended_streams_are_limited_in_bytes() -> None:
    """
    Many callers of one tenant do not fill the shared store either; another tenant is not touched.
    """
    replicas = await EndpointPair(pack.tools.values()).open()
    archive = replicas.one.endpoint._handshake._event_logs = EventLogs(max_of_tenant=50_000)
    for number in range(6):
        replicas.become(a_caller(subject=f"person-{number}"))
        await replicas.open()
        await first_event_of_a_call(replicas)

    assert archive._ended_bytes.bytes_of(("acme", "", "", ""))[1] <= 50_000
    assert archive._running._bytes == {}
    replicas.become(a_caller(tenant_id="globex"))
    await replicas.open()
    assert await statuses_of(replicas, [await first_event_of_a_call(replicas)]) == [200]


async def test_an_answer_that_is_too_large_to_store_is_sent_but_not_replayed() -> None:
    """A client that resumes the stream learns that the answer was too large to keep."""
    replicas = await EndpointPair(pack.tools.values()).open()
    replicas.one.endpoint._handshake._event_logs = EventLogs(max_bytes=10_000)
    live = replicas.call(replicas.one, "tell", size=20_000)
    first, _ = await live.event()
    (answer,) = await live.rest()
    again = await replicas.resume(replicas.one, first).opened()
    (told_later,) = await again.rest()

    assert len(answer["result"]["content"][0]["text"]) == 20_000
    assert "too large to keep" in told_later["error"]["message"]


NEW_SESSION_RATE, CHANGES = (NEW_PER_S, NEW_AT_ONCE), (CHANGES_PER_S, CHANGES_IN_A_ROW)


class ScriptedBuckets(MemorySharedStore):
    """A shared store whose buckets are as the test says."""

    wait: float | None = 0.0
    empty = NEW_SESSION_RATE

    def for_tenant(self, tenant: str) -> Any:
        shared_store = super().for_tenant(tenant)

        async def spend(bucket: str, *, rate: float, burst: float) -> float:
            if self.wait is None:
                raise StoreUnavailable("away")
            return self.wait if (rate, burst) == self.empty else 0.0

        shared_store.spend = spend  # type: ignore[method-assign]
        return shared_store


SESSION_WRITES = [
    ("setLevel", "POST", message("logging/setLevel", {"level": "error"})),
    ("GET", "GET", b""),
    ("DELETE", "DELETE", b""),
]


async def write(client: EndpointClient, verb: str, body: bytes) -> int:
    """Return the status of a request that makes a fresh session store something."""
    named = ("mcp-session-id", await client.open())
    hang_up = asyncio.Event()
    hang_up.set()
    accept = ("accept", "text/event-stream, application/json")
    answer = await client.send(body, [JSON, accept, named], verb=verb, hang_up=hang_up)
    return answer.status


@pytest.mark.parametrize("empty", [NEW_SESSION_RATE, CHANGES])
@pytest.mark.parametrize(("verb", "body"), [row[1:] for row in SESSION_WRITES])
async def test_new_sessions_are_rate_limited(
    verb: str, body: bytes, empty: tuple[float, float]
) -> None:
    """A loop could fill the database; while the shared store is out, no caller is refused."""
    shared_store = ScriptedBuckets()
    shared_store.empty = empty
    client = EndpointClient(shared_store=shared_store)
    response = await write(client, verb, body)
    assert response in (200, 204)
    shared_store.wait = 3.0
    assert await write(client, verb, body) == 429
    shared_store.wait = None
    assert await write(client, verb, body) == response


async def test_the_rate_limit_of_new_sessions_does_not_affect_open_sessions() -> None:
    """An open session is used and deleted while the limit refuses new sessions."""
    shared_store = ScriptedBuckets()
    client = EndpointClient(shared_store=shared_store)
    session = await client.open()
    level = message("logging/setLevel", {"level": "error"})
    assert (await client.within(session, level)).status == 200
    shared_store.wait = 3.0
    assert (await client.within(session, level)).status == 200
    assert (await client.send(b"", [("mcp-session-id", session)], verb="DELETE")).status == 204


async def test_the_subscriptions_of_a_session_are_limited_in_characters() -> None:
    """A hundred URIs of maximum length took most of a megabyte for each session."""
    pack = Pack("documents")

    @pack.resource("doc://{name}")
    async def doc(ctx: CallContext, name: str) -> str:
        """Return any document."""
        return name

    client = EndpointClient([*pack.templates.values()])
    session = await client.open()
    answers = []
    for number in range(40):
        uri = f"doc://{number:02}" + "x" * 1000
        body = message("resources/subscribe", {"uri": uri})
        answers.append(json.loads((await client.within(session, body)).body))

    taken = sum("result" in answer for answer in answers)
    assert taken == MAX_WATCHED_CHARACTERS // 1008
    assert answers[-1]["error"]["code"] == -32000
