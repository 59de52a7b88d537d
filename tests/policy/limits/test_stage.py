"""What tenants, callers and tools may do, and that nothing is taken for what does not run."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gatepost.policy.limits.rules import Bound, LimitRules
from gatepost.tools.calls.stage import Next
from gatepost.tools.context.client import MissingCapability
from gatepost.tools.offers.offer import Call, Offer, Outcome
from tests.support.endpoint import a_caller
from tests.support.runners import run_ready
from tests.support.server import DecidingClient, LimitedProcess, bucket, concurrency_limit

pytestmark = pytest.mark.requirement("P12")


class PendingDecision:
    """What `wait_for_decision` waits for; the client of these tests does not ask it."""

    message, told, url, retry_after_s = "A person decides.", "A person decides.", "", 5.0

    async def over(self) -> None:
        """Return at once."""


async def test_callers_of_a_tenant_share_its_bucket() -> None:
    """Only calls of the tenant count; another tenant has a bucket of its own."""
    process = LimitedProcess(LimitRules(tenant=bucket(3)))
    refusals = [await process.call(subject=f"person-{n}") for n in range(4)]

    assert refusals == ["seen", "seen", "seen", "rate_limit tenant"]
    assert await process.call(tenant_id="globex") == "seen"


async def test_each_tool_of_each_tenant_has_a_bucket() -> None:
    """An empty bucket does not affect the others."""
    process = LimitedProcess(LimitRules(tool=bucket(1)))
    process.gate.set()

    assert [await process.call(), await process.call()] == ["seen", "rate_limit tool"]
    assert await process.call("wait") == "waited"
    assert await process.call(tenant_id="globex") == "seen"


async def test_a_tool_may_have_limits_of_its_own() -> None:
    """More than the others, or less, or none at all."""
    process = LimitedProcess(LimitRules(tool=bucket(1), tools={"look": bucket(3), "wait": Bound()}))
    process.gate.set()

    assert [await process.call() for _ in range(4)].count("seen") == 3
    assert [await process.call("wait") for _ in range(5)] == ["waited"] * 5


async def test_a_refused_call_takes_from_no_other_limit() -> None:
    """A tool's bucket refuses; the caller and its tenant have as many calls as before."""
    process = LimitedProcess(LimitRules(bucket(3), bucket(5), tools={"wait": bucket(1)}))
    process.gate.set()
    assert await process.call("wait") == "waited"
    for _ in range(10):
        assert await process.call("wait") == "rate_limit tool"

    assert [await process.call() for _ in range(3)] == ["seen", "seen", "rate_limit caller"]
    refusals = [await process.call(subject=f"person-{n}") for n in range(3)]
    assert refusals == ["seen", "seen", "rate_limit tenant"]


async def test_a_retry_time_is_the_longest_of_all_limits() -> None:
    """A caller that retries after that wait is not refused by the next limit."""
    process = LimitedProcess(LimitRules(bucket(1, rate=1.0), bucket(1, rate=0.1)))
    await process.call()
    call = Call(caller=a_caller(), name="look", arguments=b"{}", request_id="r")
    refused = await process.runner.run(call)

    assert refused.failure is not None
    assert (refused.failure.limit, refused.failure.retry_after) == ("tenant", 10)
    process.now += 10
    assert await process.call() == "seen"


async def test_the_concurrent_calls_of_a_tenant_are_bounded() -> None:
    """One more call of any caller is refused; when a call ends, another one may run."""
    process = LimitedProcess(LimitRules(tenant=concurrency_limit(2)))
    first, _ = await process.begin(), await process.begin()
    assert await process.call(subject="bob") == "rate_limit tenant"
    assert await process.call(tenant_id="globex") == "seen"

    first.cancel()
    await run_ready()
    assert await process.call(subject="bob") == "seen"
    process.tasks.remove(first)
    assert await process.end() == ["waited"]


async def test_the_concurrent_calls_of_a_tool_are_bounded() -> None:
    """The limit counts one tenant's calls of the tool; another tenant's calls count apart."""
    process = LimitedProcess(LimitRules(tools={"wait": concurrency_limit(1)}))
    await process.begin()

    assert await process.call("wait") == "rate_limit tool"
    assert await process.call("look") == "seen"
    assert not (await process.begin(tenant_id="globex")).done()
    assert await process.end() == ["waited", "waited"]


async def abandon_call(process: LimitedProcess) -> None:
    """Cancel a call while it runs, as a client does that disconnects."""
    task = asyncio.create_task(process.call("wait"))
    await run_ready()
    task.cancel()
    await asyncio.wait([task])


async def ask_unable_client(process: LimitedProcess) -> None:
    """Call a tool that asks a client without the capability."""
    with pytest.raises(MissingCapability):
        await process.call("ask")


CALL_ENDINGS: dict[str, Callable[[LimitedProcess], Awaitable[object]]] = {
    "answers": lambda process: process.call("look"),
    "fails": lambda process: process.call("fail"),
    "is stopped": abandon_call,
    "cannot ask": ask_unable_client,
}


@pytest.mark.parametrize("end", CALL_ENDINGS)
async def test_any_end_of_a_call_releases_its_concurrency(end: str) -> None:
    """With a limit of one, any number of calls can run one after another."""
    process = LimitedProcess(
        LimitRules(tenant=concurrency_limit(1), tool=concurrency_limit(1)), max_running=1
    )
    for _ in range(5):
        await CALL_ENDINGS[end](process)
        assert process.limits.counters.running == {}
        assert process.limits.counters.queue.running == 0

    assert await process.call() == "seen"


async def test_a_call_that_waits_for_a_person_holds_no_concurrency() -> None:
    """Others run meanwhile; after the answer it continues even beyond the limit."""
    process, person = (
        LimitedProcess(
            LimitRules(tenant=concurrency_limit(1), tools={"ask": concurrency_limit(1)}),
            max_running=1,
        ),
        DecidingClient(),
    )
    asking = await process.begin("ask", client=person)
    assert person.asked.is_set()
    assert process.limits.counters.running == {}
    other = await process.begin()
    assert not other.done()

    person.decided.set()
    await run_ready()
    assert process.ran["asked"] == 1
    assert process.limits.counters.running == {"acme": 2, ("acme", "ask"): 1}
    assert await process.call() == "rate_limit tenant"
    assert await process.end() == ["accept", "waited"]
    assert process.limits.counters.running == {}
    assert asking.done()


@pytest.mark.parametrize("decided", [True, False])
async def test_a_stage_that_waits_for_a_person_holds_no_concurrency(decided: bool) -> None:
    """An approval waits between the spending and the tool, which may never run."""
    process, person = LimitedProcess(LimitRules(tenant=concurrency_limit(1))), DecidingClient()

    async def approval(call: Call, offer: Offer, arguments: Any, proceed: Next) -> Outcome:
        await call.client.wait_for_decision(PendingDecision())
        return await proceed(call, offer, arguments)

    process.put_behind(approval)
    waiting = await process.begin(client=person)
    assert process.limits.counters.running == {}
    if decided:
        person.decided.set()
        await run_ready()
        assert process.limits.counters.running == {"acme": 1}
        assert await process.end() == ["waited"]
    else:
        waiting.cancel()
        await asyncio.wait([waiting])
    assert process.limits.counters.running == {}
    assert process.limits.counters.queue.running == 0


async def test_a_nested_call_takes_no_further_concurrency_of_its_tenant() -> None:
    """With room for one call, a tool that calls another would otherwise wait for itself."""
    process = LimitedProcess(
        LimitRules(caller=bucket(4), tenant=concurrency_limit(1)), max_running=1
    )

    assert [await process.call("other") for _ in range(3)] == ["seen", "seen", "rate_limit caller"]
    assert process.ran["look"] == 2


async def test_a_nested_call_counts_against_the_limits_of_its_tool() -> None:
    """A limit that nested calls could avoid would be none."""
    process = LimitedProcess(LimitRules(tools={"look": bucket(1)}))

    assert [await process.call("other"), await process.call("other")] == ["seen", "rate_limit tool"]


async def test_calls_beyond_the_process_limit_are_queued_by_tenant() -> None:
    """A tenant that has all of them waits for the one that has none."""
    process = LimitedProcess(LimitRules(), max_running=2)
    for _ in range(4):
        await process.begin(tenant_id="flood")
    quiet = asyncio.create_task(process.call())
    await run_ready()
    assert process.ran == {"wait flood": 2}

    process.tasks.pop(0).cancel()
    assert await quiet == "seen"
    assert await process.end() == ["waited"] * 3


async def test_a_call_that_is_queued_too_long_is_refused() -> None:
    """The refused call holds no concurrency."""
    process = LimitedProcess(LimitRules(tenant=concurrency_limit(10)), max_running=1, within_s=0.01)
    await process.begin()
    assert await process.call() == "rate_limit server"
    assert process.limits.counters.running == {"acme": 1}
    assert await process.end() == ["waited"]
    assert process.limits.counters.running == {}


async def test_a_reload_keeps_counting_running_calls() -> None:
    """Running calls still count, and the new limit applies at once."""
    process = LimitedProcess(LimitRules(tenant=concurrency_limit(1)))
    await process.begin()
    process.limits.apply(LimitRules(tenant=concurrency_limit(2)))
    await process.begin()
    assert await process.call() == "rate_limit tenant"

    process.limits.apply(LimitRules(caller=bucket(1)))
    assert [await process.call(), await process.call()] == ["seen", "rate_limit caller"]
    assert await process.end() == ["waited", "waited"]
    assert process.limits.counters.running == {}


def test_without_any_limit_the_stage_is_left_out() -> None:
    """Every number is 0 then."""
    assert LimitedProcess(LimitRules()).limits.limits_nothing
    for rules in (
        LimitRules(bucket(1)),
        LimitRules(tenant=concurrency_limit(1)),
        LimitRules(tools={"look": concurrency_limit(1)}),
    ):
        assert not LimitedProcess(rules).limits.limits_nothing
    assert not LimitedProcess(LimitRules(), max_running=1).limits.limits_nothing


async def test_levels_report_the_use_of_each_limit() -> None:
    """They are by tenant, tool and caller, and reading them takes no tokens."""
    rules = LimitRules(bucket(4), Bound(0.001, 8, 3), tools={"wait": concurrency_limit(2)})
    process = LimitedProcess(rules, max_running=10)
    await process.begin()
    await process.call()
    for _ in range(2):
        levels = await process.limits.levels("acme", tools=("wait", "look"), callers=(a_caller(),))
    other = await process.limits.levels("globex")

    assert [
        (bucket.kind, bucket.name, bucket.burst, bucket.tokens) for bucket in levels.buckets
    ] == [
        ("caller", "alice", 4, 2),
        ("tenant", "", 8, 6),
    ]
    assert [
        (limit.kind, limit.name, limit.maximum, limit.running) for limit in levels.concurrency
    ] == [
        ("tenant", "", 3, 1),
        ("tool", "wait", 2, 1),
    ]
    assert (levels.waiting, levels.shared, levels.together) == (0, False, True)
    assert [(bucket.tokens, bucket.burst) for bucket in other.buckets] == [(8, 8)]
    assert await process.end() == ["waited"]


async def test_levels_leave_out_callers_without_a_limit() -> None:
    """Calls without a limit use nothing up."""
    process = LimitedProcess(LimitRules(tools={"wait": concurrency_limit(2)}))
    await process.begin()
    levels = await process.limits.levels("acme", tools=("wait", "look"), callers=(a_caller(),))

    assert levels.buckets == ()
    assert [(limit.kind, limit.name, limit.running) for limit in levels.concurrency] == [
        ("tool", "wait", 1)
    ]
    assert await process.end() == ["waited"]
