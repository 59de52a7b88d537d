"""The GET stream of a session: what belongs to no request."""

import asyncio
from typing import Any

import msgspec
import pytest

from gatepost import CallContext, Pack
from gatepost.mcp.sessions.channel import revise
from gatepost.mcp.sessions.open_streams import LOOK_EVERY
from gatepost.storage.errors import StoreUnavailable
from tests.support.endpoint import EndpointClient, a_caller, message
from tests.support.endpoint_clients import EndpointPair, OpenExchange

pack = Pack("changing")
LEGACY_REVISIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]


@pack.tool()
async def rename(ctx: CallContext) -> str:
    """Announce a change of the list of tools."""
    await ctx.changes.listed("tools")
    return "renamed"


@pack.tool()
async def touch(ctx: CallContext, uri: str, times: int = 1) -> str:
    """Change a document, again and again."""
    for _ in range(times):
        await ctx.changes.updated(uri)
    return "touched"


@pytest.fixture
async def replicas() -> EndpointPair:
    return await EndpointPair(pack.tools.values()).open()


async def pass_keep_alive_interval(client: EndpointClient, times: int = 1) -> None:
    """Let the time between two keep-alive comments pass for every stream of a process."""
    for _ in range(times):
        for _ in range(client.streams.steps):
            client.streams.check_next()
        await run_ready_tasks()


async def run_ready_tasks() -> None:
    """Let every task that is ready run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def call(replicas: EndpointPair, client: EndpointClient, tool: str, **arguments: Any) -> None:
    params = {"name": tool, "arguments": arguments}
    assert (await client.within(replicas.session, message("tools/call", params))).status == 200


async def subscribe(replicas: EndpointPair, *uris: str) -> None:
    """Subscribe the session to documents."""
    for client in (replicas.one, replicas.two):
        client.endpoint._handshake._server.may_read = lambda caller, uri: True  # type: ignore[method-assign]
    session = replicas.one.endpoint._handshake._sessions.find(replicas.session.encode(), a_caller())
    assert session is not None
    sessions, shared_store = (
        replicas.one.records.for_tenant("acme").sessions,
        replicas.one.shared_store.for_tenant("acme"),
    )
    await revise(
        sessions, shared_store, session, lambda r: msgspec.structs.replace(r, subscriptions=uris)
    )


@pytest.mark.requirement("S-09", "DE-12", "S-10")
@pytest.mark.parametrize("version", LEGACY_REVISIONS)
async def test_s_09_a_get_stream_has_the_messages_that_belong_to_no_request(version: str) -> None:
    """The stream at one process has a change made at the other, and no response."""
    replicas = await EndpointPair(pack.tools.values(), version=version).open()
    live = await replicas.get(replicas.one).opened()

    await call(replicas, replicas.two, "rename")

    assert (live.status, live.headers["content-type"]) == (200, "text/event-stream")
    assert live.headers["cache-control"] == "no-store"
    assert (await live.event())[1] == {
        "jsonrpc": "2.0",
        "method": "notifications/tools/list_changed",
        "params": {},
    }
    live.hang_up()
    await live.over()
    assert len(replicas.one.streams) == 0


@pytest.mark.requirement("S-09")
async def test_s_09_a_get_without_event_streams_in_accept_is_refused(
    replicas: EndpointPair,
) -> None:
    """The answer is 406, as GET gives only event streams."""
    headers = [("accept", "application/json"), ("mcp-session-id", replicas.session)]

    assert (await replicas.one.send(b"", headers, verb="GET")).error == (406, -32600)


@pytest.mark.requirement("S-11")
@pytest.mark.parametrize("lost", [False, True])
async def test_s_11_only_the_newest_stream_of_a_session_gets_messages(
    replicas: EndpointPair, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """The older stream closes at the other process, too, even if the notification is lost."""
    older = await replicas.get(replicas.one).opened()
    await run_ready_tasks()
    if lost:

        async def lose_message(topic: str, message: bytes) -> None:
            return

        monkeypatch.setattr(replicas.one.shared_store.for_tenant("acme"), "publish", lose_message)
    newer = await replicas.get(replicas.two).opened()
    await run_ready_tasks()
    if lost:
        monkeypatch.undo()
        await pass_keep_alive_interval(replicas.one, LOOK_EVERY)
    assert await older.rest() == []

    await call(replicas, replicas.one, "rename")

    assert (await newer.event())[1]["method"] == "notifications/tools/list_changed"
    newer.hang_up()
    await newer.over()
    await older.over()


@pytest.mark.requirement("S-11")
async def test_s_11_each_session_has_a_stream_of_its_own(replicas: EndpointPair) -> None:
    """The client of another session gets its own messages and ends no other stream."""
    mine = await replicas.get(replicas.one).opened()
    await replicas.open()
    other = await replicas.get(replicas.one).opened()

    await call(replicas, replicas.two, "rename")

    for live in (mine, other):
        assert (await live.event())[1]["method"] == "notifications/tools/list_changed"
        live.hang_up()
        await live.over()


@pytest.mark.requirement("S-10", "SEC-04")
async def test_s_10_no_notification_of_another_tenant_arrives(replicas: EndpointPair) -> None:
    """The stream has no change of another tenant."""
    live = await replicas.get(replicas.one).opened()
    foreign = EndpointPair(pack.tools.values())
    foreign.one, mine = replicas.two, replicas.session
    replicas.two.caller = a_caller(tenant_id="globex")
    await foreign.open()
    await call(foreign, replicas.two, "rename")
    replicas.two.caller = a_caller()
    replicas.session = mine
    await call(replicas, replicas.two, "touch", uri="x")
    await run_ready_tasks()

    live.hang_up()
    await live.over()
    assert await live.rest() == []


@pytest.mark.requirement("S-10")
async def test_s_10_only_subscribed_resources_are_announced(replicas: EndpointPair) -> None:
    """Many changes before the client reads are one message."""
    await subscribe(replicas, "file:///a")
    slow = replicas.get(replicas.one, slow=True)
    await slow.opened()
    await run_ready_tasks()
    await call(replicas, replicas.two, "touch", uri="file:///b")
    await call(replicas, replicas.two, "touch", uri="file:///a", times=1000)
    await call(replicas, replicas.two, "rename")
    slow.reading.set()

    events = [(await slow.event())[1] for _ in range(2)]

    assert events[0]["method"] == "notifications/resources/updated"
    assert events[0]["params"] == {"uri": "file:///a"}
    assert events[1]["method"] == "notifications/tools/list_changed"
    slow.hang_up()
    await slow.over()


@pytest.mark.requirement("S-10")
async def test_s_10_a_new_subscription_applies_to_an_open_stream(replicas: EndpointPair) -> None:
    """The process of the open stream learns of the subscription made at the other one."""
    live = await replicas.get(replicas.one).opened()
    await run_ready_tasks()
    await subscribe(replicas, "file:///a")
    room = await replicas.two.endpoint._handshake.find(_exchange(replicas))
    assert room is not None
    await room.send("watch")

    await call(replicas, replicas.two, "touch", uri="file:///a")

    assert (await live.event())[1]["params"] == {"uri": "file:///a"}
    live.hang_up()
    await live.over()


def _exchange(replicas: EndpointPair) -> Any:
    class NamedArgument:
        caller = a_caller()
        headers = {b"mcp-session-id": replicas.session.encode()}

    return NamedArgument()


@pytest.mark.requirement("S-21")
async def test_s_21_a_stream_sends_keep_alive_comments(replicas: EndpointPair) -> None:
    """Proxies then keep the connection, and a dead one is noticed."""
    live = await replicas.get(replicas.one).opened()
    await run_ready_tasks()
    before = live.taken
    await pass_keep_alive_interval(replicas.one, 3)

    assert live.taken == before + 3
    live.hang_up()
    await live.over()


@pytest.mark.requirement("S-21", "S-20")
async def test_s_20_a_stream_ends_with_its_token(replicas: EndpointPair) -> None:
    """The caller receives nothing after its token has expired."""
    replicas.become(a_caller(expires_at=int(replicas.one.clock.now) + 60))
    live = await replicas.get(replicas.one).opened()
    replicas.one.clock.now += 61
    await pass_keep_alive_interval(replicas.one)

    assert await live.rest() == []
    await live.over()


@pytest.mark.requirement("S-21")
async def test_s_21_a_stopping_server_closes_its_streams_and_refuses_new_ones(
    replicas: EndpointPair,
) -> None:
    """The client opens its next stream at the other process."""
    live = await replicas.get(replicas.one).opened()
    await run_ready_tasks()
    replicas.one.streams.close()

    assert await live.rest() == []
    refused = await replicas.get(replicas.one).opened()
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    again = await replicas.get(replicas.two).opened()
    assert again.status == 200
    again.hang_up()
    await again.over()


@pytest.mark.requirement("S-21")
async def test_s_21_the_open_streams_of_a_caller_are_bounded(replicas: EndpointPair) -> None:
    """The next one gets 429 and a retry time; another caller is not affected."""
    replicas.one.streams.max_per_caller = 2
    streams: list[OpenExchange] = []
    for _ in range(2):
        await replicas.open()
        streams.append(await replicas.get(replicas.one).opened())
    await replicas.open()
    refused = await replicas.get(replicas.one).opened()
    replicas.become(a_caller(subject="bob"))
    await replicas.open()
    streams.append(await replicas.get(replicas.one).opened())

    assert (refused.status, refused.headers["retry-after"]) == (429, "10")
    assert [live.status for live in streams] == [200] * 3
    for live in streams:
        live.hang_up()
        await live.over()
    assert len(replicas.one.streams) == 0


@pytest.mark.requirement("S-21")
async def test_s_21_a_failing_shared_store_leaves_no_stream_or_subscription(
    replicas: EndpointPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is refused with 503, and its stream no longer counts."""

    async def fails(*_: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(replicas.one.shared_store.for_tenant("acme"), "publish", fails)
    live = replicas.get(replicas.one)
    await live.over()
    await run_ready_tasks()

    assert live.status == 503
    assert len(replicas.one.streams) == 0
    assert replicas.one.pubsub.tenants == ()
    await replicas.forget_sessions()
    assert vars(replicas.one.shared_store.for_tenant("acme"))["_followers"] == {}
