"""What is kept for callers and tenants is bounded, at all replicas together, in every store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gatepost.storage.backends import open_records
from gatepost.storage.quota import SHARE, QuotaExceeded, StorageQuota
from gatepost.storage.records import Records
from gatepost.storage.stored_bytes import ROW_BYTES
from gatepost.tools.offers.offer import Outcome
from tests.support.client import RestClient, failure, result
from tests.support.endpoint import a_caller
from tests.support.issuers import Idp
from tests.support.measuring import ManualClock
from tests.support.runners import IdempotencyDeployment, IdempotencyReplica
from tests.support.server import issuer_settings, running_server

MAX_BYTES = 64_000
FOUR_ROWS_BYTES = 4 * ROW_BYTES
"""Room for three small outcomes."""
DAY_S = 86_400


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/records.db"}
    return str(urls.get(request.param) or request.getfixturevalue("migrated_postgres"))


@pytest.fixture
async def records(url: str) -> AsyncIterator[Records]:
    opened = await open_records(url)
    yield opened
    await opened.aclose()


def replica_with_quotas(
    deployment: IdempotencyDeployment, *, caller: int = 0, tenant: int = 0
) -> IdempotencyReplica:
    """Return a replica with these quotas."""
    replica = deployment.replica()
    of_tenant = SimpleNamespace(stored_bytes=tenant)
    replica.runs.quota.apply(SimpleNamespace(stored_bytes=caller, tenant=of_tenant))
    return replica


def text(size: int) -> Outcome:
    return Outcome(({"type": "text", "text": "x" * size},))


async def stored_bytes(deployment: IdempotencyDeployment, subject: str = "alice") -> int:
    """Return the bytes that the store holds for a caller."""
    owner = a_caller(subject=subject).principal_digest
    return (await deployment.records.for_tenant("acme").usage(owner, deployment.clock.now)).bytes


async def test_the_stored_bytes_of_one_caller_are_bounded(records: Records) -> None:
    """The quota holds across replicas; the refusal names it and has a retry time."""
    deployment = IdempotencyDeployment(records=records)
    deployment.answers = text(2_000)
    replicas = [replica_with_quotas(deployment, caller=MAX_BYTES) for _ in range(2)]
    outcomes = [await replicas[n % 2].call(f"key-{n}") for n in range(60)]

    refused = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    assert refused
    assert {(failure.kind, failure.limit) for failure in refused} == {("rate_limit", "caller")}
    assert "limits.stored_bytes" in refused[0].message
    assert 0 < (refused[0].retry_after or 0) <= DAY_S
    assert deployment.effects["a"] == 60 - len(refused)
    assert MAX_BYTES // 2 < await stored_bytes(deployment) <= MAX_BYTES + 2 * MAX_BYTES // SHARE


async def test_a_full_quota_stops_neither_replays_nor_other_callers(records: Records) -> None:
    """What is kept is answered, calls without a key run, and so do those of other callers."""
    deployment = IdempotencyDeployment(records=records)
    replica = replica_with_quotas(deployment, caller=FOUR_ROWS_BYTES)
    first = [await replica.call(f"key-{n}", arguments=b'{"what":"a"}') for n in range(6)]
    assert first[5].failure is not None
    for quota_replica in (replica, replica_with_quotas(deployment, caller=FOUR_ROWS_BYTES)):
        assert await quota_replica.call("key-0") == first[0]
    assert (await replica.call(None)).failure is None
    assert (await replica.call("key", subject="bob")).failure is None
    assert (await replica.call("key", tenant_id="globex")).failure is None


async def test_a_tenants_callers_share_its_quota(records: Records) -> None:
    """Many callers of one tenant do not fill the disk either; another tenant is not concerned."""
    deployment = IdempotencyDeployment(records=records)
    deployment.answers = text(1_000)
    replica = replica_with_quotas(deployment, caller=MAX_BYTES, tenant=MAX_BYTES // 4)
    outcomes = [await replica.call(subject=f"person-{n}") for n in range(20)]

    refused = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    assert {failure.limit for failure in refused} == {"tenant"}
    assert "limits.tenant.stored_bytes" in refused[0].message
    assert (
        await deployment.records.for_tenant("acme").usage(None, deployment.clock.now)
    ).bytes <= MAX_BYTES // 4
    assert (await replica.call(tenant_id="globex")).failure is None


async def test_a_call_whose_outcome_exceeds_the_quota_does_not_run_again(records: Records) -> None:
    """That it was carried out is kept, and its caller gets the answer once."""
    deployment = IdempotencyDeployment(records=records)
    deployment.answers = text(MAX_BYTES)
    replica = replica_with_quotas(deployment, caller=MAX_BYTES)
    first, again = await replica.call(), await replica.call()

    assert first.failure is None
    assert again.failure is not None
    assert again.failure.kind == "conflict"
    assert "carried out" in again.failure.message
    assert deployment.effects["a"] == 1
    assert await stored_bytes(deployment) < 2 * ROW_BYTES


async def test_expired_outcomes_free_the_quota(records: Records) -> None:
    """After a day the same caller can store as much again."""
    deployment = IdempotencyDeployment(records=records)
    replica = replica_with_quotas(deployment, caller=FOUR_ROWS_BYTES)
    before = [await replica.call(f"key-{n}") for n in range(5)]
    deployment.clock.now += DAY_S + 1
    after = await replica.call("key-9")

    assert [outcome.failure is None for outcome in before] == [True] * 3 + [False] * 2
    assert after.failure is None


async def test_concurrent_calls_share_the_remaining_quota() -> None:
    """No two calls take the same bytes."""
    deployment = IdempotencyDeployment()
    deployment.answers = text(1_000)
    replica = replica_with_quotas(deployment, caller=MAX_BYTES // 4)
    outcomes = await asyncio.gather(*(replica.call(f"key-{n}") for n in range(100)))

    assert sum(outcome.failure is None for outcome in outcomes) < 100
    assert await stored_bytes(deployment) <= MAX_BYTES // 4


async def test_the_quota_is_read_once_for_each_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call costs no question of its own: one for each share of the quota."""
    deployment, clock = IdempotencyDeployment(), ManualClock()
    quota = StorageQuota(deployment.records, clock=clock)
    of_tenant = SimpleNamespace(stored_bytes=0)
    quota.apply(SimpleNamespace(stored_bytes=MAX_BYTES, tenant=of_tenant))
    lookup_count = 0
    acme = deployment.records.for_tenant("acme")
    usage = acme.usage

    async def counted(owner: bytes | None, now: float) -> object:
        nonlocal lookup_count
        lookup_count += 1
        return await usage(owner, now)

    monkeypatch.setattr(acme, "usage", counted)
    for _ in range(MAX_BYTES // 100):
        with await quota.reserve("acme", b"alice", 100):
            pass
    assert lookup_count <= SHARE + 2
    with await quota.reserve("acme", b"alice", MAX_BYTES - 100), pytest.raises(QuotaExceeded):
        await quota.reserve("acme", b"alice", 200)


@pytest.mark.requirement("P12")
def test_a_full_quota_is_a_limit_to_both_protocols(idp: Idp, tmp_path: Path) -> None:
    """New keys are refused by the quota and not with 503; calls without a key run."""
    settings: dict[str, Any] = {
        "limits": {"requests_per_second": 0, "stored_bytes": FOUR_ROWS_BYTES},
        "tenancy": {"create_on_first_use": True},
        "storage": {"database": f"sqlite:///{tmp_path}/records.db"},
    }
    with running_server(idp, [issuer_settings(idp)], **settings) as server:
        token, key = server.token(org_id="acme"), "Idempotency-Key"
        answers = [
            server.client.call(token, "record_write", fields=[(key, f"key-{n}")]) for n in range(6)
        ]
        response = RestClient(server, token).call("record_write", {}, (key, "another"))
        replayed = server.client.call(token, "record_write", fields=[(key, "key-0")])
        others = [
            server.client.call(token, "record_write"),
            server.client.call(
                server.token(org_id="globex"), "record_write", fields=[(key, "key-5")]
            ),
        ]

    refused = failure(answers[5])
    assert (answers[5].status, refused["code"], refused["data"]["limit"]) == (200, -32000, "caller")
    assert 3_600 < int(answers[5].field("retry-after") or 0) <= DAY_S
    assert (response.status, response.json["error"]) == (429, "rate_limited")
    assert "limits.stored_bytes" in response.json["message"]
    assert result(replayed)["content"] == result(answers[0])["content"]
    assert all(result(answer) for answer in others)
