"""Approvals whose call has begun, on every backend, at whichever replica somebody looks."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gatepost.approvals.herald import Change, Herald
from gatepost.approvals.request import Request
from gatepost.guard import run
from gatepost.guard.run import LEASE_S
from gatepost.stores.api import Records, StoreUnavailable
from gatepost.stores.notices import Notice
from tests.approvals.bureau import ACME, BOB, Bureau, Replica, kind, said

pytestmark = pytest.mark.requirement("A7")

LIVES_S = 300.0
"""How long an approval counts here: what is configured by default."""
WITHIN_S = 30


class Witnessed(Bureau):
    """Keeps what would be told to the webhook."""

    def __init__(self, records: Records) -> None:
        super().__init__(records=records, require=["act", "put"])
        self.noticed: list[str] = []
        self.notices = self._notice

    def _notice(self, change: Change) -> Notice | None:
        self.noticed.append(change.what)
        return None

    def heard(self) -> list[str]:
        """What was told, whoever did it."""
        return [one.what for one in self.told]


@pytest.fixture(autouse=True)
def leases_that_nobody_renews(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a lease is renewed where a test says so."""
    monkeypatch.setattr(run, "RENEW_S", 3600.0)


@pytest.fixture
def bureau(records: Records) -> Witnessed:
    return Witnessed(records)


async def running(
    bureau: Bureau, replica: Replica, tool: str
) -> "tuple[Request, asyncio.Task[object]]":
    """An approved call whose tool has had its effect and goes on."""
    request = await replica.asked(tool, what="a")
    await replica.desk.approve(ACME, request.id, BOB)
    bureau.gate, bureau.entered = asyncio.Event(), asyncio.Event()
    call = asyncio.create_task(replica.call(tool, what="a"))
    async with asyncio.timeout(WITHIN_S):
        await bureau.entered.wait()
    return request, call


async def left(bureau: Bureau, tool: str = "act") -> Request:
    """The same; its process has lost its power, and the lease of its claim runs."""
    replica = bureau.replica()
    request, call = await running(bureau, replica, tool)
    for one in replica.runs._open.values():
        one.task.cancel()
    call.cancel()
    await asyncio.wait([call], timeout=WITHIN_S)
    bureau.gate = None
    return request


async def at(replica: Replica, request: Request) -> tuple[str, str]:
    """State and use as a page shows them."""
    found = await replica.desk.get(ACME, request.id)
    assert found is not None
    return found.state, found.use


async def page(replica: Replica, request: Request) -> None:
    await replica.desk.get(ACME, request.id)


async def history(replica: Replica, request: Request) -> None:
    [found] = await replica.desk.history(ACME)
    assert (found.id, found.state, found.use) == (request.id, "used", "unknown")


async def sweep(replica: Replica, request: Request) -> None:
    replica.bureau.clock.now += LIVES_S
    await replica.desk.expire_due()


Look = Callable[[Replica, Request], Awaitable[None]]
LOOKS: dict[str, Look] = {"its page": page, "the history": history, "the sweep": sweep}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_a_call_that_nobody_ended_is_used_and_not_expired(
    bureau: Witnessed, look: Look
) -> None:
    """Once its lease is over, wherever it is looked at; it is told once, and never as expired."""
    request, other = await left(bureau), bureau.replica()
    assert await at(other, request) == ("approved", "running")
    bureau.clock.now += LEASE_S + 1

    await look(other, request)

    assert await at(bureau.replica(), request) == ("used", "unknown")
    await sweep(other, request)
    assert bureau.heard() == ["requested", "approved", "unknown"]
    assert "expired" not in bureau.noticed


async def test_an_agent_hears_of_it_before_anybody_is_asked_anew(bureau: Witnessed) -> None:
    """Also after the approval's time, for as long again; and nothing is run twice."""
    request, other = await left(bureau), bureau.replica()
    await sweep(other, request)

    for _ in range(2):
        assert "is not known" in said(await other.call(what="a"))
    bureau.clock.now += LIVES_S
    assert kind(await other.call(what="a")) == "approval_pending"
    assert bureau.effects["a"] == 1


async def test_an_agent_that_comes_back_first_ends_it_too(bureau: Witnessed) -> None:
    """The page says what the agent was told."""
    request, other = await left(bureau), bureau.replica()
    bureau.clock.now += LEASE_S + 1

    assert "is not known" in said(await other.call(what="a"))

    assert await at(other, request) == ("used", "unknown")
    assert bureau.heard() == ["requested", "approved", "unknown"]


async def test_a_call_that_runs_does_not_expire(bureau: Witnessed) -> None:
    """Whatever the time of its approval; then it is used, and nothing is unknown."""
    here, other = bureau.replica(), bureau.replica()
    request, call = await running(bureau, here, "act")
    tenant = bureau.records.of(ACME)
    bureau.clock.now += LIVES_S
    [its] = here.runs._open.values()
    await its._renew()

    await other.desk.expire_due()

    assert await at(other, request) == ("approved", "running")
    assert bureau.gate is not None
    bureau.gate.set()
    await call
    assert await at(other, request) == ("used", "")
    assert bureau.heard() == ["requested", "approved", "used"]
    assert await tenant.approvals.undecided() == []


async def test_an_outcome_that_nobody_fetched_is_a_use(bureau: Witnessed) -> None:
    """The caller was gone when the tool ended: the approval was used, and the agent may ask how."""
    here, other = bureau.replica(), bureau.replica()
    request, call = await running(bureau, here, "act")
    [its] = here.runs._open.values()
    call.cancel()
    await asyncio.wait([call, its.task], timeout=WITHIN_S)
    bureau.clock.now += LIVES_S

    await other.desk.expire_due()

    assert await at(other, request) == ("used", "")
    assert "was stopped" in said(await other.call(what="a"))
    assert bureau.heard() == ["requested", "approved", "used"]
    assert kind(await other.call(what="a")) == "approval_pending"


async def test_what_was_unknown_may_become_known(bureau: Witnessed) -> None:
    """The server was only cut off from the database for longer than its lease."""
    here, other = bureau.replica(), bureau.replica()
    request, call = await running(bureau, here, "act")
    bureau.clock.now += LEASE_S + 1
    assert await at(other, request) == ("used", "unknown")
    assert bureau.gate is not None
    bureau.gate.set()
    await call

    assert await at(other, request) == ("used", "")
    assert bureau.heard() == ["requested", "approved", "unknown", "used"]


async def test_a_tool_that_may_repeat_keeps_its_approval_for_its_time(bureau: Witnessed) -> None:
    """A look takes nothing from the agent, which may make the call again."""
    request, other = await left(bureau, "put"), bureau.replica()
    bureau.clock.now += LEASE_S + 1

    assert await at(other, request) == ("approved", "unknown")
    assert said(await other.call("put", what="a")) == "a 0 2"
    assert await at(other, request) == ("used", "")


async def test_nor_is_it_repeated_when_that_time_is_over(bureau: Witnessed) -> None:
    """A tool that may repeat has no approval for it then."""
    request, other = await left(bureau, "put"), bureau.replica()
    await sweep(other, request)

    assert await at(other, request) == ("used", "unknown")
    assert "is not known" in said(await other.call("put", what="a"))
    assert bureau.effects["a"] == 1


async def test_it_is_on_record_before_it_counts(bureau: Witnessed) -> None:
    """While the record cannot be written, nothing has changed."""
    request, other = await left(bureau), bureau.replica()
    bureau.clock.now += LIVES_S
    kept: list[str] = []

    async def away(change: Change) -> None:
        raise StoreUnavailable("away")

    async def minutes(change: Change) -> None:
        kept.append(change.what)

    other.desk.herald = Herald(bureau.relay, minutes=away)
    with pytest.raises(StoreUnavailable):
        await other.desk.expire_due()
    record = await bureau.records.of(ACME).approvals.get(request.id)
    assert record is not None
    assert record.state == "approved"
    other.desk.herald = Herald(bureau.relay, minutes=minutes)
    assert await other.desk.expire_due() == 1
    assert kept == ["unknown"]


async def test_an_approval_that_nobody_used_expires(bureau: Witnessed) -> None:
    """Nothing had begun: it says so, and so does the webhook."""
    replica = bureau.replica()
    request = await replica.asked(what="a")
    await replica.desk.approve(ACME, request.id, BOB)

    await sweep(replica, request)

    assert await at(replica, request) == ("expired", "")
    assert bureau.noticed == ["requested", "approved", "expired"]
