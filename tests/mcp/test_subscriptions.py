"""Subscriptions to documents and tasks in both eras; each caller hears of its own only."""

import asyncio
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.mcp.subscriptions import MAX_NAMES
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.memory.records import MemoryRecords, MemorySessions
from gatepost.storage.sessions import SessionRecord
from tests.support.endpoint import (
    DECLARED_META,
    EndpointClient,
    EndpointTaskClient,
    a_caller,
    message,
)
from tests.support.endpoint_clients import WITHIN_S, EndpointPair, OpenExchange, open_subscription

pytestmark = pytest.mark.anyio

LEGACY_REVISIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]
pack = Pack("watched")


@pack.tool()
async def touch(ctx: CallContext, uri: str) -> str:
    """Change a document."""
    await ctx.changes.updated(uri)
    return "touched"


@pack.resource("notes://mine", mime_type="text/plain")
async def mine(ctx: CallContext) -> str:
    """Return a text that every caller may read."""
    return "mine"


@pack.resource("notes://secret", scopes={"notes:secret"}, mime_type="text/plain")
async def secret(ctx: CallContext) -> str:
    """Return a text that only some callers may read."""
    return "secret"


@pack.resource("notes://{year}/report", mime_type="text/plain")
async def report(ctx: CallContext, year: str) -> str:
    """Return a text for each year."""
    return year


@pack.tool(task_support="optional")
async def wait(ctx: CallContext) -> str:
    """Wait for a year."""
    await asyncio.sleep(365 * 86_400)
    return "waited"


@pack.prompt()
async def begin(ctx: CallContext) -> str:
    """Start somewhere."""
    return "Begin."


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient(pack.offers, obtainable=frozenset())


def a_pair(**options: Any) -> EndpointPair:
    return EndpointPair(pack.offers, **options)  # type: ignore[arg-type]


async def watched(live: OpenExchange) -> Any:
    """Return the next notification of a session's stream."""
    return (await live.event())[1]


async def session_request(
    replicas: EndpointPair, client: EndpointClient, method: str, **params: Any
) -> Any:
    return await client.within(replicas.session, message(method, params))


@pytest.mark.requirement("TL-16", "P-08", "R-01", "SU-12")
async def test_tl_16_list_changes_and_subscriptions_are_declared_in_both_eras(
    client: EndpointClient,
) -> None:
    """Lists that change, and resources that can be watched."""
    expected = {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
    }
    discovered = (await client.ask("server/discover")).json["result"]["capabilities"]
    opened = message(
        "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
    )
    introduced = (await client.send(opened)).json["result"]["capabilities"]

    for declared in (discovered, introduced):
        assert {name: declared[name] for name in expected} == expected


@pytest.mark.requirement("P-08", "TL-16", "SU-05")
@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
async def test_p_08_each_list_change_goes_to_its_subscribers(
    client: EndpointClient, what: Any
) -> None:
    """A stream for one list gets no changes of other lists."""
    async with open_subscription(client, {f"{what}ListChanged": True}) as stream:
        assert await stream.acknowledged() == {f"{what}ListChanged": True}
        for each in ("tools", "prompts", "resources", what):
            await client.pubsub.notifier_for("acme").listed(each)

        method = (await stream.next())["method"]
        client.streams.close()
        rest = [message async for message in _remaining_messages(stream)]

    assert method == f"notifications/{what}/list_changed"
    assert all(message["method"] == method for message in rest if "method" in message)


async def _remaining_messages(stream: Any) -> Any:
    while (message := await stream.next()) is not None:
        yield message


@pytest.mark.requirement("P-08", "TL-16")
@pytest.mark.parametrize("version", LEGACY_REVISIONS)
async def test_p_08_sessions_get_list_changes_too(version: str) -> None:
    """The session's own stream has a change that was made at another process."""
    replicas = await a_pair(version=version).open()
    live = await replicas.get(replicas.one).opened()

    await replicas.two.pubsub.notifier_for("acme").listed("prompts")

    assert (await watched(live))["method"] == "notifications/prompts/list_changed"
    live.hang_up()
    await live.over()


@pytest.mark.requirement("R-09", "SU-02", "SU-10")
async def test_r_09_documents_are_watched_with_a_listen_stream(client: EndpointClient) -> None:
    """An unreadable resource is left out exactly like a missing one."""
    uris = ["notes://mine", "notes://2026/report", "notes://secret", "notes://none", "", "x"]
    async with open_subscription(client, {"resourceSubscriptions": uris}) as stream:
        honoured = await stream.acknowledged()
        assert honoured == {"resourceSubscriptions": ["notes://mine", "notes://2026/report"]}
        for uri in ("notes://secret", "notes://2025/report", "notes://none", "notes://2026/report"):
            await client.pubsub.notifier_for("acme").updated(uri)

        notification = await stream.next()
        assert notification["method"] == "notifications/resources/updated"
        assert notification["params"]["uri"] == "notes://2026/report"


@pytest.mark.requirement("R-09", "SU-10")
async def test_r_09_a_caller_that_may_read_a_resource_may_watch_it(client: EndpointClient) -> None:
    """Watching takes the same decision as reading."""
    reader = a_caller(scopes=frozenset({"notes:secret"}))
    filters = {"resourceSubscriptions": ["notes://secret"]}
    async with open_subscription(client, filters, caller=reader) as stream:
        assert await stream.acknowledged() == filters


@pytest.mark.requirement("R-09")
@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
async def test_r_09_the_older_methods_are_unknown_in_2026(
    client: EndpointClient, method: str
) -> None:
    """404 and -32601."""
    assert (await client.ask(method, {"uri": "notes://mine"})).error == (404, -32601)


@pytest.mark.requirement("R-10", "S-10")
@pytest.mark.parametrize("version", LEGACY_REVISIONS)
async def test_r_10_a_session_subscribes_and_is_notified(version: str) -> None:
    """Subscription, change and open stream may be at different processes."""
    replicas = await a_pair(version=version).open()
    live = await replicas.get(replicas.one).opened()

    for uri in ("notes://mine", "notes://2026/report", "notes://mine"):
        subscribed = await session_request(replicas, replicas.two, "resources/subscribe", uri=uri)
        assert subscribed.json["result"] == {}
    call = {"name": "touch", "arguments": {"uri": "notes://mine"}}
    await session_request(replicas, replicas.two, "tools/call", **call)

    assert await watched(live) == {
        "jsonrpc": "2.0",
        "method": "notifications/resources/updated",
        "params": {"uri": "notes://mine"},
    }
    live.hang_up()
    await live.over()


class SlowSessions(MemorySessions):
    """Takes its time to answer after the next change, until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.is_slow = False

    async def get(self, key: bytes) -> SessionRecord:
        if self.is_slow:
            self.asked.set()
            await self.go.wait()
        return await super().get(key)

    async def replace(self, key: bytes, record: SessionRecord, *, expires_at: float) -> bool:
        replaced = await super().replace(key, record, expires_at=expires_at)
        self.is_slow = bool(record.subscriptions)
        return replaced


@pytest.mark.requirement("R-10")
async def test_r_10_a_change_right_after_the_subscription_is_announced() -> None:
    """The stream's process is still reading the session record at that moment."""
    records, slow = MemoryRecords(), SlowSessions()
    records.for_tenant("acme").sessions = slow
    replicas = await a_pair(records=records).open()
    live = await replicas.get(replicas.one).opened()

    await session_request(replicas, replicas.two, "resources/subscribe", uri="notes://mine")
    await asyncio.wait_for(slow.asked.wait(), WITHIN_S)
    await replicas.two.pubsub.notifier_for("acme").updated("notes://never")
    await replicas.two.pubsub.notifier_for("acme").updated("notes://mine")
    slow.go.set()

    assert (await watched(live))["params"] == {"uri": "notes://mine"}
    live.hang_up()
    await live.over()


@pytest.mark.requirement("R-10")
@pytest.mark.parametrize("version", LEGACY_REVISIONS)
async def test_r_10_changes_of_an_unsubscribed_resource_are_not_announced(version: str) -> None:
    """Others still are; unsubscribing from an unwatched resource is no error."""
    replicas = await a_pair(version=version).open()
    live = await replicas.get(replicas.one).opened()
    for uri in ("notes://mine", "notes://2026/report"):
        await session_request(replicas, replicas.two, "resources/subscribe", uri=uri)

    for uri in ("notes://mine", "notes://never"):
        answered = await session_request(replicas, replicas.one, "resources/unsubscribe", uri=uri)
        assert answered.json["result"] == {}
    await replicas.two.pubsub.notifier_for("acme").updated("notes://mine")
    await replicas.two.pubsub.notifier_for("acme").updated("notes://2026/report")

    assert (await watched(live))["params"] == {"uri": "notes://2026/report"}
    live.hang_up()
    await live.over()


@pytest.mark.requirement("R-10", "SEC-03")
async def test_r_10_a_caller_can_subscribe_only_to_readable_resources(
    client: EndpointClient,
) -> None:
    """A hidden resource gets the error of a missing one."""
    session = await client.open()
    refused = [
        await client.within(session, message("resources/subscribe", params))
        for params in (
            {"uri": "notes://secret"},
            {"uri": "notes://none"},
            {"uri": "x:" + "y" * 5000},
            {},
        )
    ]
    secret, none, *_ = [response.json["error"] for response in refused]

    assert [response.error[1] for response in refused] == [-32002, -32002, -32002, -32602]
    assert secret["message"] == none["message"]


@pytest.mark.requirement("R-10")
async def test_r_10_a_resource_with_missing_scopes_is_challenged() -> None:
    """The answer is 403 with all missing scopes, if they are obtainable, as for reading."""
    replicas = await a_pair().open()

    refused = await session_request(
        replicas, replicas.one, "resources/subscribe", uri="notes://secret"
    )

    assert refused.status == 403
    assert "notes:secret" in refused.headers["www-authenticate"]


@pytest.mark.requirement("R-10", "SU-10")
async def test_r_10_a_session_watches_a_bounded_number_of_documents() -> None:
    """One more is refused, and there is room again when one goes."""
    replicas = await a_pair().open()
    for year in range(MAX_NAMES):
        uri = f"notes://{year}/report"
        assert (
            "result"
            in (await session_request(replicas, replicas.one, "resources/subscribe", uri=uri)).json
        )

    full = await session_request(replicas, replicas.two, "resources/subscribe", uri="notes://mine")
    again = await session_request(
        replicas, replicas.two, "resources/subscribe", uri="notes://7/report"
    )
    await session_request(replicas, replicas.one, "resources/unsubscribe", uri="notes://7/report")
    after = await session_request(replicas, replicas.two, "resources/subscribe", uri="notes://mine")

    assert full.json["error"]["code"] == -32000
    assert "result" in again.json
    assert "result" in after.json


@pytest.mark.requirement("K-18", "SU-02", "SU-10", "SEC-03")
async def test_k_18_a_task_is_watched_by_its_owner_alone() -> None:
    """Each notification has the whole task; other callers cannot watch it by its id."""
    client = EndpointTaskClient(pack.offers)
    task = (await client.start("wait"))["taskId"]
    filters = {"taskIds": [task, "t_unknown"]}
    bob = a_caller(subject="bob")
    async with (
        open_subscription(client, filters, meta=DECLARED_META) as ours,
        open_subscription(client, filters, meta=DECLARED_META, caller=bob) as theirs,
    ):
        assert await ours.acknowledged() == {"taskIds": [task]}
        assert await theirs.acknowledged() == {"taskIds": []}
        await client.about("cancel", task)
        notification = await ours.next()
        while notification["params"]["status"] != "cancelled":
            notification = await ours.next()
        state = await client.get(task)
        client.streams.close()

        assert "result" in await theirs.next()
    assert notification["method"] == "notifications/tasks"
    members = ("taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs")
    assert [notification["params"][name] for name in members] == [state[name] for name in members]


async def fails(*_: object) -> None:
    raise StoreUnavailable


async def is_lost(*_: object) -> None:
    return


@pytest.mark.requirement("R-10")
async def test_r_10_a_repeated_subscription_reaches_a_stream_that_missed_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one was stored, but the client and the stream were not told."""
    replicas = await a_pair().open()
    live = await replicas.get(replicas.one).opened()
    with monkeypatch.context() as outage:
        outage.setattr(replicas.two.shared_store.for_tenant("acme"), "publish", fails)
        failed = await subscribe(replicas, replicas.two, "notes://mine")
    repeated = await subscribe(replicas, replicas.two, "notes://mine")
    call = {"name": "touch", "arguments": {"uri": "notes://mine"}}
    await session_request(replicas, replicas.two, "tools/call", **call)

    assert "error" in failed.json
    assert repeated.json["result"] == {}
    assert (await asyncio.wait_for(watched(live), WITHIN_S))["params"] == {"uri": "notes://mine"}
    live.hang_up()
    await live.over()


async def test_a_subscription_that_another_process_has_ended_takes_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message about its end may be late or lost."""
    replicas = await a_pair().open()
    for year in range(MAX_NAMES):
        await subscribe(replicas, replicas.one, f"notes://{year}/report")
    refused = await subscribe(replicas, replicas.one, "notes://mine")
    with monkeypatch.context() as loss:
        loss.setattr(replicas.two.shared_store.for_tenant("acme"), "publish", is_lost)
        ended = {"uri": "notes://0/report"}
        await session_request(replicas, replicas.two, "resources/unsubscribe", **ended)
    subscribed = await subscribe(replicas, replicas.one, "notes://mine")

    assert "error" in refused.json
    assert subscribed.json["result"] == {}


async def subscribe(replicas: EndpointPair, client: EndpointClient, uri: str) -> Any:
    return await session_request(replicas, client, "resources/subscribe", uri=uri)
