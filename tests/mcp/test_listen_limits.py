"""What listen streams may cost, and when they end without being asked."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gatepost.http import open_streams
from gatepost.http.open_streams import OpenStreams
from gatepost_authz.caller import TenantContext
from tests.support.endpoint import EndpointClient, a_caller
from tests.support.endpoint_clients import COMMENT, open_subscription

pytestmark = pytest.mark.anyio

TOOLS = {"toolsListChanged": True}
TOOLS_FILTER = {"notifications": TOOLS}


@pytest.fixture
async def client() -> AsyncIterator[EndpointClient]:
    client = EndpointClient()
    yield client
    client.streams.close()


@pytest.mark.requirement("SU-09", "T-11")
async def test_su_09_a_disconnect_removes_the_stream_and_its_subscription(
    client: EndpointClient,
) -> None:
    """Neither the process nor the shared store keeps anything of the stream."""
    async with open_subscription(client, TOOLS) as stream:
        await stream.acknowledged()
        references = [weakref.ref(stream) for stream in client.streams]
        assert client.pubsub.tenants == ("acme",)
    gc.collect()

    assert [reference() for reference in references] == [None]
    assert (len(client.streams), client.pubsub.tenants) == (0, ())
    assert client.shared_store.for_tenant("acme")._followers == {}  # type: ignore[attr-defined]


@pytest.mark.requirement("SU-10")
async def test_su_10_streams_are_counted_per_caller_and_per_process() -> None:
    """The first one beyond a limit gets a JSON-RPC error with a retry time."""
    client = EndpointClient(streams=OpenStreams(max_streams=3, max_per_caller=2))
    bob = a_caller(subject="bob")
    async with AsyncExitStack() as stack:
        for caller in (client.caller, client.caller, bob):
            stream = await stack.enter_async_context(
                open_subscription(client, TOOLS, caller=caller)
            )
            await stream.acknowledged()
            if caller is client.caller and len(client.streams) == 2:
                assert_refused(await client.ask("subscriptions/listen", TOOLS_FILTER))
        client.caller = a_caller(subject="carol")
        assert_refused(await client.ask("subscriptions/listen", TOOLS_FILTER))
    async with open_subscription(client, TOOLS) as stream:
        assert await stream.acknowledged() == TOOLS


def assert_refused(response: Any) -> None:
    assert response.error == (200, -32000)
    assert int(response.headers["retry-after"]) > 0


@pytest.mark.requirement("SU-10")
@pytest.mark.parametrize("is_told", [True, False])
async def test_su_10_a_stream_ends_with_its_token(client: EndpointClient, is_told: bool) -> None:
    """After the expiry no change is sent; the stream then ends with its result."""
    async with open_subscription(client, TOOLS) as stream:
        await stream.acknowledged()
        client.clock.now = client.caller.expires_at + 1.0
        if is_told:
            await client.pubsub.notifier_for("acme").listed("tools")
        else:
            for _ in range(client.streams.steps):
                client.streams.check_next()

        assert (await stream.next())["result"]["resultType"] == "complete"
        assert await stream.next() is None


@pytest.mark.requirement("SU-10")
async def test_su_10_a_stream_ends_when_its_caller_loses_access(client: EndpointClient) -> None:
    """Only the streams of the callers concerned end."""
    other = a_caller(tenant_id="globex")
    async with (
        open_subscription(client, TOOLS) as ours,
        open_subscription(client, TOOLS, caller=other) as theirs,
    ):
        await ours.acknowledged()
        await theirs.acknowledged()
        client.streams.end(lambda caller: caller.tenant_id == "globex")

        assert "result" in await theirs.next()
        await client.pubsub.notifier_for("acme").listed("tools")
        assert "method" in await ours.next()


@pytest.mark.requirement("SU-10", "SU-05")
async def test_su_10_many_changes_are_one_message_for_a_slow_client(client: EndpointClient) -> None:
    """A thousand unread changes of one list are sent as one message."""
    async with open_subscription(client, TOOLS) as stream:
        await stream.acknowledged()
        stream.reading.clear()
        for _ in range(1000):
            await client.pubsub.notifier_for("acme").listed("tools")
            await asyncio.sleep(0)
        stream.reading.set()
        for _ in range(2):
            # The one that was being sent, and one for all that came after it.
            assert (await stream.next())["method"] == "notifications/tools/list_changed"
        client.streams.close()

        assert "result" in await stream.next()


@pytest.mark.requirement("SU-07", "SU-10")
async def test_su_10_a_stop_does_not_wait_for_a_client_that_does_not_read(
    client: EndpointClient,
) -> None:
    """A stop lets go of it while its last message still waits to be taken."""
    async with open_subscription(client, TOOLS) as stream:
        await stream.acknowledged()
        stream.reading.clear()
        await client.pubsub.notifier_for("acme").listed("tools")
        await run_until(lambda: not stream.is_waiting)
        client.streams.close()
        await run_until(lambda: len(client.streams) == 0)

        assert client.pubsub.tenants == ()


async def run_until(condition: Any) -> None:
    """Return when *condition* holds, which a few rounds of the loop must bring about."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("not within a hundred rounds of the loop")


class CountingStream:
    """A stream that counts what is done to it."""

    watches = False

    def __init__(self, caller: TenantContext) -> None:
        self.caller = caller
        self.woken = self.keep_alives = 0

    def wake(self) -> None:
        self.woken += 1

    def send_keep_alive(self) -> None:
        self.keep_alives += 1

    def end(self) -> None:
        self.caller = a_caller()


class FailingStream(CountingStream):
    """A stream that cannot be written to."""

    has_ended = False

    def wake(self) -> None:
        raise RuntimeError("the connection is lost")

    send_keep_alive = wake

    def end(self) -> None:
        self.has_ended = True


@pytest.mark.requirement("SU-10", "T-10")
@pytest.mark.parametrize("wakes", [True, False])
async def test_a_stream_that_fails_ends_alone(wakes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams that are written to in the same turn get their change or a keep-alive comment."""
    streams = OpenStreams(max_per_caller=1000)
    monkeypatch.setattr(open_streams, "TICKS_A_SECOND", 1e-6)  # this test takes the turns itself
    failing, errors = FailingStream(a_caller()), list[Exception]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    # As many as there are turns, so that one of them is in that of the first stream.
    others = [CountingStream(a_caller()) for _ in range(streams.steps)]
    for stream in (failing, *others):
        streams.enter(stream)
    for stream in (failing, *others) if wakes else ():
        streams.wake(stream)
    for _ in () if wakes else range(streams.steps):
        loop.call_soon(streams.check_next)
    await run_until(lambda: all(stream.woken + stream.keep_alives for stream in others))
    for stream in (failing, *others):
        streams.leave(stream)

    assert failing.has_ended
    assert len(errors) == 1
    assert {(stream.woken, stream.keep_alives) for stream in others} == {
        (int(wakes), int(not wakes))
    }


@pytest.mark.requirement("T-10")
async def test_t_10_one_timer_sends_keep_alives_to_all_streams_in_portions() -> None:
    """Each round serves every stream once, in small steps."""
    streams = OpenStreams()
    counting_streams = [
        CountingStream(a_caller(subject=f"caller-{number}")) for number in range(1000)
    ]
    for stream in counting_streams:
        streams.enter(stream)
    most = 0
    for _ in range(streams.steps):
        before = sum(stream.keep_alives for stream in counting_streams)
        streams.check_next()
        most = max(most, sum(stream.keep_alives for stream in counting_streams) - before)
    for stream in counting_streams:
        streams.leave(stream)

    assert {stream.keep_alives for stream in counting_streams} == {1}
    assert most <= 2 * len(counting_streams) / streams.steps


@pytest.mark.requirement("SU-10")
async def test_su_10_a_change_wakes_streams_in_turns() -> None:
    """Calls get their turn between two portions of ten thousand streams."""
    streams = OpenStreams(max_per_caller=1000)
    counting_streams = [CountingStream(a_caller()) for _ in range(1000)]
    for stream in counting_streams:
        streams.enter(stream)
        streams.wake(stream)
        streams.wake(stream)
    rounds = 0
    while sum(stream.woken for stream in counting_streams) < len(counting_streams):
        await asyncio.sleep(0)
        rounds += 1
    for stream in counting_streams:
        streams.leave(stream)

    assert {stream.woken for stream in counting_streams} == {1}
    assert rounds > 10


async def test_a_keep_alive_comment_is_no_message(client: EndpointClient) -> None:
    """Messages after it are read as usual."""
    async with open_subscription(client, TOOLS) as stream:
        await stream.acknowledged()
        for counting_stream in client.streams:
            counting_stream.send_keep_alive()
        assert await stream.frame() == COMMENT
        await client.pubsub.notifier_for("acme").listed("tools")

        assert "method" in await stream.next()
