"""`subscriptions/listen`: what a stream of changes says, and what it never says."""

import json
from typing import Any

import pytest

from gatepost import CallContext, Pack
from tests.support.endpoint import META, EndpointClient
from tests.support.endpoint_clients import COMMENT, SUBSCRIPTION, open_subscription

pytestmark = pytest.mark.anyio

TOOLS = {"toolsListChanged": True}
EXTENSIONS = {META + "clientCapabilities": {"extensions": {META + "tasks": {}}}}

pack = Pack("changing")


@pack.tool()
async def change(ctx: CallContext) -> str:
    """Announce that the list of tools changed, between two reports of progress."""
    await ctx.progress(1)
    await ctx.changes.listed("tools")
    await ctx.progress(2)
    return "Announced."


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient(pack.tools.values())


async def announce_tools(client: EndpointClient, tenant: str = "acme") -> None:
    """Announce that the list of tools changed."""
    await client.pubsub.notifier_for(tenant).listed("tools")


@pytest.mark.requirement("SU-01", "T-09", "X-04")
async def test_su_01_the_answer_is_an_event_stream(client: EndpointClient) -> None:
    """For any filter the answer is events with headers that prevent buffering by proxies."""
    async with open_subscription(client, {}) as stream:
        assert await stream.acknowledged() == {}

    assert stream.status == 200
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["x-accel-buffering"] == "no"


@pytest.mark.requirement("SU-01", "SU-02")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": "toolsListChanged"},
        {"notifications": {"toolsListChanged": 1}},
        {"notifications": {"promptsListChanged": "true"}},
        {"notifications": {"resourceSubscriptions": "file:///a"}},
        {"notifications": {"resourceSubscriptions": [1]}},
        {"notifications": {"resourceSubscriptions": ["a:b"] * 101}},
        {"notifications": {"resourceSubscriptions": ["a:" + "b" * 2048]}},
        {"notifications": {"taskIds": {}}},
    ],
)
async def test_su_01_an_invalid_filter_is_refused_before_any_event(
    client: EndpointClient, params: dict[str, Any]
) -> None:
    """`params.notifications` is required, typed and bounded; -32602 and HTTP 400."""
    response = await client.ask("subscriptions/listen", params)

    assert response.error == (400, -32602)
    assert len(client.streams) == 0


async def test_a_stream_does_not_keep_the_parameters_of_its_request(client: EndpointClient) -> None:
    """Unread parameters may have megabytes, and a stream lasts for days."""
    long = "x" * 100_000
    async with open_subscription(client, TOOLS, name=long, uri=f"a:{long}") as stream:
        await stream.acknowledged()
        size = len(repr(stream.scope))

    assert size < 10_000


@pytest.mark.requirement("SU-01", "T-16")
async def test_su_01_a_client_that_reads_no_events_gets_406(client: EndpointClient) -> None:
    """The error explains it, instead of a stream that the client cannot read."""
    params = {"notifications": TOOLS}
    response = await client.ask("subscriptions/listen", params, accept="application/json")

    assert response.error == (406, -32600)


@pytest.mark.requirement("SU-02", "SU-03")
@pytest.mark.parametrize(
    ("filters", "honoured"),
    [
        ({}, {}),
        (TOOLS, TOOLS),
        ({"toolsListChanged": False}, {}),
        ({**TOOLS, "somethingNewer": True}, TOOLS),
        ({**TOOLS, "promptsListChanged": True, "resourcesListChanged": True}, TOOLS),
        ({"resourceSubscriptions": ["a:b"]}, {}),
    ],
)
async def test_su_03_the_first_message_has_the_accepted_filter(
    client: EndpointClient, filters: dict[str, Any], honoured: dict[str, Any]
) -> None:
    """The acknowledgement leaves out what this server does not declare."""
    async with open_subscription(client, filters) as stream:
        assert await stream.acknowledged() == honoured


@pytest.mark.requirement("SU-04", "J-04")
@pytest.mark.parametrize("identity", [7, 0, -3, "s1", "", 'a"b', "é", 2**53])
async def test_su_04_every_message_carries_the_id_of_the_request(
    client: EndpointClient, identity: Any
) -> None:
    """The subscription's id is the request's, as the same type of JSON."""
    async with open_subscription(client, TOOLS, identity=identity) as stream:
        first = await stream.next()
        await announce_tools(client)
        second = await stream.next()
        client.streams.close()
        last = await stream.next()

    for params in (first["params"], second["params"], last["result"]):
        assert json.dumps(params["_meta"][SUBSCRIPTION]) == json.dumps(identity)
    assert last["id"] == identity


@pytest.mark.requirement("SU-05", "TL-16")
async def test_su_05_only_changes_within_the_filter_are_sent(client: EndpointClient) -> None:
    """Other lists, resources and tasks change, and the stream has only the wanted change."""
    async with open_subscription(client, TOOLS) as stream:
        await stream.acknowledged()
        pubsub = client.pubsub.notifier_for("acme")
        await pubsub.listed("prompts")
        await pubsub.listed("resources")
        await pubsub.updated("test://document")
        await pubsub.moved("task")
        await announce_tools(client)

        assert (await stream.next())["method"] == "notifications/tools/list_changed"
        client.streams.close()
        assert "result" in await stream.next()


@pytest.mark.requirement("SU-06", "T-07", "T-15")
async def test_su_06_calls_and_listen_streams_keep_their_messages_apart(
    client: EndpointClient,
) -> None:
    """Progress stays on the call's stream, the change goes to the listen stream alone."""
    token = {"progressToken": "p", META + "logLevel": "debug"}
    async with open_subscription(client, TOOLS, meta=token) as stream:
        await stream.acknowledged()
        call = {"name": "change", "arguments": {}}
        response = await client.ask("tools/call", call, meta=token)

        assert [event.get("method") for event in response.events] == [
            "notifications/progress",
            "notifications/progress",
            None,
        ]
        assert (await stream.next())["method"] == "notifications/tools/list_changed"
        client.streams.close()
        assert "result" in await stream.next()


@pytest.mark.requirement("SU-07", "T-08")
async def test_su_07_a_stop_ends_the_stream_with_its_result(client: EndpointClient) -> None:
    """The JSON-RPC response of the request closes the stream; new ones are refused from then on."""
    async with open_subscription(client, TOOLS, identity="s1") as stream:
        await stream.acknowledged()
        client.streams.close()

        result = (await stream.next())["result"]
        assert result["resultType"] == "complete"
        assert result["_meta"][SUBSCRIPTION] == "s1"
        assert await stream.next() is None

    refused = await client.ask("subscriptions/listen", {"notifications": TOOLS})
    assert refused.error == (503, -32000)
    assert refused.headers["retry-after"] == "1"


@pytest.mark.requirement("SU-08", "SEC-03")
async def test_su_08_one_client_may_hold_several_streams(client: EndpointClient) -> None:
    """Each has its own filter and id; the same id twice gives two streams."""
    async with (
        open_subscription(client, TOOLS, identity=1) as first,
        open_subscription(client, {}, identity=2) as two,
        open_subscription(client, TOOLS, identity=1) as three,
    ):
        for stream in (first, two, three):
            await stream.acknowledged()
        await announce_tools(client)
        for stream in (first, three):
            assert (await stream.next())["params"]["_meta"][SUBSCRIPTION] == 1
        client.streams.close()

        assert (await two.next())["id"] == 2


@pytest.mark.requirement("SU-09", "T-11", "T-12")
async def test_su_09_earlier_changes_are_not_replayed(client: EndpointClient) -> None:
    """A stream does not get a change that was made before it opened."""
    async with open_subscription(client, TOOLS) as stream:
        await stream.acknowledged()
    await announce_tools(client)
    async with open_subscription(client, TOOLS, meta={"last-event-id": "1"}) as stream:
        await stream.acknowledged()
        client.streams.close()

        assert "result" in await stream.next()


@pytest.mark.requirement("T-10", "SU-10")
async def test_t_10_an_idle_stream_sends_keep_alive_comments(client: EndpointClient) -> None:
    """A comment now and then, which no reader takes for a message."""
    async with open_subscription(client, TOOLS) as stream:
        await stream.acknowledged()
        for idle_stream in client.streams:
            idle_stream.send_keep_alive()

        assert await stream.frame() == COMMENT


@pytest.mark.requirement("SU-11", "SU-02")
async def test_su_11_watching_tasks_requires_the_declared_extension(client: EndpointClient) -> None:
    """`taskIds` without the extension is -32021, naming it."""
    params = {"notifications": {"taskIds": []}}
    refused = await client.ask("subscriptions/listen", params)
    required = refused.json["error"]["data"]["requiredCapabilities"]

    assert refused.error == (400, -32021)
    assert required == {"extensions": {META + "tasks": {}}}
    async with open_subscription(client, {"taskIds": ["no-such-task"]}, meta=EXTENSIONS) as stream:
        assert await stream.acknowledged() in ({}, {"taskIds": []})


@pytest.mark.requirement("SU-12", "C-07", "TL-16")
async def test_su_12_a_declared_list_change_can_be_subscribed_to(client: EndpointClient) -> None:
    """Lists have both `listChanged` and a lifetime for the client's cache."""
    discovered = (await client.ask("server/discover")).json["result"]
    listed = (await client.ask("tools/list")).json["result"]

    assert discovered["capabilities"]["tools"] == {"listChanged": True}
    assert listed["ttlMs"] > 0
    async with open_subscription(client, TOOLS) as stream:
        assert await stream.acknowledged() == TOOLS
