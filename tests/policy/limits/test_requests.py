"""Requests that are no calls count together with the calls of their caller, at every process."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from gatepost.policy.limits.request_limits import CallerRequests
from gatepost.policy.limits.rules import Bound, LimitRules
from gatepost.policy.limits.stage import LimitStage
from gatepost.storage.backends import open_shared_store
from gatepost.storage.errors import StoreUnavailable
from gatepost.storage.shared_store import SharedStore
from tests.support.endpoint import a_caller

BURST_SIZE = 5
LIMIT_RULES = LimitRules(
    caller=Bound(rate=0.001, burst=BURST_SIZE), tenant=Bound(rate=0.001, burst=BURST_SIZE + 2)
)


@pytest.fixture
async def shared_store(valkey: str) -> AsyncIterator[SharedStore]:
    opened = await open_shared_store(valkey)
    yield opened
    await opened.aclose()


def process(shared_store: SharedStore | None, refused: list[str]) -> CallerRequests:
    limits = LimitStage(shared_store)
    limits.apply(LIMIT_RULES)
    return CallerRequests(limits, refused.append)


async def refusing_limits(
    processes: Sequence[CallerRequests], times: int, **caller: Any
) -> list[str]:
    """Spend these requests; return the limit that refused each, if any."""
    answers = [await processes[n % len(processes)].spend(a_caller(**caller)) for n in range(times)]
    failures = [None if answer is None else answer.failure for answer in answers]
    return ["" if failure is None else str(failure.limit) for failure in failures]


async def test_processes_count_requests_together(shared_store: SharedStore) -> None:
    """A second process gives no further requests; they count in the tenant's bucket, too."""
    refused: list[str] = []
    both = [process(shared_store, refused), process(shared_store, refused)]

    assert await refusing_limits(both, BURST_SIZE + 2) == [""] * BURST_SIZE + ["caller"] * 2
    assert await refusing_limits(both, 4, subject="bob") == [""] * 2 + ["tenant"] * 2
    assert await refusing_limits(both, 1, tenant_id="globex") == [""]
    assert refused == ["caller"] * 2 + ["tenant"] * 2


async def test_without_a_shared_store_each_process_counts(
    shared_store: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests do not stop because they cannot be counted, and are not free for that."""
    first = process(shared_store, [])

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(type(shared_store.for_tenant("acme").limits()), "take", away)

    assert await refusing_limits([first], BURST_SIZE + 1) == [""] * BURST_SIZE + ["caller"]


async def test_without_a_limit_no_request_is_counted(shared_store: SharedStore) -> None:
    """Without a limit the shared store is not asked."""
    limits = LimitStage(shared_store)
    limits.apply(LimitRules())
    free = CallerRequests(limits, [].append)

    assert await refusing_limits([free], 50) == [""] * 50
    assert free.spend_message(a_caller()) is None
