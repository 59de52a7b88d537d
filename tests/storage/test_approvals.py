"""Approval requests and grants on every backend."""

import asyncio
from functools import partial

import msgspec
import pytest

from gatepost.storage.approvals import (
    ApprovalMatches,
    ApprovalQuery,
    ApprovalRecord,
    GrantCount,
    GrantQuota,
    GrantRecord,
    WaitingCount,
)
from gatepost.storage.records import Records
from tests.conftest import HOUR

approval = partial(
    ApprovalRecord,
    id="a1",
    binding=b"b1",
    state="waiting",
    tool="pay",
    issuer="https://id.example.com",
    subject="alice",
    subject_kind="user",
    client_id="claude",
    created_at=1_000.25,
    until=1_300.25,
    changed_at=1_000.25,
    expires_at=1_000.25 + HOUR,
    details=b"\x00{}",
    sealed="k.x",
)
"""A pending approval request."""

grant = partial(
    GrantRecord,
    id="g1",
    tool="pay",
    issuer="https://id.example.com",
    subject="alice",
    subject_kind="user",
    client_id=None,
    remaining=3,
    created_at=1_000.25,
    expires_at=1_000.25 + HOUR,
    details=b"\x00{}",
)
"""A grant of three calls."""
QUOTA = GrantQuota(1_000, 1_000)
NOW = 1_000.5
query = partial(
    ApprovalQuery,
    binding=b"b1",
    tool="pay",
    issuer="https://id.example.com",
    subject="alice",
    subject_kind="user",
    now=NOW,
)
"""The query of a call that the request and the grant are for."""
FULL_APPROVAL = approval(client_id=None, binding=None, sealed=None, details=b"", until=1e10 + 1 / 3)


@pytest.mark.parametrize("record", [approval(), FULL_APPROVAL], ids=["sparse", "full"])
async def test_a_request_is_read_as_it_was_written(
    records: Records, record: ApprovalRecord
) -> None:
    """This includes bytes, fractions of seconds, None and empty values."""
    approvals = records.for_tenant("acme").approvals

    assert await approvals.open(record) is None
    assert await approvals.get("a1") == record
    assert await approvals.get("a2") is None
    assert await records.for_tenant("globex").approvals.get("a1") is None


async def test_one_of_many_concurrent_equal_calls_opens_a_request(records: Records) -> None:
    """Every other call gets that request, in any process."""
    approvals = records.for_tenant("acme").approvals
    requests = [approval(id=f"a{number}") for number in range(20)]

    met = await asyncio.gather(*map(approvals.open, requests))

    winners = [request for request, existing in zip(requests, met, strict=True) if existing is None]
    assert len(winners) == 1
    assert [existing for existing in met if existing is not None] == winners * 19
    assert await approvals.find(b"b1") == winners[0]
    assert (await approvals.count("i", "s", "user")).of_tenant == 1


async def test_approval_requests_of_tenants_are_isolated(records: Records) -> None:
    """The same binding in another tenant is a different request."""
    await records.for_tenant("acme").approvals.open(approval())

    assert await records.for_tenant("globex").approvals.find(b"b1") is None
    assert await records.for_tenant("globex").approvals.open(approval()) is None


async def test_a_used_request_allows_a_new_one_for_the_same_call(records: Records) -> None:
    """It stays in the history."""
    approvals = records.for_tenant("acme").approvals
    await approvals.open(approval())
    assert await approvals.replace(approval(state="used", binding=None))

    assert await approvals.find(b"b1") is None
    assert await approvals.open(approval(id="a2")) is None
    assert [request.id for request in await approvals.ended(None, 9)] == ["a1"]


async def test_a_decision_needs_the_current_revision(records: Records) -> None:
    """If two approvers decide at once, at any replicas, only the first decision counts."""
    approvals = records.for_tenant("acme").approvals
    await approvals.open(approval())
    versions = [approval(state=state, changed_at=NOW) for state in ("approved", "rejected") * 5]

    changed = await asyncio.gather(*map(approvals.replace, versions))

    assert changed.count(True) == 1
    won = versions[changed.index(True)]
    assert await approvals.get("a1") == msgspec.structs.replace(won, revision=1)
    assert not await approvals.replace(approval(id="unknown"))


async def test_waiting_requests_are_listed_oldest_first(records: Records) -> None:
    """The oldest request is the most urgent; decided requests are not listed."""
    approvals = records.for_tenant("acme").approvals
    for number, at in ((1, 30.0), (2, 10.0), (3, 20.0), (4, 5.0)):
        name = f"{number}"
        await approvals.open(approval(id=name, binding=name.encode(), created_at=at))
    await approvals.replace(approval(id="4", state="rejected", created_at=5.0))

    assert [request.id for request in await approvals.waiting(9)] == ["2", "3", "1"]
    assert [request.id for request in await approvals.waiting(2)] == ["2", "3"]
    assert [request.id for request in await approvals.waiting(9, (10.0, "2"))] == ["3", "1"]
    assert [request.id for request in await approvals.waiting(1, (10.0, "1"))] == ["2"]
    assert await approvals.waiting(9, (30.0, "1")) == []


async def test_the_history_is_paged(records: Records) -> None:
    """The last change first, and no entry twice although several changed at one moment."""
    approvals = records.for_tenant("acme").approvals
    times = {"a": 1.0, "b": 2.0, "c": 2.0, "d": 2.0, "e": 3.0}
    for name, at in times.items():
        await approvals.open(
            approval(id=name, binding=name.encode(), state="rejected", changed_at=at)
        )
    seen: list[str] = []
    position: tuple[float, str] | None = None
    while page := await approvals.ended(position, 2):
        seen += [request.id for request in page]
        position = (page[-1].changed_at, page[-1].id)

    assert seen == ["e", "d", "c", "b", "a"]


async def test_open_requests_of_all_callers_of_a_tenant_are_found(records: Records) -> None:
    """An open request is pending, or approved and unused; other tenants' are not found."""
    approvals = records.for_tenant("acme").approvals
    states = ("waiting", "approved", "rejected", "expired", "withdrawn", "used")
    for state in states:
        await approvals.open(approval(id=state, binding=state.encode(), state=state))
    await records.for_tenant("globex").approvals.open(approval(id="theirs"))

    assert sorted(await approvals.undecided()) == ["approved", "waiting"]


COUNTED_CALLERS = {
    "one person, with any client": (("https://id.example.com", "alice", "user"), 2),
    "the same id at another issuer": (("https://other", "alice", "user"), 1),
    "a machine of the same id": (("https://id.example.com", "alice", "client"), 1),
    "somebody who waits for nothing": (("https://id.example.com", "carol", "user"), 0),
}


@pytest.mark.parametrize(("caller", "count"), COUNTED_CALLERS.values(), ids=COUNTED_CALLERS)
async def test_waiting_requests_are_counted_by_caller(
    records: Records, caller: tuple[str, str, str], count: int
) -> None:
    """A machine and a person of one id are two callers; a person has one limit for all clients."""
    approvals = records.for_tenant("acme").approvals
    callers = (
        {},
        {"client_id": "cursor"},
        {"issuer": "https://other"},
        {"subject_kind": "client", "client_id": None},
        {"subject": "bob"},
    )
    for at, whom in enumerate(callers):
        await approvals.open(approval(id=f"{at}", binding=b"%d" % at, **whom))
    await approvals.open(approval(id="over", binding=b"over", state="approved"))

    assert await approvals.count(*caller) == WaitingCount(count, len(callers))


async def test_grants_are_paged(records: Records) -> None:
    """The pages hold all grants of the tenant once, also ended ones, and none of another tenant."""
    grants = records.for_tenant("acme").grants
    stored_grants = {f"g{number}": grant(id=f"g{number}") for number in range(5)}
    stored_grants["g3"] = grant(id="g3", expires_at=1.0, remaining=0)
    for stored_grant in stored_grants.values():
        await grants.add(stored_grant, QUOTA)
    await records.for_tenant("globex").grants.add(grant(id="g9"), QUOTA)
    seen: list[GrantRecord] = []
    while page := await grants.page(seen[-1].id if seen else "", 2):
        assert len(page) <= 2
        seen += page

    assert seen == [stored_grants[name] for name in sorted(stored_grants)]


async def test_requests_that_still_wait_are_found_by_tenant_and_id(records: Records) -> None:
    """A decided request and one of another tenant are not among them."""
    for number in range(150):
        request = approval(id=f"a{number}", binding=b"%d" % number)
        await records.for_tenant("acme").approvals.open(request)
    await records.for_tenant("acme").approvals.replace(
        approval(id="a7", binding=b"7", state="rejected")
    )
    await records.for_tenant("globex").approvals.open(approval(id="a7"))
    keys = {("acme", f"a{number}") for number in range(128)}

    assert await records.waiting_approvals(keys) == keys - {("acme", "a7")}
    assert await records.waiting_approvals({("globex", "a7"), ("globex", "a1")}) == {
        ("globex", "a7")
    }
    assert await records.waiting_approvals({("nobody", "a\0\ud800")}) == set()


async def test_overdue_requests_of_all_tenants_are_found(records: Records) -> None:
    """A decided request is not due."""
    for tenant, until in (("acme", 20.0), ("globex", 10.0), ("initech", 40.0)):
        approvals = records.for_tenant(tenant).approvals
        await approvals.open(approval(until=until))
        await approvals.open(approval(id="a2", binding=b"b2", state="rejected", until=1.0))
        await approvals.open(approval(id="a3", binding=b"b3", state="approved", until=until + 5))

    due = await records.overdue_approvals(25.0, 9)

    assert sorted(due) == [("acme", "a1"), ("acme", "a3"), ("globex", "a1"), ("globex", "a3")]
    assert len(await records.overdue_approvals(25.0, 2)) == 2


async def test_a_sweep_removes_expired_requests_and_grants(records: Records) -> None:
    """The rest stays."""
    approvals, grants = records.for_tenant("acme").approvals, records.for_tenant("acme").grants
    await approvals.open(approval(expires_at=NOW))
    await approvals.open(approval(id="a2", binding=b"b2"))
    await grants.add(grant(expires_at=NOW), QUOTA)

    assert await records.sweep(NOW) == 2
    assert await approvals.get("a1") is None
    assert await approvals.get("a2") is not None


async def test_a_grant_allows_its_number_of_calls(records: Records) -> None:
    """Concurrent calls at any replica use no more than the grant allows."""
    grants = records.for_tenant("acme").grants
    await grants.add(grant(), QUOTA)

    spent = await asyncio.gather(*(grants.spend("g1", NOW) for _ in range(10)))

    assert spent.count(True) == 3
    assert await grants.all(NOW) == []
    assert not await grants.spend("g2", NOW)


async def test_grants_that_are_added_at_once_do_not_exceed_the_quota(records: Records) -> None:
    """A caller's grants for one tool and those of the tenant are counted exactly."""
    acme, quota = records.for_tenant("acme").grants, GrantQuota(3, 5)
    owners: list[dict[str, str]] = [
        {},
        {},
        {},
        {},
        {"subject": "bob"},
        {"tool": "look"},
        {"subject_kind": "client"},
    ]
    await records.for_tenant("globex").grants.add(grant(id="other"), quota)

    counts = await asyncio.gather(
        *(acme.add(grant(id=f"g{at}", **owner), quota) for at, owner in enumerate(owners * 4))
    )

    valid = await acme.all(NOW)
    of_caller = [each for each in valid if each == grant(id=each.id)]
    assert len(valid) == counts.count(None) == 5
    assert len(of_caller) <= 3
    assert all(count.exceeds(quota) for count in counts if count is not None)
    owner = ("pay", "https://id.example.com", "alice", "user")
    assert await acme.count(*owner, NOW) == GrantCount(len(of_caller), 5)


async def test_ended_grants_do_not_count_for_the_quota(records: Records) -> None:
    """Neither used up grants nor expired ones keep a caller from the next grant."""
    acme, quota = records.for_tenant("acme").grants, GrantQuota(1, 1)
    assert await acme.add(grant(remaining=1), quota) is None
    assert await acme.add(grant(id="g2"), quota) == GrantCount(1, 1)
    assert await acme.spend("g1", NOW)
    assert await acme.add(grant(id="g3", expires_at=NOW), quota) is None
    assert await acme.add(grant(id="g4", created_at=NOW), quota) is None
    assert await acme.add(grant(id="g5", created_at=NOW), quota) == GrantCount(1, 1)


async def test_valid_grants_are_read_page_by_page(records: Records) -> None:
    """The oldest first, each once, without those that have ended and those of other tenants."""
    grants = records.for_tenant("acme").grants
    for name, age in (("g3", 1), ("g1", 2), ("g2", 2), ("g4", 3)):
        await grants.add(grant(id=name, created_at=NOW - age), QUOTA)
    await grants.add(grant(id="g5", expires_at=NOW), QUOTA)
    await records.for_tenant("globex").grants.add(grant(id="g6"), QUOTA)

    pages, after = list[list[str]](), None
    while page := await grants.valid_page(NOW, 3, after):
        pages.append([record.id for record in page])
        after = page[-1].created_at, page[-1].id

    assert pages == [["g4", "g1", "g2"], ["g3"]]


async def test_a_grant_is_read_by_its_id(records: Records) -> None:
    """Only of its own tenant, and only while it is valid."""
    stored_grant = grant()
    await records.for_tenant("acme").grants.add(stored_grant, QUOTA)

    assert await records.for_tenant("acme").grants.get("g1", NOW) == stored_grant
    assert await records.for_tenant("acme").grants.get("g2", NOW) is None
    assert await records.for_tenant("globex").grants.get("g1", NOW) is None
    assert await records.for_tenant("acme").grants.get("g1", NOW + HOUR) is None


async def test_a_grant_without_a_number_ends_at_its_expiry(records: Records) -> None:
    """Up to then any number of calls may use it."""
    grants = records.for_tenant("acme").grants
    stored_grant = grant(remaining=None)
    await grants.add(stored_grant, QUOTA)

    assert [await grants.spend("g1", NOW) for _ in range(5)] == [True] * 5
    assert await grants.all(NOW) == [stored_grant]
    assert not await grants.spend("g1", NOW + HOUR)
    assert await grants.all(NOW + HOUR) == []


NO_MATCH = ApprovalMatches([], None, WaitingCount(0, 0))


async def test_a_grant_is_found_only_for_its_caller_and_tool(records: Records) -> None:
    """No other caller, tool, issuer or tenant finds the grant, and a revoked one is not found."""
    acme, globex = records.for_tenant("acme"), records.for_tenant("globex")
    stored_grant = grant()
    await acme.grants.add(stored_grant, QUOTA)

    assert await acme.approvals.match(query()) == ApprovalMatches([stored_grant])
    assert await acme.approvals.match(query(subject="bob")) == NO_MATCH
    assert await acme.approvals.match(query(tool="look")) == NO_MATCH
    assert await acme.approvals.match(query(subject_kind="client")) == NO_MATCH
    assert await acme.approvals.match(query(issuer="https://other")) == NO_MATCH
    assert await acme.approvals.match(query(now=NOW + HOUR)) == NO_MATCH
    assert await globex.approvals.match(query()) == NO_MATCH
    assert await acme.grants.revoke("g1")
    assert not await acme.grants.revoke("g1")
    assert await acme.approvals.match(query()) == NO_MATCH
    assert not await acme.grants.spend("g1", NOW)


async def test_a_call_without_grants_finds_its_request_or_how_many_wait(records: Records) -> None:
    """A request of another tenant or binding is not found, and those of a grant are not read."""
    acme, globex = records.for_tenant("acme"), records.for_tenant("globex")
    await acme.approvals.open(approval())
    await acme.approvals.open(approval(id="a2", binding=b"b2", subject="bob"))

    assert await acme.approvals.match(query()) == ApprovalMatches([], approval())
    assert await acme.approvals.match(query(binding=b"b3")) == ApprovalMatches(
        [], None, WaitingCount(1, 2)
    )
    assert await globex.approvals.match(query()) == NO_MATCH
    await acme.grants.add(grant(), QUOTA)
    assert await acme.approvals.match(query()) == ApprovalMatches([grant()])
