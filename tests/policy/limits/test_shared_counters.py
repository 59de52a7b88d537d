"""Several processes that count together over a Valkey, and each for itself while that is away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from gatepost.policy.limits.rules import Bound, LimitRules
from gatepost.storage.backends import open_shared_store
from tests.support.endpoint import a_caller
from tests.support.runners import WITHIN_S, run_ready
from tests.support.server import LimitedProcess, bucket, concurrency_limit
from tests.support.stores import Valkey

pytestmark = pytest.mark.requirement("P12")
ALL_LIMITS = LimitRules(
    bucket(5),
    Bound(0.001, 8, 3),
    tools={"wait": concurrency_limit(2)},
)


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    with Valkey.running() as server:
        yield server


@asynccontextmanager
async def processes(
    url: str, rules: LimitRules, number: int = 2
) -> AsyncIterator[list[LimitedProcess]]:
    """Return so many processes on one Valkey."""
    shared_stores = [await open_shared_store(url) for _ in range(number)]
    yield [LimitedProcess(rules, shared_store) for shared_store in shared_stores]
    for shared_store in shared_stores:
        await shared_store.aclose()


async def run_until(condition: Callable[[], bool]) -> None:
    """Return once it holds."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await run_ready(1)


async def running(process: LimitedProcess, name: str, number: int) -> "asyncio.Task[str]":
    """Begin a call; it runs when this returns."""
    task = await process.begin(name)
    await run_until(lambda: process.ran["wait acme"] >= number)
    return task


async def test_buckets_are_the_same_at_every_process(valkey: str) -> None:
    """A caller's, a tenant's and a tool's: what one lets through is missing at the other."""
    async with processes(valkey, ALL_LIMITS) as (first, other):
        refusals = [await process.call() for process in (first, other) * 3]
        assert refusals == ["seen"] * 5 + ["rate_limit caller"]
        refusals = [await process.call(subject="bob") for process in (first, other) * 2]
        assert refusals == ["seen"] * 3 + ["rate_limit tenant"]
        assert await first.call(tenant_id="globex") == "seen"


async def test_concurrency_is_shared_by_all_processes(valkey: str) -> None:
    """Two of the tool and three of the tenant, wherever they are."""
    async with processes(valkey, ALL_LIMITS) as (first, other):
        await running(first, "wait", 1)
        await running(other, "wait", 1)
        assert await first.call("wait") == "rate_limit tool"
        await running(other, "hold", 2)
        assert await first.call() == "rate_limit tenant"

        levels = await first.limits.levels("acme", tools=("wait",), callers=(a_caller(),))
        assert [level.running for level in levels.concurrency] == [3, 2]
        assert [round(level.tokens) for level in levels.buckets] == [2, 5]
        assert (levels.shared, levels.together) == (True, True)

        assert await other.end() == ["waited", "waited"]
        await wait_until_admitted(first)
        assert await first.end() == ["waited"]


async def test_every_process_reports_a_tenants_queued_calls(valkey: str) -> None:
    """A tenant's own calls, as long as they wait for room in whichever process."""
    async with processes(valkey, ALL_LIMITS) as (first, other):
        first.limits.apply(ALL_LIMITS, max_running=1)
        await running(first, "wait", 1)
        await first.begin("hold", subject="bob")

        async def waiting(process: LimitedProcess, tenant: str = "acme") -> int:
            return (await process.limits.levels(tenant)).waiting

        async with asyncio.timeout(WITHIN_S):
            while (await waiting(first), await waiting(other)) != (1, 1):
                await run_ready(1)
        assert await waiting(other, "globex") == 0

        assert await first.end() == ["waited", "waited"]
        async with asyncio.timeout(WITHIN_S):
            while (await waiting(first), await waiting(other)) != (0, 0):
                await run_ready(1)


async def wait_until_admitted(process: LimitedProcess) -> None:
    """Wait until a call is admitted again, after the calls of other processes have ended."""
    async with asyncio.timeout(WITHIN_S):
        while await process.call(subject="bob") != "seen":
            await run_ready(1)


async def test_without_the_shared_store_each_process_counts_for_itself(
    own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Running calls still count in their own process and, once the shared store is back and empty, in
    every process.
    """
    monkeypatch.setattr("gatepost.storage.valkey.concurrency.RENEW_S", 0.05)
    rules = LimitRules(tenant=Bound(0.001, 3, 2))
    async with processes(own_valkey.url(), rules) as (first, other):
        await running(first, "wait", 1)
        own_valkey.stop()
        refusals = [await process.call() for process in (first, other) * 4]
        assert refusals[0::2] == ["seen"] * 3 + ["rate_limit tenant"]
        assert refusals[1::2] == ["seen"] * 3 + ["rate_limit tenant"]
        first.now = other.now = 10_000
        await running(first, "hold", 1)
        assert await first.call() == "rate_limit tenant"
        assert not (await first.limits.levels("acme")).together

        own_valkey.start()
        async with asyncio.timeout(WITHIN_S):
            while (await other.limits.levels("acme")).concurrency[0].running != 2:
                await run_ready(1)
        assert await other.call() == "rate_limit tenant"
        assert await first.end() == ["waited", "waited"]
