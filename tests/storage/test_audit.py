"""Audit logs: chains of several writers, queries over them, and what is removed from them."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from gatepost.storage.audit import (
    CHECKPOINTS,
    AuditQuery,
    AuditStore,
    ChainHead,
    ChainKey,
    Checkpoint,
    Count,
    NewAuditRecord,
    Segment,
    TenantAuditLog,
)
from gatepost.storage.audit_segments import element, rows_of, segments
from gatepost.storage.audit_sums import KEPT_MS
from gatepost.storage.backends import open_records
from gatepost.storage.records import Records
from tests.support.measuring import each

HOUR = 3_600_000


@pytest.fixture
def audit_store(records: Records) -> AuditStore:
    """Return the audit log of each backend; its records are linked when they are written."""
    return records.open_audit(None)


def new_record(at: int = 1_000, **fields: str | None) -> NewAuditRecord:
    """Return a record with default values."""
    members = {"kind": "call", "tool": "write", "outcome": "success", "subject": "alice"} | fields
    sort = {name: members[name] for name in ("kind", "tool", "outcome")}
    side = {"reason": ("00", members.get("reason", "Why not?"))}
    if members["subject"] is not None:
        caller = msgspec.json.encode({"issuer": "https://id", "subject": members["subject"]})
        side["caller"] = ("00", caller.decode())
    return NewAuditRecord(
        b"," + msgspec.json.encode({"at": at, **sort})[1:],
        at,
        (*sort.values(),),  # type: ignore[arg-type]  # all are there
        None if members.get("erased") else msgspec.json.encode(side),
    )


def linked(
    chain: ChainKey, found: ChainHead | None, new_records: Sequence[NewAuditRecord]
) -> tuple[list[Segment], ChainHead]:
    """Link a chain without any proof: each hash says which record it is."""
    head = found or ChainHead(*chain, 0, b"", 0, "")
    elements, number = [], head.number
    for record in new_records:
        number += 1
        body = b'{"number":%d,"writer":%d%b' % (number, chain[1], record.body)
        elements.append(element(body, record.side, b"%d" % number))
    times, sorts = [record.at for record in new_records], [record.sort for record in new_records]
    new_segments = segments(chain[1], head.number + 1, elements, times, sorts)
    return new_segments, msgspec.structs.replace(head, number=number, hash=b"%d" % number)


def sign(heads: Sequence[ChainHead], _: Checkpoint | None) -> tuple[Checkpoint, ChainHead]:
    number = sum(head.number for head in heads if head.writer != CHECKPOINTS)
    signed = Checkpoint(number, f"at {number}", "signed")
    return signed, ChainHead(heads[0].tenant, CHECKPOINTS, number, b"seal", 0, "")


async def prune(tenant_log: TenantAuditLog, through: int, added: NewAuditRecord) -> None:
    """Remove what a checkpoint of one chain covers."""
    new_records: dict[int, list[NewAuditRecord]] = {CHECKPOINTS: [], 1: [added]}
    await tenant_log.prune({CHECKPOINTS: through, 1: through}, new_records, linked)


async def test_written_records_are_read_in_order(audit_store: AuditStore) -> None:
    """Each tenant has its own records and their chain head."""
    batch = {
        ("acme", 1): [new_record(at) for at in range(40)],
        ("globex", 1): [new_record(7, tool="ü\\", erased="yes")],
    }
    await audit_store.write(batch, linked)
    await audit_store.write({("acme", 1): [new_record(99)]}, linked)
    acme, globex = audit_store.tenant_log("acme"), audit_store.tenant_log("globex")
    written = rows_of(*linked(("acme", 1), None, [*batch["acme", 1], new_record(99)])[0])

    assert await acme.chain(1).rows(0, 100) == written
    assert await acme.chain(1).rows(38, 2) == written[38:40]
    assert await globex.chain(1).rows(0, 100) == rows_of(
        *linked(("globex", 1), None, batch["globex", 1])[0]
    )
    assert await globex.heads() == [ChainHead("globex", 1, 1, b"1", 0, "")]
    assert await audit_store.tenant_log("initech").heads() == []
    found_heads = await audit_store.heads("", 99)
    heads = {tenant: [head.number for head in found_heads[tenant]] for tenant in found_heads}
    assert heads == {"acme": [41], "globex": [1]}
    assert await audit_store.tenants() == ["acme", "globex"]


async def test_line_breaks_do_not_split_a_record(audit_store: AuditStore) -> None:
    """They may be in names and between members of arguments, which are stored as sent."""
    split_record = new_record(reason="a\nb")
    assert split_record.side is not None
    sent = msgspec.structs.replace(split_record, side=b"{\n" + split_record.side[1:])
    batch = {("ac\nme", 1): [new_record(tool="a\nb"), sent], ("globex", 1): [sent, new_record()]}
    await audit_store.write(batch, linked)

    for chain, new_records in batch.items():
        written = rows_of(*linked(chain, None, new_records)[0])
        assert await audit_store.tenant_log(chain[0]).chain(1).rows(0, 9) == written


async def test_a_batch_is_written_whole_or_not_at_all(audit_store: AuditStore) -> None:
    """If the records of one tenant cannot be linked, no tenant's records are written."""

    def broken(
        chain: ChainKey, head: ChainHead | None, new_records: Sequence[NewAuditRecord]
    ) -> tuple[list[Segment], ChainHead]:
        if chain[0] == "globex":
            raise LookupError(chain)
        return linked(chain, head, new_records)

    with pytest.raises(LookupError):
        await audit_store.write({(name, 1): [new_record()] for name in ("acme", "globex")}, broken)
    await audit_store.write({("acme", 1): [new_record(5)]}, linked)

    assert [row.at for row in await audit_store.tenant_log("acme").chain(1).rows(0, 9)] == [5]


async def test_writers_of_several_processes_make_one_chain(sql_url: str) -> None:
    """The numbers have no gaps, also if a tenant is new to all writers."""
    several = [await open_records(sql_url) for _ in range(3)]
    stores = [records.open_audit(None) for records in several]

    async def work(audit_store: AuditStore) -> None:
        for at in range(10):
            batch = {("acme", 1): [new_record(at)], ("globex", 1): [new_record(at), new_record(at)]}
            await audit_store.write(batch, linked)

    await asyncio.gather(*map(work, stores))
    acme = await stores[0].tenant_log("acme").chain(1).rows(0, 1000)
    globex = await stores[0].tenant_log("globex").chain(1).rows(0, 1000)
    for replica in several:
        await replica.aclose()

    assert [row.number for row in acme] == [*range(1, 31)]
    assert [row.number for row in globex] == [*range(1, 61)]


QUERIES = {
    "everything": (AuditQuery(), [6, 5, 4, 3, 2, 1]),
    "a page": (AuditQuery(limit=2), [6, 5]),
    "the next page": (AuditQuery(limit=2, before=(4 * HOUR, 1, 4)), [3, 2]),
    "a tool": (AuditQuery(tool="look"), [4, 2]),
    "somebody": (AuditQuery(subject="bob"), [3]),
    "an outcome": (AuditQuery(outcome="denied"), [5]),
    "a kind": (AuditQuery(kind="approval"), [1]),
    "a time": (AuditQuery(since=2 * HOUR, until=4 * HOUR), [3, 2]),
    "a text": (AuditQuery(text="WHY"), [5, 4, 3, 2]),
    "a text with quotes": (AuditQuery(text='"x"\\'), [1]),
    "no pattern": (AuditQuery(text="W%y"), []),
    "a tool that is no pattern": (AuditQuery(tool="l__k"), []),
    "somebody with quotes": (AuditQuery(subject='d"a\\v_e'), [6]),
    "somebody who is part of another": (AuditQuery(subject="bo"), []),
    "letters of other alphabets": (AuditQuery(text="grün"), [6]),
    "no text that there can be": (AuditQuery(text="\ud800", subject="\0"), []),
    "what stands between records": (AuditQuery(text='"hash":'), []),
    "what stands in two records": (AuditQuery(tool="look", text="grün"), []),
    "both": (AuditQuery(tool="look", since=3 * HOUR), [4]),
}


async def test_queries_are_answered_newest_first(audit_store: AuditStore) -> None:
    """Each page has only matching records."""
    batch = [
        new_record(HOUR, kind="approval", reason='an "x"\\ here'),
        new_record(2 * HOUR, tool="look"),
        new_record(3 * HOUR, subject="bob"),
        new_record(4 * HOUR, tool="look"),
        new_record(5 * HOUR, outcome="denied"),
    ]
    await audit_store.write({("acme", 1): batch, ("globex", 1): [new_record()]}, linked)
    more = new_record(6 * HOUR, tool="paint", subject='d"a\\v_e', reason="grün", outcome="done")
    await audit_store.write({("acme", 1): [more]}, linked)

    @each(("query", "numbers"), QUERIES.values(), ids=QUERIES)
    async def answered(query: AuditQuery, numbers: list[int]) -> None:
        matching = await audit_store.tenant_log("acme").find(query)
        assert [row.number for row in matching] == numbers

    await answered()


async def test_a_query_finds_records_at_any_distance(audit_store: AuditStore) -> None:
    """Among hundreds of commits, each page behind the one before."""
    for at in range(230):
        tool = "rare" if at % 70 == 0 else "write"
        await audit_store.write({("acme", 1): [new_record(at, tool=tool)]}, linked)
    acme, ids, before = audit_store.tenant_log("acme"), list[int](), None
    while page := await acme.find(AuditQuery(tool="rare", before=before, limit=1)):
        ids += [row.number for row in page]
        before = page[-1].position

    assert ids == [211, 141, 71, 1]
    assert [row.number for row in await acme.chain(1).rows(0, 225)] == [*range(1, 226)]
    assert [row.number for row in await acme.chain(1).rows(220, 225)] == [*range(221, 231)]


async def test_a_horizon_counts_the_newest_segments_before_a_time(audit_store: AuditStore) -> None:
    """It counts the segments of all writers."""
    acme = audit_store.tenant_log("acme")
    assert await acme.horizon(None, 0) is None
    for at in range(10, 60, 10):
        await audit_store.write({("acme", 1 + at % 20): [*map(new_record, (at, at + 5))]}, linked)
        await acme.heads()  # else SQLite joins some of them
    await audit_store.write({("globex", 1): [new_record(99)]}, linked)

    assert [await acme.horizon(None, most) for most in (0, 2, 4, 5)] == [55, 35, 15, None]
    assert [await acme.horizon(before, 1) for before in (46, 45, 44, 15)] == [
        35,
        35,
        25,
        None,
    ]


async def test_records_are_counted_slice_by_slice(audit_store: AuditStore) -> None:
    """The counts are by kind, tool and outcome; earlier records of a batch are left out."""
    batch = [*map(new_record, (10, HOUR, HOUR + 1)), new_record(HOUR + 2, tool="look")]
    await audit_store.write({("acme", 1): [*batch, new_record(3 * HOUR)]}, linked)
    for at in (5, 3 * HOUR + 1, 3 * HOUR + 2):
        await audit_store.write({("acme", 1): [new_record(at), new_record(at)]}, linked)
    counted = await audit_store.tenant_log("acme").count(HOUR, HOUR)

    assert counted == [
        Count(HOUR, "call", "look", "success", 1),
        Count(HOUR, "call", "write", "success", 2),
        Count(3 * HOUR, "call", "write", "success", 5),
    ]


def limit_refusals(at: int, limit: str, times: int, tool: str = "write") -> NewAuditRecord:
    """Return one record of that many refusals by a limit; older records do not name the limit."""
    body = {"at": at, "kind": "refusal", "tool": tool, "outcome": "rate_limit"}
    sides = msgspec.json.encode(body | {"times": times} | ({"limit": limit} if limit else {}))
    sort = ("refusal", tool, "rate_limit")
    return NewAuditRecord(b"," + sides[1:], at, (*sort, limit, times) if limit else sort, None)


async def test_each_refusal_by_a_limit_is_counted(audit_store: AuditStore) -> None:
    """One record may count many refusals; reading or splitting its segment keeps the counts."""
    acme = audit_store.tenant_log("acme")
    batch = [new_record(1), limit_refusals(2, "caller", 30), limit_refusals(HOUR, "caller", 2)]
    await audit_store.write({("acme", 1): batch}, linked)
    for times in (5, 7):
        numbers = {"tenant": times, "caller": 1, "": 9}
        batch = [limit_refusals(3, limit, number) for limit, number in numbers.items()]
        await audit_store.write({("acme", 1): batch}, linked)
    expected = [
        Count(0, "call", "write", "success", 1),
        Count(0, "refusal", "write", "rate_limit", 2),
        Count(0, "refusal", "write", "rate_limit", 32, "caller"),
        Count(0, "refusal", "write", "rate_limit", 12, "tenant"),
        Count(HOUR, "refusal", "write", "rate_limit", 2, "caller"),
    ]

    assert await acme.count(0, HOUR) == expected
    assert len(await acme.find(AuditQuery(outcome="rate_limit"))) == 8
    await acme.check(lambda heads, _: (Checkpoint(2, "at 2", ""), sign(heads, None)[1]))
    await prune(acme, 2, new_record(9))
    counted = [(count.number, count.limit) for count in await acme.count(0, 2 * HOUR)]
    assert counted == [(1, ""), (2, ""), (34, "caller"), (12, "tenant")]


async def test_sums_are_added_with_their_records_or_not_at_all(sql_url: str) -> None:
    """This holds for each writer, and if another process has moved the end of the chain."""
    opened = [await open_records(sql_url) for _ in range(2)]
    stores = [records.open_audit(None) for records in opened]
    for number in range(3):
        for audit_store in stores:
            await audit_store.write({("acme", 1): [new_record(1)] * 2}, linked)
            batch = {("acme", 2 + number): [new_record(HOUR)], ("globex", 1): [new_record(1)]}
            await audit_store.write(batch, linked)
    with pytest.raises(ZeroDivisionError):
        await stores[0].write({("acme", 1): [new_record(1)]}, lambda *_: 1 / 0)  # type: ignore[arg-type,return-value]  # it fails
    acme, globex = (stores[1].tenant_log(tenant) for tenant in ("acme", "globex"))
    seen = await acme.count(0, HOUR), await globex.count(0, HOUR)
    rows = await acme.find(AuditQuery(limit=99))
    await acme.forget_counts()
    after = await acme.count(0, HOUR), await globex.count(0, HOUR)
    gone = await opened[1].sweep(KEPT_MS / 1000 + 1)
    for records in opened:
        await records.aclose()

    assert len(rows) == 12 + 6
    assert [(count.at, count.number) for count in seen[0]] == [(0, 12), (HOUR, 6)]
    assert [(count.at, count.number) for count in seen[1]] == [(0, 6)]
    assert after == ([], seen[1])
    assert gone == 1


async def test_only_records_that_the_dashboard_shows_are_counted(audit_store: AuditStore) -> None:
    """Calls, refusals and refused tokens are counted, and no other records."""
    kinds = ("call", "refusal", "token", "approval", "retention", "tenant")
    batch = [new_record(1, kind=kind) for kind in kinds]
    await audit_store.write({("acme", 1): batch}, linked)

    matching = await audit_store.tenant_log("acme").count(0, HOUR)
    assert [record.kind for record in matching] == ["call", "refusal", "token"]


async def test_checkpoints_are_stored_with_their_chain_head(audit_store: AuditStore) -> None:
    """They are in order; a tenant without records has none."""
    acme = audit_store.tenant_log("acme")
    nothing = await acme.check(sign)
    for _ in range(2):
        await audit_store.write({("acme", 1): [new_record()]}, linked)
        await acme.check(sign)
    heads = await acme.heads()

    assert nothing is None
    assert [checkpoint.number for checkpoint in await acme.checkpoints()] == [1, 2]
    assert heads == [
        ChainHead("acme", CHECKPOINTS, 2, b"seal", 0, ""),
        ChainHead("acme", 1, 2, b"2", 0, ""),
    ]
    assert await acme.check(lambda heads, _: None) is None


async def test_erasing_leaves_the_body_and_adds_a_record(audit_store: AuditStore) -> None:
    """Both happen in one transaction."""
    acme = audit_store.tenant_log("acme")
    await audit_store.write({("acme", 1): [new_record(), new_record(), new_record()]}, linked)
    await acme.chain(1).erase([1, 3], [new_record(9, kind="erasure")], linked)
    rows = await acme.chain(1).rows(0, 9)

    assert [(row.subject, row.side is None) for row in rows[:3]] == [
        (None, True),
        ("alice", False),
        (None, True),
    ]
    assert [row.kind for row in rows] == ["call", "call", "call", "erasure"]


async def test_pruning_needs_a_checkpoint(audit_store: AuditStore) -> None:
    """Records up to it go, older checkpoints too, and a record of that is added."""
    acme = audit_store.tenant_log("acme")
    for _ in range(3):
        await audit_store.write({("acme", 1): [new_record(), new_record()]}, linked)
        await acme.check(sign)
    with pytest.raises(LookupError):
        await prune(acme, 3, new_record())
    await prune(acme, 4, new_record(9, kind="retention"))

    assert [row.number for row in await acme.chain(1).rows(0, 9)] == [5, 6, 7]
    assert [checkpoint.number for checkpoint in await acme.checkpoints()] == [4, 6]


async def test_an_erasure_changes_only_the_given_records(audit_store: AuditStore) -> None:
    """The records were written in several batches, and one of them does not exist."""
    acme = audit_store.tenant_log("acme")
    for _ in range(3):
        await audit_store.write({("acme", 1): [new_record(), new_record(), new_record()]}, linked)
    before = await acme.chain(1).rows(0, 9)
    await acme.chain(1).erase([2, 3, 7, 99], [new_record(9, kind="erasure")], linked)
    after = await acme.chain(1).rows(0, 9)

    gone = [msgspec.structs.replace(row, side=None, subject=None) for row in before]
    assert after == [gone[at] if at in (1, 2, 6) else before[at] for at in range(9)]
    assert len(await acme.find(AuditQuery(subject="alice", kind="call"))) == 6


async def test_pruning_can_split_a_batch(audit_store: AuditStore) -> None:
    """The rest of the batch is unchanged, and counted and found as before."""

    def early(heads: Sequence[ChainHead], _: Checkpoint | None) -> tuple[Checkpoint, ChainHead]:
        return Checkpoint(2, "at 2", "signed"), sign(heads, None)[1]

    acme = audit_store.tenant_log("acme")
    batch = [new_record(1), new_record(2, tool="look"), new_record(3), new_record(4)]
    await audit_store.write({("acme", 1): batch}, linked)
    await acme.check(early)
    before = await acme.chain(1).rows(0, 9)
    await prune(acme, 2, new_record(9, kind="retention"))
    after = await acme.chain(1).rows(0, 9)

    assert after[:2] == before[2:]
    bounds = [(segment.first, segment.last) for segment in await acme.chain(1).segments(0, 9)]
    assert bounds == [(3, 4), (5, 5)]
    assert [count.number for count in await acme.count(0, HOUR)] == [
        1,
        3,
    ]  # of what was written
    assert await acme.find(AuditQuery(tool="look")) == []
