"""After a lost connection, the client gets the rest of the answer from any process."""

import asyncio
import json
from typing import Any

import pytest

from gatepost import CallContext, Pack
from gatepost.http import open_streams
from gatepost.mcp import client
from gatepost.mcp.sessions import resumable
from gatepost.storage.errors import StoreUnavailable
from tests.support.endpoint import a_caller
from tests.support.endpoint_clients import EndpointPair, OpenExchange

pack = Pack("steps")


class ResumptionStep:
    """What lets the tool go on."""

    gates: dict[str, asyncio.Event]

    @classmethod
    def release(cls, name: str) -> None:
        cls.gates.setdefault(name, asyncio.Event()).set()

    @classmethod
    async def wait(cls, name: str) -> None:
        await asyncio.wait_for(cls.gates.setdefault(name, asyncio.Event()).wait(), 10)


@pack.tool(timeout_s=20)
async def walk(ctx: CallContext, steps: list[str]) -> str:
    """Report, wait for each step, report it."""
    await ctx.progress(0)
    for at, step in enumerate(steps, 1):
        await ResumptionStep.wait(step)
        await ctx.progress(at, message=step)
    return "arrived"


@pack.tool(timeout_s=20)
async def rest(ctx: CallContext, until: str, report: bool = False) -> str:
    """Let go of the connection and go on."""
    if report:
        await ctx.progress(1)
    await ctx.client.pause(0.25)
    await ResumptionStep.wait(until)
    return "rested"


@pack.tool()
async def chatter(ctx: CallContext, reports: int, size: int) -> str:
    """Say much, then answer at length."""
    for at in range(1, reports + 1):
        await ctx.log("info", at)
    return "x" * size


@pytest.fixture
async def replicas() -> EndpointPair:
    ResumptionStep.gates = {}
    return await EndpointPair(pack.tools.values()).open()


async def first_event_id(live: OpenExchange) -> str:
    """Return the id of the first event, which has no data."""
    block = await live.block()
    assert block is not None
    assert block["data"] == ""
    return block["id"]


def text(message: Any) -> str:
    text: str = message["result"]["content"][0]["text"]
    return text


@pytest.mark.requirement("S-06")
async def test_s_06_a_stream_begins_with_an_empty_event_that_has_an_id(
    replicas: EndpointPair,
) -> None:
    """2025-11-25: a client that loses the connection at once can already resume."""
    live = replicas.call(replicas.one, "walk", steps=[])

    first = await first_event_id(live)
    second, report = await live.event()
    third, answer = await live.event()

    assert report["params"]["progress"] == 0
    assert text(answer) == "arrived"
    assert len({first, second, third}) == 3
    assert await live.block() is None


@pytest.mark.requirement("S-06", "S-07")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26"])
async def test_s_06_older_revisions_get_ids_and_no_empty_event(version: str) -> None:
    """Clients of these revisions would take an event without data for a broken message."""
    ResumptionStep.gates = {}
    replicas = await EndpointPair(pack.tools.values(), version=version).open()
    live = replicas.call(replicas.one, "walk", steps=[])

    block = await live.block()

    assert block is not None
    assert block["id"]
    assert json.loads(block["data"])["method"] == "notifications/progress"


@pytest.mark.requirement("S-04")
async def test_s_04_an_answer_without_earlier_messages_is_plain_json(
    replicas: EndpointPair,
) -> None:
    """It has no stream, and the shared store has no event log for it."""
    params = {"name": "chatter", "arguments": {"reports": 0, "size": 3}}
    live = replicas.post(replicas.one, _body("tools/call", params))
    await live.over()

    assert live.headers["content-type"] == "application/json"
    assert vars(replicas.one.shared_store.for_tenant("acme"))["_logs"] == {}


@pytest.mark.requirement("S-12", "S-08", "S-10")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
async def test_s_12_another_process_sends_the_events_that_the_client_missed(version: str) -> None:
    """The tool runs on; the client gets each message once, from its last event to the response."""
    ResumptionStep.gates = {}
    replicas = await EndpointPair(pack.tools.values(), version=version).open()
    live = replicas.call(replicas.one, "walk", steps=["a", "b"])
    seen, _ = await live.event()
    live.hang_up()
    ResumptionStep.release("a")

    again = replicas.resume(replicas.two, seen)
    missed, report = await again.event()
    ResumptionStep.release("b")
    rest = await again.rest()

    assert report["params"]["message"] == "a"
    assert missed != seen
    assert [message.get("params", {}).get("message") for message in rest] == ["b", None]
    assert text(rest[-1]) == "arrived"
    await again.over()
    await live.over()


@pytest.mark.requirement("S-12", "S-08")
async def test_s_12_a_client_that_resumes_after_the_end_gets_the_answer(
    replicas: EndpointPair,
) -> None:
    """Any process sends all remaining events, and then the stream ends."""
    live = replicas.call(replicas.one, "walk", steps=["a"])
    seen = await first_event_id(live)
    live.hang_up()
    ResumptionStep.release("a")
    await live.over()

    for replica in (replicas.two, replicas.one):
        rest = await replicas.resume(replica, seen).rest()
        assert [message.get("method") for message in rest] == ["notifications/progress"] * 2 + [
            None
        ]


@pytest.mark.requirement("S-11", "S-12")
async def test_s_11_only_the_newest_connection_gets_messages(replicas: EndpointPair) -> None:
    """This holds even if the older connection is not known to be dead."""
    live = replicas.call(replicas.one, "walk", steps=["a"])
    seen, _ = await live.event()
    again = await replicas.resume(replicas.two, seen).opened()
    assert await live.block() is None
    last = await replicas.resume(replicas.one, seen).opened()
    assert await again.block() is None

    ResumptionStep.release("a")

    assert text((await last.rest())[-1]) == "arrived"
    await live.over()
    await again.over()


@pytest.mark.requirement("S-06", "S-07")
@pytest.mark.parametrize("report", [True, False])
async def test_s_06_a_call_can_close_its_connection_and_continue(
    replicas: EndpointPair, report: bool
) -> None:
    """The client gets a retry time, and finds the rest at any process."""
    live = replicas.call(replicas.one, "rest", until="a", report=report)
    seen = await first_event_id(live)
    if report:
        seen, _ = await live.event()
    assert await live.block() == {"retry": "250"}
    assert await live.block() is None

    again = replicas.resume(replicas.two, seen)
    ResumptionStep.release("a")

    assert [text(message) for message in await again.rest()] == ["rested"]


@pytest.mark.requirement("S-12")
async def test_s_12_the_stream_ends_with_the_answer_it_waited_for(
    replicas: EndpointPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends at once; the next keep-alive comment never comes in this test."""
    monkeypatch.setattr(open_streams, "TICKS_A_SECOND", 1e-6)
    live = replicas.call(replicas.one, "rest", until="a")
    seen = await first_event_id(live)
    await live.rest()
    again = await replicas.resume(replicas.two, seen).opened()
    for _ in range(50):
        await asyncio.sleep(0)
    ResumptionStep.release("a")

    assert text((await again.event())[1]) == "rested"
    assert await again.block() is None
    await again.over()


@pytest.mark.requirement("S-07")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26"])
async def test_s_07_older_revisions_keep_their_connection(version: str) -> None:
    """In these revisions the stream must not be closed before the response."""
    ResumptionStep.gates = {}
    replicas = await EndpointPair(pack.tools.values(), version=version).open()
    live = replicas.call(replicas.one, "rest", until="a")
    ResumptionStep.release("a")
    await live.over()

    assert live.headers["content-type"] == "application/json"


def _body(method: str, params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 9, "method": method, "params": params}).encode()


@pytest.mark.requirement("S-12", "SEC-04")
async def test_s_12_an_event_id_is_refused_for_another_session_or_caller(
    replicas: EndpointPair,
) -> None:
    """The refusal is the same as for an invented event id."""
    live = replicas.call(replicas.one, "walk", steps=["a"])
    seen, _ = await live.event()
    mine = replicas.session
    refusals = []
    for event_id in ("A" * 16 + "-1", seen.replace("-", "_"), "", "x" * 5000, seen[:-1] + "99"):
        refused = await replicas.resume(replicas.two, event_id).opened()
        refusals.append((refused.status, refused.headers))
    await replicas.open()
    refused = await replicas.resume(replicas.two, seen).opened()
    refusals.append((refused.status, refused.headers))

    assert {status for status, _ in refusals} == {400}
    assert all(headers == refusals[0][1] for _, headers in refusals)
    replicas.become(a_caller(subject="bob"))
    replicas.session = mine
    assert (await replicas.resume(replicas.two, seen).opened()).status == 404
    ResumptionStep.release("a")
    assert text((await live.rest())[-1]) == "arrived"


@pytest.mark.requirement("S-12")
async def test_s_12_the_event_log_is_bounded(
    replicas: EndpointPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest events stay; a too large answer is replaced by an error that says so."""
    monkeypatch.setattr(resumable, "MAX_EVENTS", 10)
    monkeypatch.setattr(resumable, "MAX_BYTES", 2000)
    monkeypatch.setattr(client, "REPORTS_AT_ONCE", 50)
    live = replicas.call(replicas.one, "chatter", reports=50, size=3000)
    ids = [(await live.event())[0] for _ in range(50)]
    await live.over()

    early = await replicas.resume(replicas.two, ids[3]).opened()
    late = await replicas.resume(replicas.two, ids[48]).rest()

    assert early.status == 400
    assert late[0]["params"]["data"] == 50
    assert late[1]["id"] == 7
    assert "too large" in late[1]["error"]["message"]


@pytest.mark.requirement("S-12")
async def test_s_12_resuming_after_the_response_is_refused(replicas: EndpointPair) -> None:
    """A client that already has the response gets 400 and does not wait."""
    live = replicas.call(replicas.one, "walk", steps=[])
    await live.event()
    last, _ = await live.event()

    assert (await replicas.resume(replicas.two, last).opened()).status == 400


@pytest.mark.requirement("S-12", "S-05")
async def test_s_12_a_quiet_call_stays_resumable_for_as_long_as_it_runs(
    replicas: EndpointPair,
) -> None:
    """Keep-alive comments keep log and connection open; the client sees comments at most."""
    live = replicas.call(replicas.one, "walk", steps=["a"])
    seen, _ = await live.event()
    event_logs = vars(replicas.one.shared_store.for_tenant("acme"))["_logs"]
    (event_log,) = event_logs.values()
    before, taken = event_log.until, live.taken
    for _ in range(resumable.MARK_EVERY):
        for _ in range(replicas.one.streams.steps):
            replicas.one.streams.check_next()
        for _ in range(50):
            await asyncio.sleep(0)
    assert live.taken > taken
    assert event_log.until > before
    live.hang_up()
    ResumptionStep.release("a")

    rest = await replicas.resume(replicas.two, seen).rest()

    assert [message.get("method") for message in rest] == ["notifications/progress", None]
    await live.over()


@pytest.mark.requirement("S-12")
async def test_s_12_a_resumed_stream_ends_if_its_event_log_disappears(
    replicas: EndpointPair,
) -> None:
    """The next attempt to resume gets 400."""
    live = replicas.call(replicas.one, "walk", steps=["a"])
    seen, _ = await live.event()
    again = await replicas.resume(replicas.two, seen).opened()
    assert await live.block() is None
    vars(replicas.one.shared_store.for_tenant("acme"))["_logs"].clear()
    for _ in range(replicas.two.streams.steps):
        replicas.two.streams.check_next()

    assert await again.rest() == []
    assert (await replicas.resume(replicas.two, seen).opened()).status == 400
    ResumptionStep.release("a")
    await live.over()


@pytest.mark.requirement("S-05", "S-08")
async def test_s_05_a_slow_reader_slows_its_tool_down(replicas: EndpointPair) -> None:
    """Messages do not pile up for a client that does not read: the tool waits for it."""
    live = replicas.call(replicas.one, "chatter", slow=True, reports=100, size=1)
    await live.opened()
    done, _ = await asyncio.wait({live.task}, timeout=0.1)
    (event_log,) = vars(replicas.one.shared_store.for_tenant("acme"))["_logs"].values()

    assert not done
    assert (live.taken, event_log.last) == (0, 1)
    live.reading.set()
    assert len(await live.rest()) == 101
    await live.over()


@pytest.mark.requirement("S-12")
async def test_s_12_with_a_failing_shared_store_events_have_no_ids(
    replicas: EndpointPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer arrives as usual; without an event id the client does not try to resume."""

    async def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(replicas.one.shared_store.for_tenant("acme"), "append", fails)
    live = replicas.call(replicas.one, "walk", steps=[])

    assert (await live.event())[0] == ""
    last, answer = await live.event()
    assert (last, text(answer)) == ("", "arrived")
