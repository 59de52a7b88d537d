"""Several buckets and places in one step, on every backend."""

import asyncio

import pytest

from gatepost.storage import rate_limits
from gatepost.storage.backends import open_shared_store
from gatepost.storage.rate_limits import (
    CONCURRENCY_WAIT_S,
    ConcurrencyLimit,
    Denial,
    QuotaBucket,
    Spending,
)
from gatepost.storage.shared_store import SharedStore, TenantSharedStore
from gatepost.storage.valkey import concurrency
from gatepost.storage.valkey.shared_store import opened

SLOW_RATE = 0.001
WITHIN_S = 10


def bucket(name: str, burst: float, rate: float = SLOW_RATE) -> Spending:
    return Spending(name, rate, burst)


async def tokens_held(shared_store: TenantSharedStore, *spendings: Spending) -> list[int]:
    """Return the whole tokens in each bucket."""
    return [int(level + 0.5) for level in await shared_store.levels(spendings, ())]


async def places_used(shared_store: TenantSharedStore, limit: ConcurrencyLimit) -> int:
    return int((await shared_store.levels((), (limit,)))[0])


async def run_ready_once() -> None:
    """Let everything that is ready go on."""
    await asyncio.sleep(0)


async def wait_for_use(
    shared_store: TenantSharedStore, limit: ConcurrencyLimit, number: int
) -> None:
    """Return once so many places are in use."""
    async with asyncio.timeout(WITHIN_S):
        while await places_used(shared_store, limit) != number:
            await run_ready_once()


@pytest.mark.requirement("P12")
async def test_a_refused_call_takes_from_no_bucket(shared_store: SharedStore) -> None:
    """If one bucket refuses a call, the others keep their tokens, in any order of the buckets."""
    acme = shared_store.for_tenant("acme")
    wide, narrow = bucket("wide", 10), bucket("narrow", 2)
    for order in ((wide, narrow), (narrow, wide)):
        assert await acme.limits(order).take() is None
    for order in ((wide, narrow), (narrow, wide)):
        denial = await acme.limits(order).take()
        assert denial is not None
        assert order[denial.at] is narrow
        assert 900 < denial.wait_s <= 1000

    assert await tokens_held(acme, wide, narrow) == [8, 0]


async def test_the_longest_wait_of_several_buckets_is_returned(shared_store: SharedStore) -> None:
    """A caller that comes back after a shorter wait is refused again."""
    acme = shared_store.for_tenant("acme")
    fast, slow = bucket("fast", 1, rate=0.1), bucket("slow", 1)
    assert await acme.limits((fast, slow)).take() is None

    for order in ((fast, slow), (slow, fast)):
        denial = await acme.limits(order).take()
        assert denial is not None
        assert order[denial.at] is slow


async def test_concurrency_is_taken_and_released(shared_store: SharedStore) -> None:
    """The limit is exact, and another tenant's limit of the same name is a different one."""
    acme, limit = shared_store.for_tenant("acme"), ConcurrencyLimit("calls", 2)
    assert await acme.limits((), (limit,)).take() is None
    assert await acme.limits((), (limit,)).take() is None
    assert await acme.limits((), (limit,)).take() == Denial(0, CONCURRENCY_WAIT_S)
    assert await shared_store.for_tenant("globex").limits((), (limit,)).take() is None

    acme.limits((), (limit,)).leave()
    assert await acme.limits((), (limit,)).take() is None
    assert await places_used(acme, limit) == 2
    for _ in range(2):
        acme.limits((), (limit,)).leave()
    await wait_for_use(acme, limit, 0)


@pytest.mark.requirement("P12")
async def test_concurrency_and_tokens_are_taken_atomically(shared_store: SharedStore) -> None:
    """Without free concurrency no token is spent, and without a token none is taken up."""
    acme, tokens = shared_store.for_tenant("acme"), bucket("tokens", 3)
    tenant, tool = ConcurrencyLimit("tenant", 3), ConcurrencyLimit("tool", 1)
    assert await acme.limits((tokens,), (tenant, tool)).take() is None

    assert await acme.limits((tokens,), (tenant, tool)).take() == Denial(2, CONCURRENCY_WAIT_S)
    assert await tokens_held(acme, tokens) == [2]
    assert await places_used(acme, tenant) == 1

    assert await acme.limits((tokens,), (tenant,)).take() is None
    assert await acme.limits((tokens,)).take() is None
    denial = await acme.limits((tokens,), (tenant,)).take()
    assert denial is not None
    assert denial.at == 0
    assert await places_used(acme, tenant) == 2


async def test_the_longer_wait_of_bucket_and_concurrency_is_returned(
    shared_store: SharedStore,
) -> None:
    """Concurrency may be free in a moment; a token takes its fixed time."""
    acme, tokens, limit = (
        shared_store.for_tenant("acme"),
        bucket("tokens", 1),
        ConcurrencyLimit("calls", 1),
    )
    assert await acme.limits((tokens,), (limit,)).take() is None

    denial = await acme.limits((tokens,), (limit,)).take()
    assert denial is not None
    assert denial.at == 0
    assert denial.wait_s > CONCURRENCY_WAIT_S


async def test_a_quota_is_charged_what_earlier_calls_owe(shared_store: SharedStore) -> None:
    """Debts may overdraw it. While it is empty, no call takes anything, whatever it owes."""
    acme, tokens, quota = (
        shared_store.for_tenant("acme"),
        bucket("tokens", 9),
        QuotaBucket("q", 100),
    )
    limits = acme.limits((tokens,), (ConcurrencyLimit("calls", 9),), (quota,))
    assert await limits.take((0.0,)) is None
    assert await limits.take((250.0,)) is None

    for owed_s in (0.0, 40.0):
        denial = await limits.take((owed_s,))
        assert denial is not None
        assert denial.at == 1
        assert 145 < denial.wait_s <= 151
    assert await acme.limits(quotas=(QuotaBucket("other", 100), quota)).take((0.0, 0.0)) is not None
    assert await shared_store.for_tenant("globex").limits(quotas=(quota,)).take((0.0,)) is None
    assert await tokens_held(acme, tokens) == [7]


async def test_calls_that_come_together_name_their_limits_in_any_order(
    shared_store: SharedStore,
) -> None:
    """Each takes from its own limits, though one request asks for those of all tenants."""
    wide, narrow = bucket("wide", 10), bucket("narrow", 2)
    few, many = ConcurrencyLimit("few", 1), ConcurrencyLimit("many", 30)
    acme, globex = shared_store.for_tenant("acme"), shared_store.for_tenant("globex")
    denials = await asyncio.gather(
        acme.limits((wide, narrow), (many,)).take(),
        globex.limits((narrow,), (few, many)).take(),
        acme.limits((narrow, wide), (many, few)).take(),
        acme.limits().take(),
        acme.limits((wide,), (few,)).take(),
        acme.limits((wide, narrow), (many,)).take(),
    )

    assert [denial and denial.at for denial in denials] == [None, None, None, None, 1, 1]
    assert [await tokens_held(tenant, wide, narrow) for tenant in (acme, globex)] == [
        [8, 0],
        [10, 1],
    ]
    assert [await places_used(acme, limit) for limit in (few, many)] == [1, 2]
    assert [await places_used(globex, limit) for limit in (few, many)] == [1, 1]


async def test_concurrency_can_be_taken_beyond_the_limit(shared_store: SharedStore) -> None:
    """A call that a person approved continues; the next call waits until a place is free."""
    acme, limit = shared_store.for_tenant("acme"), ConcurrencyLimit("calls", 1)
    assert await acme.limits((), (limit,)).take() is None
    acme.limits((), (limit,)).hold()
    await wait_for_use(acme, limit, 2)

    acme.limits((), (limit,)).leave()
    assert await acme.limits((), (limit,)).take() is not None
    acme.limits((), (limit,)).leave()
    assert await acme.limits((), (limit,)).take() is None


async def test_concurrent_calls_get_exactly_the_available_concurrency(
    shared_store: SharedStore,
) -> None:
    """Calls that share one request to the store count as well."""
    acme, limit, tokens = (
        shared_store.for_tenant("acme"),
        ConcurrencyLimit("calls", 7),
        bucket("tokens", 100),
    )
    denials = await asyncio.gather(*(acme.limits((tokens,), (limit,)).take() for _ in range(20)))

    assert denials.count(None) == 7
    assert await tokens_held(acme, tokens) == [93]


async def test_two_processes_share_the_concurrency(valkey: str) -> None:
    """A place of one process is not free for the other until the first one gives it back."""
    ours, theirs = await open_shared_store(valkey), await open_shared_store(valkey)
    limit = ConcurrencyLimit("calls", 3)
    results = await asyncio.gather(
        *(store.for_tenant("acme").limits((), (limit,)).take() for store in [ours, theirs] * 5)
    )
    granted = [
        store for store, denial in zip([ours, theirs] * 5, results, strict=True) if not denial
    ]
    assert len(granted) == 3

    granted[0].for_tenant("acme").limits((), (limit,)).leave()
    await wait_for_use(ours.for_tenant("acme"), limit, 2)
    assert await theirs.for_tenant("acme").limits((), (limit,)).take() is None
    for store in (ours, theirs):
        await store.aclose()


async def test_a_dead_process_releases_its_concurrency(
    valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is free after its lease; a living process renews it."""
    script = concurrency.TAKE_SCRIPT.replace(f"now + {rate_limits.LEASE_S}", "now + 0.5")
    monkeypatch.setattr("gatepost.storage.valkey.shared_store.TAKE_SCRIPT", script)
    dead, alive = await opened(valkey), await opened(valkey)
    monkeypatch.setattr(concurrency, "RENEW_S", 0.1)
    limit, other = ConcurrencyLimit("calls", 1), ConcurrencyLimit("others", 1)
    assert await alive.for_tenant("acme").limits((), (other,)).take() is None
    assert await dead.for_tenant("acme").limits((), (limit,)).take() is None
    await dead.aclose()  # as a crash: nothing is given back
    assert await alive.for_tenant("acme").limits((), (limit,)).take() is not None

    async with asyncio.timeout(WITHIN_S):
        while await alive.for_tenant("acme").limits((), (limit,)).take() is not None:
            await run_ready_once()
    assert await places_used(alive.for_tenant("acme"), other) == 1
    await alive.aclose()


async def test_the_concurrency_in_use_is_restored_after_valkey_lost_its_data(
    valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process reports to an empty Valkey what it uses."""
    monkeypatch.setattr(concurrency, "RENEW_S", 0.05)
    shared_store, limit = await opened(valkey), ConcurrencyLimit("calls", 5)
    acme = shared_store.for_tenant("acme")
    assert await acme.limits((), (limit, ConcurrencyLimit("other", 1))).take() is None
    assert await acme.limits((), (limit,)).take() is None
    await shared_store.client.flushdb()

    await wait_for_use(acme, limit, 2)
    await shared_store.aclose()


async def test_a_cancelled_call_holds_no_concurrency(shared_store: SharedStore) -> None:
    """It may be cancelled before the answer, or between the answer and the next step."""
    acme, limit = shared_store.for_tenant("acme"), ConcurrencyLimit("calls", 1)
    for turns in range(12):
        taking = asyncio.create_task(take_place(acme, limit))
        for _ in range(turns):
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking])
    # Answers that are under way are of those who are gone.
    async with asyncio.timeout(WITHIN_S):
        while await acme.limits((), (limit,)).take() is not None:
            await run_ready_once()


async def take_place(shared_store: TenantSharedStore, limit: ConcurrencyLimit) -> None:
    """Take a place, and give it back as a call does."""
    if await shared_store.limits((), (limit,)).take() is None:
        try:
            await asyncio.sleep(0)
        finally:
            shared_store.limits((), (limit,)).leave()
