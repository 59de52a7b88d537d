"""`notifications/cancelled` finds its request at any process, and nothing else."""

import asyncio

import pytest

from gatepost import CallContext, Pack
from gatepost.http.body import WATCH_AFTER_S
from gatepost.storage.errors import StoreUnavailable
from tests.support.endpoint import a_caller, message
from tests.support.endpoint_clients import EndpointPair, OpenExchange
from tests.support.measuring import capture_logs, each

pack = Pack("slow")
LEGACY_REVISIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]


class CancellationSignal:
    """Set when the waiting tool has started, and when it ended."""

    started: asyncio.Event
    ended: asyncio.Event


@pack.tool(timeout_s=20)
async def wait(ctx: CallContext, report: bool = False) -> str:
    """Wait until it is ended."""
    if report:
        await ctx.progress(1)
    CancellationSignal.started.set()
    try:
        await asyncio.Event().wait()
    finally:
        CancellationSignal.ended.set()
    return "never"


@pack.tool()
async def quick(ctx: CallContext) -> str:
    """Be done at once."""
    return "done"


async def opened_pair(version: str = "2025-11-25") -> EndpointPair:
    CancellationSignal.started, CancellationSignal.ended = asyncio.Event(), asyncio.Event()
    return await EndpointPair(pack.tools.values(), version=version).open()


@pytest.fixture
async def replicas() -> EndpointPair:
    return await opened_pair()


async def begun_call(
    replicas: EndpointPair, identity: object = 7, *, report: bool = False
) -> OpenExchange:
    live = replicas.call(replicas.one, "wait", identity=identity, report=report)
    await asyncio.wait_for(CancellationSignal.started.wait(), 5)
    return live


async def still_runs(live: OpenExchange) -> bool:
    """Tell whether the call still runs, some time after every process could have heard."""
    done, _ = await asyncio.wait({live.task}, timeout=3 * WATCH_AFTER_S)
    return not done and not CancellationSignal.ended.is_set()


@pytest.mark.requirement("CX-03", "CX-04")
@each("version", LEGACY_REVISIONS)
@each("late", [True, False])
@each("identity", ["a", 7, 'with "quotes" and ü', -3])
async def test_cx_03_a_cancellation_finds_its_request_at_the_other_process(
    version: str, late: bool, identity: object
) -> None:
    """
    The tool stops and no response comes, also if the cancellation arrives before the tool's process
    listens.
    """
    replicas = await opened_pair(version)
    live = await begun_call(replicas, identity, report=True)
    if late:
        assert await still_runs(live)

    assert await replicas.cancel(replicas.two, identity) == 202

    await asyncio.wait_for(CancellationSignal.ended.wait(), 5)
    assert [message.get("method") for message in await live.rest()] == ["notifications/progress"]
    await live.over()


@pytest.mark.requirement("CX-03", "L-07", "J-15")
async def test_cx_03_only_the_owner_can_cancel_a_request(replicas: EndpointPair) -> None:
    """A cancellation with another id, session or caller does not stop the call."""
    mine = replicas.session
    live = await begun_call(replicas)
    for identity in (8, "7", 70, None, [7]):
        assert await replicas.cancel(replicas.two, identity) == 202
    await replicas.open()
    for client in (replicas.one, replicas.two):
        assert await replicas.cancel(client, 7) == 202
    replicas.become(a_caller(subject="bob"))
    await replicas.open()
    assert await replicas.cancel(replicas.two, 7) == 202
    replicas.session = mine
    assert await replicas.cancel(replicas.two, 7) == 404
    replicas.become(a_caller())

    assert await still_runs(live)
    await replicas.cancel(replicas.one, 7)
    await live.over()


@pytest.mark.requirement("CX-04")
async def test_cx_04_cancelling_an_ended_request_changes_nothing(replicas: EndpointPair) -> None:
    """The session continues after a late cancellation."""
    body = message("tools/call", {"name": "quick", "arguments": {}}, identity=1)
    assert (await replicas.one.within(replicas.session, body)).status == 200

    for client in (replicas.one, replicas.two):
        assert await replicas.cancel(client, 1) == 202
        assert await replicas.ping(client) == 200


@pytest.mark.requirement("CX-04")
async def test_cx_04_an_ended_request_leaves_no_listener(replicas: EndpointPair) -> None:
    """A process does not listen for cancellations of ended requests."""
    live = await begun_call(replicas)
    assert await still_runs(live)
    followers = vars(replicas.one.shared_store.for_tenant("acme"))["_followers"]
    assert followers != {}

    await replicas.cancel(replicas.two, 7)
    await live.over()

    await replicas.forget_sessions()
    assert followers == {}
    assert replicas.one.endpoint._handshake._running == {}


@pytest.mark.requirement("L-07")
@pytest.mark.parametrize("version", LEGACY_REVISIONS)
async def test_l_07_initialize_cannot_be_cancelled(version: str) -> None:
    """A cancellation that names it is ignored, and the session is there."""
    replicas = await opened_pair(version)

    assert await replicas.cancel(replicas.two, 0) == 202
    assert await replicas.ping(replicas.one) == 200


@pytest.mark.requirement("S-08")
@pytest.mark.parametrize("version", LEGACY_REVISIONS)
@pytest.mark.parametrize("report", [True, False])
async def test_s_08_a_dropped_connection_is_no_cancellation(version: str, report: bool) -> None:
    """The tool runs on, with a stream or without, until it is cancelled by its name."""
    replicas = await opened_pair(version)
    live = await begun_call(replicas, report=report)
    live.hang_up()

    assert await still_runs(live)
    await replicas.cancel(replicas.two, 7)
    await live.over()
    assert CancellationSignal.ended.is_set()


async def test_a_request_continues_without_the_shared_store(
    replicas: EndpointPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a cancellation that arrives at the request's own process can stop it then."""

    async def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable

    shared_store = replicas.one.shared_store.for_tenant("acme")
    for name in ("follow", "publish", "append", "take", "put", "read"):
        monkeypatch.setattr(shared_store, name, fails)
    live = await begun_call(replicas, report=True)
    assert await still_runs(live)

    assert await replicas.cancel(replicas.one, 7) == 202
    await live.over()
    assert CancellationSignal.ended.is_set()


@pytest.mark.requirement("CX-03")
@pytest.mark.parametrize(
    ("reason", "logged"),
    [
        ("User left", "User left"),
        ("x" * 999, "x" * 200),
        ("red\x1b[31m\nforged line", "red?[31m?forged line"),
        (5, ""),
    ],
)
async def test_cx_03_the_logged_reason_is_bounded_and_escaped(
    replicas: EndpointPair, reason: object, logged: str
) -> None:
    """The reason is text of the client."""
    params = {"requestId": 1, "reason": reason}

    with capture_logs() as logs:
        await replicas.tell(replicas.one, "notifications/cancelled", params)

    assert [event["reason"] for event in logs if event["event"] == "request_cancelled"] == [logged]
