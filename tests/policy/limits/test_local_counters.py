"""Local counters count nothing twice and do not grow without bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.policy.limits import local_counters
from gatepost.policy.limits.local_counters import LocalCounters
from gatepost.policy.limits.rules import Bound, LimitRules, PrincipalKey
from gatepost.storage.rate_limits import (
    Bucket,
    Buckets,
    ConcurrencyCounter,
    LocalLimits,
    MemoryLimits,
    Spending,
)
from gatepost.storage.shared_store import MemorySharedStore
from gatepost.tools.offers.offer import Call, Offer, Outcome
from tests.support.endpoint import a_caller
from tests.support.runners import run_ready
from tests.support.server import DecidingClient, LimitedProcess, bucket, concurrency_limit

pytestmark = pytest.mark.requirement("P12")


async def test_the_number_of_counters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unused counters are dropped, and no caller gets a second burst by it."""
    monkeypatch.setattr(local_counters, "MIN_CALL_LIMITS", 10)
    process = LimitedProcess(
        LimitRules(caller=bucket(1), tenant=concurrency_limit(5), tool=concurrency_limit(5))
    )
    for number in range(100):
        assert await process.call(tenant_id=f"tenant-{number}") == "seen"

    assert len(process.limits.counters.call_limits) <= 10
    assert len(process.limits.counters.concurrency) <= 20
    for number in range(100):
        assert await process.call(tenant_id=f"tenant-{number}") == "rate_limit caller"


async def test_the_callers_of_all_cached_tokens_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise slightly more callers in turn would each find their counters dropped."""
    monkeypatch.setattr(local_counters, "MIN_CALL_LIMITS", 10)
    process = LimitedProcess(LimitRules(caller=bucket(1), cached_tokens=50))
    for number in range(100):
        await process.call(subject=f"person-{number}")

    assert len(process.limits.counters.call_limits) == 100


async def test_resources_of_a_caller_share_one_counter() -> None:
    """A caller can invent names of resources without end."""
    process = LimitedProcess(LimitRules(caller=bucket(100)))

    async def proceed(call: Call, offer: Offer, arguments: object) -> Outcome:
        return Outcome()

    for number in range(50):
        call = Call(
            caller=a_caller(),
            name=f"note://{number}",
            arguments=b"{}",
            request_id="r",
            kind="document",
        )
        await process.limits(call, None, None, proceed)  # type: ignore[arg-type]  # none is looked at

    assert len(process.limits.counters.call_limits) == 1


async def test_a_dropped_bucket_no_longer_counts_for_its_caller() -> None:
    """A kept reference to it beside a new bucket would let twice as many calls pass."""
    process = LimitedProcess(LimitRules(caller=bucket(2, rate=1.0)))
    counts = process.limits.counters
    counts.buckets = Buckets(max_buckets=2, forgetting=counts.call_limits.clear)
    assert await process.call() == "seen"
    process.now = 100
    assert [await process.call(subject=f"person-{n}") for n in range(4)] == ["seen"] * 4

    process.gate.set()
    refusals = [await process.call(tool) for tool in ("look", "wait", "look", "wait")]
    assert refusals == ["seen", "waited", "rate_limit caller", "rate_limit caller"]


async def test_callers_share_their_tenants_bucket_after_counters_were_dropped() -> None:
    """What is kept for all callers of a tenant must not outlive the bucket that others find."""
    process = LimitedProcess(LimitRules(caller=bucket(5), tenant=bucket(50)))
    counts = process.limits.counters
    counts.buckets = Buckets(max_buckets=3, forgetting=counts.forget)
    refusals = [await process.call(subject=f"person-{n}") for n in range(60)]

    assert refusals == ["seen"] * 50 + ["rate_limit tenant"] * 10


async def test_a_call_counts_in_the_shared_counters_after_a_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds even if the cache of counters was cleared during the wait."""
    monkeypatch.setattr(local_counters, "MIN_CALL_LIMITS", 1)
    process, person = LimitedProcess(LimitRules(tenant=concurrency_limit(1))), DecidingClient()
    asking = await process.begin("ask", client=person)
    assert [await process.call(subject=f"person-{n}") for n in range(3)] == ["seen"] * 3

    person.decided.set()
    await run_ready()
    assert await process.call() == "rate_limit tenant"
    assert await process.end() == ["accept"]
    assert asking.done()
    assert process.limits.counters.running == {}


def test_many_new_names_do_not_reset_a_limited_callers_bucket() -> None:
    """The fullest buckets are dropped first, so a caller without calls left stays limited."""
    buckets = Buckets(max_buckets=100)
    for _ in range(5):
        assert buckets.spend("greedy", 0.0, rate=1, burst=5) == 0
    for number in range(1_000):
        assert buckets.spend(f"new-{number}", 0.0, rate=1, burst=5) == 0

    assert len(buckets) <= 100
    assert buckets.spend("greedy", 0.0, rate=1, burst=5) == pytest.approx(1)


def test_room_is_made_before_the_lookup_of_several_buckets() -> None:
    """Otherwise the last lookup could drop the bucket of the first."""
    sizes: list[int] = []
    buckets = Buckets(max_buckets=3, forgetting=lambda: sizes.append(len(buckets)))
    for name in ("a", "b"):
        buckets.spend(name, 0.0, rate=1, burst=2)
    returned = buckets.buckets_for([("c", 1.0, 2.0), ("d", 1.0, 2.0), ("a", 1.0, 2.0)], 0.0)

    assert sizes == [2]
    assert buckets.buckets_for([("c", 1.0, 2.0), ("d", 1.0, 2.0), ("a", 1.0, 2.0)], 0.0) == returned


async def test_existing_counters_use_the_limits_of_a_reload() -> None:
    """The new limits count at once, also for callers with a bucket."""
    process = LimitedProcess(LimitRules(caller=bucket(2)))
    assert [await process.call() for _ in range(3)] == ["seen", "seen", "rate_limit caller"]
    process.limits.apply(LimitRules(caller=bucket(3)))

    assert [await process.call() for _ in range(2)] == ["seen", "rate_limit caller"]


async def test_no_limit_can_occur_twice_in_one_request() -> None:
    """A refused request would otherwise keep what it took from the first occurrence."""
    once, twice = Spending("a", 1, 5), [Spending("a", 1, 5), Spending("a", 1, 5)]
    counter, shared_store = ConcurrencyCounter(1), MemorySharedStore().for_tenant("acme")
    with pytest.raises(ValueError, match="occurs twice"):
        LocalLimits((), (counter, counter))
    with pytest.raises(ValueError, match="occurs twice"):
        await shared_store.limits(twice).take()

    assert counter.running == 0
    assert await shared_store.levels([once], ()) == [5]


NAMES = ("acme", "audit", "caller", "message", "queue", "retry", "tenant", "tool", "user 1 a b")


@given(st.tuples(*[st.sampled_from(NAMES)] * 4), st.sampled_from((*NAMES, "", None)), st.booleans())
def test_no_names_of_a_call_repeat_a_limit(
    principal: PrincipalKey, tool: str | None, nested: bool
) -> None:
    """Names of tenants, callers and tools that repeat each other do not share a limit."""
    every = Bound(1, 5, 3)
    rules = LimitRules(every, every, every, caller_audit=every, tenant_audit=every)
    counters, shared_store = LocalCounters(), MemorySharedStore()
    call_limits = counters.limits_of((*principal, tool, nested), rules, 0.0, shared_store)
    store_limits = call_limits.store_limits
    assert isinstance(store_limits, MemoryLimits)
    names = [bucket.bucket for bucket in (*store_limits.spendings, *store_limits.quotas)]
    limits = [limit.name for limit in store_limits.concurrency]

    assert call_limits.take(0.0)
    assert len(names) == len(set(names)) == len(call_limits.buckets)
    assert len(limits) == len(set(limits))


RATES, BURST_SIZES = (0.5, 1.0, 4.0), (2, 5, 9)
CALLS = st.lists(st.tuples(st.floats(0, 2, allow_nan=False), st.integers(0, 6)), max_size=60)


@given(CALLS)
def test_a_call_takes_from_all_limits_or_from_none(comings: list[tuple[float, int]]) -> None:
    """The model has three token buckets and two concurrency limits."""
    buckets = [
        Bucket.full(rate, burst, 0.0) for rate, burst in zip(RATES, BURST_SIZES, strict=True)
    ]
    tenant, tool = ConcurrencyCounter(6), ConcurrencyCounter(5)
    limits = LocalLimits(buckets, [tenant, tool])
    levels, now = [float(burst) for burst in BURST_SIZES], 0.0
    for pause, running in comings:
        now += pause
        levels = [
            min(burst, level + pause * rate)
            for level, rate, burst in zip(levels, RATES, BURST_SIZES, strict=True)
        ]
        tenant.running = tool.running = running
        taken = limits.take(now)
        if min(levels) >= 1 + 1e-6:
            assert taken == (running < 5)
        if min(levels) <= 1 - 1e-6 or running >= 5:
            assert not taken
            assert limits.shortage(now).wait_s > 0
        if taken:
            levels = [level - 1 for level in levels]
        assert (tenant.running, tool.running) == (running + taken, running + taken)
