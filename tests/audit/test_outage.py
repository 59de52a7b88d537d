"""What happens while nothing can be put on record, and what is on record afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from gatepost.audit import journal as journal_module
from gatepost.audit.journal import Journal
from gatepost.audit.settings import AuditSettings
from gatepost.audit.trail import Trail
from gatepost.keyring import KeyRing
from gatepost.stores.api import StoreUnavailable
from gatepost.stores.audit import Batch, Head, Link, Question, Row
from gatepost.stores.memory.records import MemoryRecords
from gatepost.tools.api import Call, CallContext, Failure, Outcome
from gatepost.tools.record import Recorder
from gatepost.tools.redaction import Redaction
from gatepost.tools.registry import Registry, Unknown
from gatepost.tools.runner import Runner
from gatepost.workspace import TenantWorkspace
from tests.audit.shelf import person
from tests.audit.toolset import pack

SOON_S = 10


def context(call: Call) -> CallContext:
    workspace = cast("TenantWorkspace", None)
    return CallContext(caller=call.caller, request_id=call.request_id, workspace=workspace)


class Scribe:
    """A scribe whose database can be away, or take everything and not say so."""

    def __init__(self, records: MemoryRecords) -> None:
        self._scribe = records.scribe
        self.away = False
        self.silent = False
        self.gate: asyncio.Event | None = None

    async def write(self, make: Callable[[], Batch], link: Link) -> dict[str, list[Row]]:
        if self.gate is not None:
            await self.gate.wait()
        if self.away:
            raise StoreUnavailable("away")
        written = await self._scribe.write(make, link)
        if self.silent:
            self.silent = False
            raise StoreUnavailable("lost")
        return written

    async def heads(self) -> list[Head]:
        return await self._scribe.heads()

    async def tenants(self) -> list[str]:
        return await self._scribe.tenants()


class Place:
    """A runner whose calls are put on record where the database may be away."""

    def __init__(self, **settings: Any) -> None:
        self.records = MemoryRecords()
        self.scribe = self.records.scribe = Scribe(self.records)  # type: ignore[assignment]  # it stands in
        chosen = AuditSettings(batch_ms=0, **settings)
        self.journal = Journal(self.records, KeyRing.ephemeral(), Redaction(), chosen)
        recorder: Recorder = self.journal
        self.runner = Runner(
            Registry([*pack.tools.values()]), context_for=context, recorder=recorder
        )

    async def call(self, text: str = "x", tool: str = "write") -> Outcome:
        arguments = b'{"text":"%b"}' % text.encode() if tool == "write" else b"{}"
        call = Call(caller=person("alice"), name=tool, arguments=arguments, request_id=text)
        return await asyncio.wait_for(self.runner.run(call), SOON_S)

    async def found(self) -> list[tuple[str, str]]:
        """Kind and request of what is on record, the oldest first."""
        told = await Trail(self.records).search("acme", Question(limit=100))
        return [(one.kind, one.request_id) for one in reversed(told)]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SOON_S):
            while not condition():
                await asyncio.to_thread(int)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal tries again without a pause."""
    monkeypatch.setattr(journal_module, "RETRY_S", 0)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    yield made
    await made.journal.aclose()


@pytest.mark.requirement("AU8")
async def test_whose_effect_is_not_on_record_hears_that(place: Place) -> None:
    """No outage, which clients answer by calling again; and the record comes later."""
    place.scribe.away = True
    told = await place.call("first")
    with pytest.raises(StoreUnavailable):
        await place.call("second")
    place.scribe.away = False
    await place.until(lambda: not place.journal.refusing)
    fine = await place.call("third")

    assert told.failure is not None
    assert (told.failure.kind, told.failure.retry_after) == ("internal", None)
    assert "carried out" in told.failure.message
    assert fine.failure is None
    assert await place.found() == [("call", "first"), ("call", "third")]


@pytest.mark.requirement("AU8")
async def test_who_may_go_on_does_and_is_on_record_later() -> None:
    """Nobody waits for a database that is away, and nothing is forgotten."""
    place = Place(on_failure="go_on")
    place.scribe.away = True
    told = [(await place.call(name)).failure for name in ("a", "b", "c")]
    before = await place.found()
    place.scribe.away = False
    await place.until(lambda: place.journal.written >= 3)
    await place.journal.aclose()

    assert told == [None, None, None]
    assert before == []
    assert sorted(await place.found()) == [("call", "a"), ("call", "b"), ("call", "c")]


@pytest.mark.requirement("AU8")
async def test_what_was_lost_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for so many; of the others there is a number."""
    monkeypatch.setattr(journal_module, "MOST_WAITING", 2)
    place = Place(on_failure="go_on")
    place.scribe.away = True
    for name in "abcd":
        await place.call(name)
    place.scribe.away = False
    await place.until(lambda: place.journal.written >= 3)
    await place.journal.aclose()
    found = await Trail(place.records).search("acme", Question(limit=100))
    lost = sum(int(one.details["records"]) for one in found if one.kind == "gap")

    assert lost + sum(one.kind == "call" for one in found) == 4
    assert lost > 0


async def test_a_commit_that_nobody_heard_of_is_not_repeated(place: Place) -> None:
    """The connection broke between the commit and its answer: one record, not two."""
    place.scribe.silent = True
    told = await place.call("once")
    await place.until(lambda: not place.journal.refusing)
    await place.call("twice")

    assert told.failure is not None
    assert await place.found() == [("call", "once"), ("call", "twice")]


@pytest.mark.requirement("AU3")
async def test_no_answer_leaves_before_its_record_is_there(place: Place) -> None:
    """Nor does a refusal; calls that come meanwhile are written together."""
    place.scribe.gate = asyncio.Event()
    calls = [asyncio.ensure_future(place.call(name)) for name in ("a", "b", "c")]
    calls.append(asyncio.ensure_future(place.call("d", tool="nothing")))
    for _ in range(50):
        await asyncio.sleep(0)
    waiting = [call.done() for call in calls]
    place.scribe.gate.set()
    ended = await asyncio.gather(*calls, return_exceptions=True)

    assert waiting == [False] * 4
    assert [isinstance(one, Outcome) for one in ended] == [True, True, True, False]
    assert len(await place.found()) == 4


@pytest.mark.requirement("AU3")
async def test_who_leaves_is_on_record_and_hurts_nobody(place: Place) -> None:
    """Cancelled while the tool runs, and while the record is written."""
    place.scribe.gate = asyncio.Event()
    leaving = asyncio.ensure_future(place.call("a", tool="linger"))
    waiting = asyncio.ensure_future(place.call("b"))
    staying = asyncio.ensure_future(place.call("c"))
    for _ in range(20):
        await asyncio.sleep(0)
    leaving.cancel()
    waiting.cancel()
    place.scribe.gate.set()
    outcome = await staying
    await asyncio.wait([leaving, waiting], timeout=SOON_S)
    await place.journal.aclose()
    found = await Trail(place.records).search("acme", Question(limit=100))

    assert outcome.failure is None
    assert {(one.request_id, one.outcome) for one in found} == {
        ("a", "cancelled"),
        ("b", "success"),
        ("c", "success"),
    }


async def test_a_flood_of_refusals_is_one_record(place: Place) -> None:
    """A caller that a limit refuses must not fill the disk; how often it came is told."""

    async def limited(call: Call, offer: Any, arguments: Any, proceed: Any) -> Outcome:
        return Outcome(failure=Failure("rate_limit", "Too many.", retry_after=1))

    place.runner = Runner(
        Registry([*pack.tools.values()]),
        context_for=context,
        recorder=place.journal,
        stages=[limited],
    )
    caller = person("alice")
    calls = [
        Call(caller=caller, name="write", arguments=b'{"text":"x"}', request_id=str(at))
        for at in range(30)
    ]
    await asyncio.gather(*(place.runner.run(call) for call in calls))
    found = await Trail(place.records).search("acme", Question(limit=100))

    assert [(one.kind, one.outcome) for one in found] == [("refusal", "rate_limit")] * len(found)
    assert sum(one.times for one in found) == 30
    assert len(found) < 5


@pytest.mark.parametrize(("calls", "found"), [("all", 3), ("changes", 2)])
async def test_what_only_reads_may_be_left_out(calls: Any, found: int) -> None:
    """A successful call of a tool that declares so; a refusal stays."""
    place = Place(calls=calls)
    for tool in ("look", "write"):
        await place.call("x", tool=tool)
    with pytest.raises(Unknown):
        await place.call("x", tool="nothing")
    await place.journal.aclose()

    assert len(await place.found()) == found
