"""All data of a tenant, and of no other, is counted and removed, on every backend."""

from gatepost.storage.records import Records
from gatepost.storage.shared_store import SharedStore
from gatepost.storage.sql.tenant_data import BATCH
from gatepost.storage.tenant_data import ErasureSubject
from tests.conftest import ROWS_BY_TABLE, store_records, task
from tests.storage.test_approvals import approval
from tests.storage.test_revocations import SUSPENSION


async def test_everything_of_a_tenant_is_counted(records: Records) -> None:
    """The counts are by kind; a tenant without data has none."""
    await store_records(records, "acme")
    await records.for_tenant("globex").entries("secrets").put("k", b"v", now=0.0)
    await records.for_tenant("").entries("secrets").put("k", b"v", now=0.0)

    assert await records.tenant_data.tenants() == ["acme", "globex"]
    assert await records.tenant_data.tenants("tasks", "idempotency_records") == ["acme"]
    assert await records.tenant_data.tenants("approval_requests") == []
    assert await records.tenant_data.count("acme") == ROWS_BY_TABLE
    assert await records.tenant_data.count("globex") == {"entries": 1}
    assert await records.tenant_data.count("initech") == {}


async def test_an_erasure_removes_all_data_of_one_tenant_only(records: Records) -> None:
    """The erasure works in steps; a suspension of the tenant stays."""
    for tenant in ("acme", "acme2", "globex"):
        await store_records(records, tenant)
    await records.revocations.put(SUSPENSION)

    removed = 0
    while gone := await records.tenant_data.clear("acme"):
        removed += gone

    assert removed == sum(ROWS_BY_TABLE.values())
    assert await records.tenant_data.count("acme") == {}
    assert await records.tenant_data.count("acme2") == ROWS_BY_TABLE
    assert await records.for_tenant("acme").tasks.get("t1") is None
    assert await records.for_tenant("acme").entries("secrets").all() == []
    assert await records.revocations.all() == [SUSPENSION]


async def test_large_tenant_data_is_erased_in_steps(records: Records) -> None:
    """No other caller waits for one long statement."""
    entries = records.for_tenant("acme").entries("many")
    for number in range(3):
        await entries.put(f"k{number}", b"", now=0.0)

    assert 0 < await records.tenant_data.clear("acme") <= BATCH
    assert await records.tenant_data.clear("acme") == 0


async def test_the_data_of_a_tenant_in_the_shared_store_is_erased(
    shared_store: SharedStore,
) -> None:
    """Notes and logs, also of names that look like patterns; the others keep theirs."""
    for tenant in ("acme", "ac*e", "globex"):
        ours = shared_store.for_tenant(tenant)
        await ours.put("note", b"1", ttl_s=60)
        await ours.append("log", b"2", ttl_s=60, max_events=5)

    await shared_store.for_tenant("ac*e").clear()

    assert await shared_store.for_tenant("ac*e").take("note") is None
    assert await shared_store.for_tenant("ac*e").read("log", 0) is None
    for tenant in ("acme", "globex"):
        assert await shared_store.for_tenant(tenant).take("note") == b"1"
        events = await shared_store.for_tenant(tenant).read("log", 0)
        assert events is not None
        assert [event.data for event in events] == [b"2"]


BOB = ErasureSubject("https://id.example", "bob", (b"bob", b"bob as a machine"))


async def test_the_erasure_of_a_person_removes_only_their_data(records: Records) -> None:
    """Tasks are found by the digest of their caller, the rest by name; others' data stays."""
    acme = records.for_tenant("acme")
    for number, owner in enumerate((b"bob", b"bob as a machine", b"alice")):
        await acme.tasks.create(task(id=f"t{number}", owner=owner))
    for number, (issuer, subject) in enumerate(
        ((BOB.issuer, "bob"), (BOB.issuer, "alice"), ("https://other.example", "bob"))
    ):
        record = approval(id=f"a{number}", binding=None, issuer=issuer, subject=subject)
        assert await acme.approvals.open(record) is None
    await records.for_tenant("globex").tasks.create(task(owner=b"bob"))

    assert await records.tenant_data.count_of("acme", BOB) == {"tasks": 2, "approval_requests": 1}
    removed = 0
    while gone := await records.tenant_data.clear_of("acme", BOB):
        removed += gone
    assert removed == 3
    assert await records.tenant_data.count_of("acme", BOB) == {}
    assert await records.tenant_data.count("acme") == {"tasks": 1, "approval_requests": 2}
    assert await records.tenant_data.count("globex") == {"tasks": 1}
